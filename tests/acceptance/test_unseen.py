"""Nothing fails unseen: what goes wrong is in the metrics, in `/readyz` and in the log of a real service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headgate.db import TokenTable
from headgate.service.protos import rate_limiter_pb2 as rl
from headgate.service.protos import rls_pb2 as rls
from headgate.testing import FakeClock
from tests.servers import Server, default_binary
from tests.service import LATEST, Service, warm_service
from tests.waiting import until

RULES = '[[rules]]\nid = "r"\ndimension = "user"\nlimit = {limit}\nwindow = "1h"\nalgorithm = "fixed_window"\n'
TOKEN = "the-token-of-the-data-plane"
DAY = 86_400.0


def metric(service: Service, name: str, **labels: str) -> float | None:
    """A sample of the service's page; None: it is not there."""
    page = httpx.get(f"{service.url}/metrics", timeout=LATEST).text
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return float(sample.value)
    return None


def ready(service: Service) -> tuple[int, str, dict[str, str]]:
    answer = httpx.get(f"{service.url}/readyz", timeout=LATEST)
    return answer.status_code, answer.json()["status"], answer.json()["faults"]


def call(service: Service, path: str, message: Any, token: str | None = None) -> str:
    """The name of the code that a gRPC call is answered with."""
    metadata = None if token is None else [("authorization", f"Bearer {token}")]
    with grpc.insecure_channel(service.grpc_address) as channel:
        method: Any = channel.unary_unary(path)
        try:
            method(message.SerializeToString(), timeout=LATEST, metadata=metadata)
        except grpc.RpcError as error:
            told: Any = error
            return str(told.code().name)
    return "OK"


def check(service: Service, token: str | None) -> str:
    return call(service, "/headgate.v1.RateLimiter/CheckRateLimit", rl.CheckRequest(identifier="alice"), token)


def should_rate_limit(service: Service, token: str | None) -> str:
    entry = rls.RateLimitDescriptor.Entry(key="user", value="alice")
    request = rls.RateLimitRequest(domain="d", descriptors=[rls.RateLimitDescriptor(entries=[entry])])
    return call(service, "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", request, token)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with warm_service(tmp_path_factory.mktemp("unseen"), data_token=TOKEN) as service:
        yield service


def test_an_api_key_that_is_not_accepted_is_counted(service: Service) -> None:
    """The metric was on the dashboard, but the service did not export it."""
    headers = {"X-Headgate-Token": TOKEN, "X-API-Key": "k" * 1_025, "X-Forwarded-For": "192.0.2.7"}
    for _ in range(2):
        assert httpx.get(f"{service.url}/v1/authorize", headers=headers, timeout=LATEST).status_code == 200
    assert metric(service, "headgate_identity_rejections_total", reason="api_key_too_long") == 2


def test_a_bad_data_token_is_counted_and_logged(service: Service) -> None:
    long_ago = TokenTable(f"sqlite:///{service.data_dir}/headgate.db", clock=FakeClock())
    _, expired = long_ago.create("of-the-gateway", role="viewer", scopes=["check"], seconds=60, actor="test")
    long_ago.close()
    for _ in range(3):
        assert should_rate_limit(service, expired) == "UNAUTHENTICATED"
    assert check(service, "wrong") == "UNAUTHENTICATED"
    assert httpx.post(f"{service.url}/v1/check", json={"user": "alice"}, timeout=LATEST).status_code == 401
    headers = {"X-Headgate-Token": "wrong"}
    assert httpx.get(f"{service.url}/v1/authorize", headers=headers, timeout=LATEST).status_code == 401
    assert httpx.get(f"{service.url}/api/v1/rules", timeout=LATEST).status_code == 401
    assert metric(service, "headgate_auth_failures_total", protocol="envoy", reason="expired") == 3
    assert metric(service, "headgate_auth_failures_total", protocol="grpc", reason="unknown") == 1
    assert metric(service, "headgate_auth_failures_total", protocol="http", reason="missing") == 1
    assert metric(service, "headgate_auth_failures_total", protocol="authorize", reason="unknown") == 1
    assert metric(service, "headgate_auth_failures_total", protocol="admin", reason="missing") == 1
    assert metric(service, "headgate_auth_failures_total", protocol="envoy", reason="revoked") == 0
    (line,) = [line for line in service.log.splitlines() if "(envoy, expired)" in line]
    assert "of-the-gateway" in line
    assert expired not in service.log


