"""Two nodes are restarted in turn behind a real proxy under load, with the settings that we ship: no request is lost.

A request is lost if it fails, or passes without a decision.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from headgate.settings import load as load_settings
from tests.envoy import envoy
from tests.nginx import nginx
from tests.rolling import Load, Nodes, load
from tests.webserver import serving

pytestmark = pytest.mark.extended  # twenty seconds each, the warm one eighty; and one needs Debian's nginx

ROUNDS = 2
WARM_SECONDS = 60.0  # of traffic before the restarts: as long as Envoy's health checks of an idle cluster may be apart
SHIPPED = load_settings(environ={}).settings.drain_delay


@pytest.fixture(scope="module")
def application() -> Iterator[str]:
    with serving("uvicorn", "tests.acceptance.apps.bare:app") as url:
        yield url


def restarted_under_load(nodes: Nodes, proxy: AbstractContextManager[str], warm_up: float = 1.0) -> Load:
    with proxy as url, load(url) as running:
        time.sleep(warm_up)
        for _ in range(ROUNDS):
            nodes.restart_each()
        time.sleep(1)
    return running


def test_envoy_that_has_just_started_loses_nothing(tmp_path: Path, application: str) -> None:
    with Nodes(tmp_path, drain_delay=SHIPPED) as nodes:
        app_port = int(application.rpartition(":")[2])
        running = restarted_under_load(nodes, envoy(tmp_path, grpc_port=nodes.grpc_ports, app_port=app_port))
    assert running.sent > 100
    assert running.lost == {}


def test_envoy_that_is_warm_loses_nothing(tmp_path: Path, application: str) -> None:
    with Nodes(tmp_path, drain_delay=SHIPPED) as nodes:
        app_port = int(application.rpartition(":")[2])
        proxy = envoy(tmp_path, grpc_port=nodes.grpc_ports, app_port=app_port)
        running = restarted_under_load(nodes, proxy, WARM_SECONDS)
    assert running.sent > 1_000
    assert running.lost == {}


def test_nginx_loses_nothing(tmp_path: Path, application: str) -> None:
    with Nodes(tmp_path, drain_delay=SHIPPED) as nodes:
        urls = [f"http://127.0.0.1:{port}" for port in nodes.http_ports]
        running = restarted_under_load(nodes, nginx(tmp_path, service=urls, backend=application))
    assert running.sent > 100
    assert running.lost == {}
