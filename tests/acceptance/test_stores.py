"""Middleware on Redis, or on an embedded server: processes share their counts, and no store takes anybody along."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.conftest import TIMEOUT
from tests.embedded import lives, server_pid
from tests.servers import Server, default_binary
from tests.waiting import until
from tests.webserver import serving

APPS = {
    "flask": ("gunicorn", "tests.acceptance.apps.flask_suite:app"),
    "django-wsgi": ("gunicorn", "tests.acceptance.apps.django_suite:wsgi"),
    "django-asgi": ("uvicorn", "tests.acceptance.apps.django_suite:asgi"),
}


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that a test may stop."""
    with Server(default_binary()) as server:
        yield server


@pytest.mark.parametrize("app", APPS)
def test_redis_goes_away_and_comes_back(own_server: Server, app: str) -> None:
    env = {"TEST_STORE": f"{own_server.url}?timeout=1"}
    with serving(*APPS[app], env=env) as url, httpx.Client(base_url=url, timeout=30) as client:
        assert client.get("/ok").headers["X-RateLimit-Remaining"] == "999999"
        assert client.get("/closed").status_code == 200
        assert client.get("/limited/1").headers["X-RateLimit-Limit"] == "2"

        own_server.stop()
        for _ in range(5):
            assert client.get("/ok").text == "view ok"  # open: it passes
            assert client.get("/limited/1").text == "view 1"
            refused = client.get("/closed")
            assert refused.status_code == 503
            assert refused.headers["Content-Type"] == "application/problem+json"
            assert refused.json()["type"].endswith("#temporary-reduced-capacity")
            assert refused.headers["Retry-After"] == "1"

        own_server.start()
        until(lambda: client.get("/closed").status_code == 200, "the next probe finds it")
        told = [client.get("/limited/1") for _ in range(3)]
        assert [response.status_code for response in told] == [200, 200, 429]  # it has forgotten, and counts anew


def test_two_processes_admit_the_limit_between_them(own_server: Server) -> None:
    with two_processes(f"{own_server.url}?{TIMEOUT}") as client:
        assert_limit_is_shared(client)


@pytest.mark.parametrize("options", [(), ("--preload",)], ids=["opened by each", "opened before the fork"])
def test_two_processes_admit_the_limit_without_a_redis(tmp_path: Path, options: tuple[str, ...]) -> None:
    with two_processes(f"embedded://{tmp_path}/c?{TIMEOUT}", *options) as client:
        server = server_pid(tmp_path / "c")
        assert_limit_is_shared(client)
    until(lambda: not lives(server))


@contextmanager
def two_processes(store: str, *options: str) -> Iterator[httpx.Client]:
    """A client of two worker processes that puts each request on a connection of its own, so that all get some."""
    apart = httpx.Limits(max_keepalive_connections=0)
    with (
        serving(*APPS["flask"], "--workers", "2", *options, env={"TEST_STORE": store}) as url,
        httpx.Client(base_url=url, timeout=30, limits=apart) as client,
    ):
        yield client


def assert_limit_is_shared(client: httpx.Client) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(client.get, ["/ok"] * 40))  # both are awake
        responses: list[httpx.Response] = []
        for _ in range(50):
            responses += pool.map(client.get, ["/shared"] * 40)
            if len(_processes(responses)) == 2:
                break
    assert len(_processes(responses)) == 2
    statuses = [response.status_code for response in responses]
    assert (statuses.count(200), statuses.count(429)) == (25, len(responses) - 25)


def _processes(responses: Iterable[httpx.Response]) -> set[str]:
    return {response.headers["X-Process"] for response in responses}
