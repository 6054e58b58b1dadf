"""The whole service when something under it fails: Redis, the file of its rules, one of its workers."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from headgate.service.protos import rate_limiter_pb2 as rl
from headgate.service.protos import rls_pb2 as rls
from tests.acceptance.test_serve import worker_pids
from tests.servers import Server, default_binary
from tests.service import Service, warm_service
from tests.waiting import until

STUCK = 60.0
OPTIONS: dict[str, Any] = {"timeout": STUCK, "verify": httpx.create_ssl_context()}  # made once: it takes its time
PASSWORD = "the-password-of-redis"
LOGIN = {"ip": "192.0.2.7", "endpoint": "/login", "method": "POST"}  # a rule that fails closed
RULES = '[[rules]]\nid = "r"\ndimension = "user"\nlimit = {limit}\nwindow = "1h"\nalgorithm = "fixed_window"\n'


@pytest.fixture(scope="module")
def redis() -> Iterator[Server]:
    with Server(default_binary(), options=("--requirepass", PASSWORD)) as server:
        yield server


def url_of(redis: Server) -> str:
    return f"redis://:{PASSWORD}@127.0.0.1:{redis.port}/0?timeout=10"


def metric(service: Service, name: str) -> float:
    """All of a metric, over its labels."""
    page = httpx.get(f"{service.url}/metrics", **OPTIONS).text
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)", page, re.M))


def ready(service: Service) -> tuple[int, str]:
    answer = httpx.get(f"{service.url}/readyz", **OPTIONS)
    return answer.status_code, answer.json()["status"]


def code_of(channel: grpc.Channel, path: str, message: Any, metadata: Any = None) -> grpc.StatusCode:
    method: Any = channel.unary_unary(path)
    try:
        method(message.SerializeToString(), timeout=STUCK, metadata=metadata)
    except grpc.RpcError as error:
        told: Any = error
        code: grpc.StatusCode = told.code()
        return code
    return grpc.StatusCode.OK


def test_redis_goes_and_comes_back(tmp_path: Path, redis: Server) -> None:
    with (
        warm_service(tmp_path, store=url_of(redis)) as service,
        httpx.Client(base_url=service.url, timeout=STUCK) as client,
        grpc.insecure_channel(service.grpc_address) as channel,
    ):

        def reason(facts: dict[str, Any]) -> tuple[int, str]:
            answer = client.post("/v1/check", json=facts)
            return answer.status_code, answer.json()["reason"]

        alice = {"user": "alice"}
        assert reason(alice) == (200, "within_limit")
        assert ready(service) == (200, "ready")
        redis.stop()
        assert reason(alice) == (200, "fail_open")
        assert reason(LOGIN) == (503, "fail_closed")
        assert client.post("/v1/reset", json=alice).status_code == 503
        login = rl.CheckRequest(
            identifier="192.0.2.7", dimension=rl.IP, endpoint="/login", method="POST"
        )  # the same, by other protocols
        assert code_of(channel, "/headgate.v1.RateLimiter/CheckRateLimit", login) == grpc.StatusCode.UNAVAILABLE
        entries = [
            rls.RateLimitDescriptor.Entry(key=key, value=value)
            for key, value in (("remote_address", "192.0.2.7"), ("path", "/login"), ("method", "POST"))
        ]
        envoy = rls.RateLimitRequest(domain="d", descriptors=[rls.RateLimitDescriptor(entries=entries)])
        path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
        assert code_of(channel, path, envoy) == grpc.StatusCode.UNAVAILABLE
        assert ready(service) == (200, "degraded")
        assert metric(service, "headgate_store_failing") == 1
        assert metric(service, "headgate_store_errors_total") >= 3
        rules = client.get("/api/v1/rules", headers=service.headers)
        assert rules.status_code == 200  # what does not need Redis works
        redis.start()
        until(lambda: reason(alice) == (200, "within_limit"))
        assert ready(service) == (200, "ready")
        assert metric(service, "headgate_store_failing") == 0
        assert reason(LOGIN) == (200, "within_limit")


def test_a_redis_that_is_away_at_the_start_is_told_of_before_anybody_asks(tmp_path: Path) -> None:
    redis = Server(default_binary())
    with warm_service(tmp_path, store=f"{redis.url}?timeout=5") as service:
        until(lambda: ready(service) == (200, "degraded"))
        assert "the store cannot be reached yet" in service.log
        with redis:
            until(lambda: ready(service) == (200, "ready"))
            with redis.client() as client:
                assert client.keys("*") == []


def test_a_rules_file_that_breaks_and_is_mended(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(RULES.format(limit=5))
    with warm_service(tmp_path, rules=file) as service:

        def limit() -> int:
            return int(httpx.post(f"{service.url}/v1/peek", json={"user": "u"}, **OPTIONS).json()["limit"])

        rejected = "headgate_rules_rejected_total"
        assert (limit(), metric(service, rejected)) == (5, 0)
        for count, broken in enumerate((RULES.format(limit=-1), "[[rules"), start=1):
            file.write_text(broken)
            until(lambda count=count: metric(service, rejected) == count)  # type: ignore[misc]
            assert limit() == 5
            assert ready(service) == (200, "degraded")
        assert service.log.count("rules.toml is invalid") == 2
        assert "detected" not in service.log  # which lies beside the rules: a line on its change would be a change
        file.write_text(RULES.format(limit=7))
        until(lambda: limit() == 7)
        assert ready(service) == (200, "ready")


def test_the_last_good_rules_are_not_those_of_another_database(tmp_path: Path) -> None:
    with warm_service(tmp_path) as service:
        until((service.data_dir / "rules-last-good.toml").exists)
    misspelt = f"sqlite:///{tmp_path}/misspelt/headgate.db"
    with (
        pytest.raises(RuntimeError, match="has no rules of an earlier run") as caught,
        warm_service(tmp_path, database_url=misspelt),
    ):
        pass
    assert "are of another database" in str(caught.value)


def test_rules_that_could_not_be_written_down_are_written_later_and_at_the_end(tmp_path: Path) -> None:
    """As on a disk that is full: here, something is in the way."""
    with warm_service(tmp_path) as service:
        file = service.data_dir / "rules-last-good.toml"

        def hinder_and_put(rule: str) -> None:
            until(file.is_file)
            file.unlink()
            file.mkdir()
            body = {"limit": 1, "window": "1h"}
            httpx.put(f"{service.url}/api/v1/rules/{rule}", json=body, headers=service.headers, **OPTIONS)
            until(lambda: "data_dir" in httpx.get(f"{service.url}/readyz", **OPTIONS).json()["faults"])
            assert list(service.data_dir.glob("rules-last-good.*")) == [file]

        hinder_and_put("first")
        assert ready(service) == (200, "degraded")
        assert "a start without the database uses older rules" in service.log
        file.rmdir()
        until(lambda: ready(service) == (200, "ready"))
        assert '"first"' in file.read_text()
        hinder_and_put("second")
        file.rmdir()
        service.stop()
        assert '"second"' in file.read_text()


@pytest.mark.extended
def test_two_workers_on_one_redis_count_together_also_when_one_is_killed(tmp_path: Path, redis: Server) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(RULES.format(limit=60))
    with warm_service(tmp_path, rules=file, store=url_of(redis), workers=2) as service:

        def check(_: int) -> int:
            """On a connection of its own, which the kernel gives to either. 0: that worker is no more."""
            try:
                return httpx.post(f"{service.url}/v1/check", json={"user": "shared"}, **OPTIONS).status_code
            except httpx.TransportError:
                return 0

        with ThreadPoolExecutor(8) as pool:
            first = list(pool.map(check, range(40)))
            assert first == [200] * 40
            page = httpx.get(f"{service.url}/metrics", **OPTIONS).text
            by_worker = dict(re.findall(r'^headgate_checks_total{.*worker="(\d)".*} (\S+)', page, re.M))
            assert set(by_worker) == {"0", "1"}
            assert metric(service, "headgate_checks_total") == 40
            before = worker_pids(service)
            os.kill(min(before), signal.SIGKILL)
            rest = list(pool.map(check, range(40)))
            lost = rest.count(0)
            assert rest.count(200) + rest.count(429) + lost == 40
            assert 20 - lost <= rest.count(200) <= 20  # one that was lost may have counted
            until(lambda: len(worker_pids(service) - before) == 1)
            until(lambda: metric(service, "headgate_build_info") == 2)
            assert list(pool.map(check, range(10))).count(200) <= lost
        assert service.stop() == 0