def test_answers_are_counted_by_status(service: Service) -> None:
    def count(protocol: str, status: str) -> float:
        return metric(service, "headgate_responses_total", protocol=protocol, status=status) or 0.0

    kinds = (("grpc", "OK"), ("envoy", "OK"), ("http", "200"), ("http", "400"), ("other", "404"), ("admin", "404"))
    before = {kind: count(*kind) for kind in kinds}
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert check(service, TOKEN) == "OK"
    assert should_rate_limit(service, TOKEN) == "OK"
    with httpx.Client(base_url=service.url, headers=bearer, timeout=LATEST) as client:
        assert client.post("/v1/check", json={"user": "alice"}).status_code == 200
        assert client.post("/v1/check", json={"user": "alice", "cost": "much"}).status_code == 400
        assert client.get("/v1/nothing").status_code == 404
        assert client.get("/api/v1/nothing").status_code == 404
    assert {kind: count(*kind) - before[kind] for kind in kinds} == dict.fromkeys(kinds, 1)
    unknown = count("other", "UNIMPLEMENTED")
    assert call(service, "/headgate.v1.RateLimiter/Nothing", rl.CheckRequest()) == "UNIMPLEMENTED"
    assert count("other", "UNIMPLEMENTED") == unknown + 1


def test_tokens_that_are_about_to_expire_are_told(tmp_path: Path) -> None:
    with warm_service(tmp_path) as service:
        token = {"name": "ci", "role": "viewer", "scopes": ["check"], "expires_in": "5d"}
        made = httpx.post(f"{service.url}/api/v1/tokens", json=token, headers=service.headers, timeout=LATEST)
        assert made.status_code == 201
    with warm_service(tmp_path) as service:  # which looks at them when it starts, and then twice a minute
        until(lambda: metric(service, "headgate_token_expiry_seconds", token="ci") is not None)
        left = metric(service, "headgate_token_expiry_seconds", token="ci")
        assert left is not None
        assert 4.9 * DAY < left <= 5 * DAY


def test_connections_and_the_event_loop_are_watched(service: Service) -> None:
    with (
        httpx.Client(base_url=service.url, timeout=LATEST) as client,
        grpc.insecure_channel(service.grpc_address) as ch,
    ):
        client.get("/healthz")
        grpc.channel_ready_future(ch).result(LATEST)
        assert (metric(service, "headgate_connections", protocol="http") or 0) >= 2  # and the one of this very request
        assert (metric(service, "headgate_connections", protocol="grpc") or 0) >= 1
    assert metric(service, "headgate_connections_max", protocol="http") == 20_000
    until(lambda: (metric(service, "headgate_event_loop_lag_seconds_count") or 0) > 3)


def test_rules_that_were_rejected_are_told_until_they_are_mended(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(RULES.format(limit=5))
    with warm_service(tmp_path, rules=str(file)) as service:
        assert ready(service) == (200, "ready", {})
        assert metric(service, "headgate_rules_stale") == 0
        file.write_text(RULES.format(limit=-1))
        until(lambda: metric(service, "headgate_rules_stale") == 1)
        status, state, faults = ready(service)
        assert (status, state) == (200, "degraded")
        assert "the latest were rejected" in faults["rules"]
        file.write_text(RULES.format(limit=5))  # what is in force already
        until(lambda: metric(service, "headgate_rules_stale") == 0)
        assert ready(service) == (200, "ready", {})


def test_an_idle_node_notices_that_its_store_is_away_and_back(tmp_path: Path) -> None:
    with (
        Server(default_binary()) as redis,
        warm_service(tmp_path, store=f"redis://127.0.0.1:{redis.port}/0?timeout=10") as service,
    ):

        def check_once() -> str:
            answer = httpx.post(f"{service.url}/v1/check", json={"user": "alice"}, timeout=LATEST)
            return str(answer.json()["reason"])

        assert check_once() == "within_limit"
        assert metric(service, "headgate_store_failing") == 0
        redis.stop()
        until(lambda: metric(service, "headgate_store_failing") == 1)  # nobody has asked
        assert ready(service)[1] == "degraded"
        assert check_once() == "fail_open"  # now the limiter knows, too
        redis.start()
        until(lambda: metric(service, "headgate_store_failing") == 0)  # and nobody has asked again
        assert ready(service) == (200, "ready", {})
        assert check_once() == "within_limit"
