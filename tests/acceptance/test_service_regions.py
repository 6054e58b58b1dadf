"""Two services in two regions, each with a server of its own: limits that both of them keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.integration.limiters import calm_window
from tests.servers import Server, default_binary
from tests.service import Service, warm_service
from tests.waiting import until

RULES = "".join(
    f'[[rules]]\nid = "{mode}"\nlimit = 20\nwindow = {calm_window()}\nendpoints = ["/{mode}"]\nregions = "{mode}"\n'
    for mode in ("central", "quota", "quota_auto", "synced")
)
REGION = """
rules = "rules.toml"
[region]
name = "eu"
interval = "200ms"
[[region.members]]
name = "eu"
store = "{eu}"
[[region.members]]
name = "us"
store = "{us}"
"""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Service]]:
    with ExitStack() as stack:
        servers = {name: stack.enter_context(Server(default_binary())) for name in ("eu", "us")}
        services = {}
        for name, server in servers.items():
            path = tmp_path_factory.mktemp(name)
            (path / "rules.toml").write_text(RULES)
            urls = {other: one.url for other, one in servers.items()}
            (path / "headgate.toml").write_text(REGION.format(**urls))
            services[name] = stack.enter_context(
                warm_service(path, "--config", "headgate.toml", "--region", name, store=f"{server.url}?timeout=1")
            )
        yield services
        for service in services.values():
            assert service.stop() == 0
            assert "Traceback" not in service.log


def check(service: Service, mode: str, count: int) -> list[dict[str, Any]]:
    asked = {"user": "alice", "endpoint": f"/{mode}"}
    answer = httpx.post(f"{service.url}/v1/check/batch", json={"checks": [asked] * count}, timeout=30)
    assert answer.status_code == 200, answer.text
    decisions: list[dict[str, Any]] = answer.json()["decisions"]
    return decisions


def passed(services: dict[str, Service], mode: str, count: int) -> int:
    return sum(one["allowed"] for service in services.values() for one in check(service, mode, count))


def test_central_and_quota_keep_the_limit(services: dict[str, Service]) -> None:
    assert passed(services, "central", 15) == 20
    assert passed(services, "quota", 15) == 20
    assert check(services["us"], "quota", 1)[0]["limit"] == 10


def test_shares_follow_demand(services: dict[str, Service]) -> None:
    total = 0

    def all_used() -> bool:
        nonlocal total
        total += passed(services, "quota_auto", 5)
        return total >= 20

    until(all_used, "all of the limit was used")
    assert total + passed(services, "quota_auto", 10) == 20


def test_synced_counts_are_heard(services: dict[str, Service]) -> None:
    left = check(services["eu"], "synced", 12)[-1]["remaining"]
    assert left <= 8  # of 20: another test may have charged some
    check(services["us"], "synced", 1)
    until(
        lambda: (
            httpx.post(
                f"{services['us'].url}/v1/peek", json={"user": "alice", "endpoint": "/synced"}, timeout=30
            ).json()["remaining"]
            == left - 1
        ),
        "us knows of eu",
    )


def test_metrics_tell_of_the_other_region(services: dict[str, Service]) -> None:
    check(services["eu"], "synced", 1)
    page = until(
        lambda: (
            (
                text := httpx.get(f"{services['eu'].url}/metrics", timeout=30).text,
                'headgate_region_age_seconds{region="us"}' in text,
            )[1]
            and text
        ),
        "us was heard of",
    )
    assert 'headgate_region_cut{region="us"} 0.0' in page
    assert "headgate_region_synced_bound" in page
