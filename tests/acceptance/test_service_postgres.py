"""The whole service when its PostgreSQL is gone, or there and silent: checks go on, and nobody waits long for it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from headgate.db import Database
from headgate.db.events import Event, EventBatch, Events
from headgate.service.protos import rate_limiter_pb2 as rl
from headgate.service.protos import rls_pb2 as rls
from tests.acceptance.test_service_faults import code_of, metric, ready
from tests.postgres import Postgres
from tests.service import Service, warm_service
from tests.waiting import until

DATA_TOKEN = "the-data-plane's-own-token"
FRESH_SECONDS = 2.0
BOUND = 12.0  # seconds in which it is clear that a connection is silent, and a new one too
CALLS = {
    "/headgate.v1.RateLimiter/CheckRateLimit": rl.CheckRequest(identifier="alice"),
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit": rls.RateLimitRequest(
        domain="d", descriptors=[rls.RateLimitDescriptor()]
    ),
}
OPTIONS: dict[str, Any] = {"timeout": 60.0, "verify": httpx.create_ssl_context()}  # made once: it takes its time


@contextmanager
def stopped(server: Postgres) -> Iterator[None]:
    server.stop()
    yield
    server.start()


def made(service: Service, name: str) -> tuple[str, dict[str, str]]:
    """A new token for checks: its id, and the header that has it."""
    body = {"name": name, "role": "operator", "scopes": ["check"]}
    answer = httpx.post(f"{service.url}/api/v1/tokens", json=body, headers=service.headers, **OPTIONS).json()
    service.secrets.append(answer["token"])
    return answer["id"], {"Authorization": f"Bearer {answer['token']}"}


def checked(service: Service, headers: dict[str, str]) -> int:
    return httpx.post(f"{service.url}/v1/check", json={"user": "alice"}, headers=headers, **OPTIONS).status_code


def calls(service: Service, headers: dict[str, str]) -> list[grpc.StatusCode]:
    """What a check and Envoy's question end with."""
    metadata = [("authorization", headers["Authorization"])]
    with grpc.insecure_channel(service.grpc_address) as channel:
        return [code_of(channel, path, message, metadata) for path, message in CALLS.items()]


@pytest.mark.parametrize("away", [stopped, pytest.param(Postgres.frozen, marks=pytest.mark.extended)])
def test_tokens_that_were_good_are_good_for_checks_while_postgresql_is_away(
    tmp_path: Path, away: Callable[[Postgres], AbstractContextManager[None]]
) -> None:
    with Postgres() as server, warm_service(tmp_path, database_url=server.url, data_token=DATA_TOKEN) as service:
        (number, known), (_, unknown) = made(service, "known"), made(service, "unknown")
        assert checked(service, known) == 200
        with away(server):
            time.sleep(FRESH_SECONDS)
            assert checked(service, known) == 200
            began = time.monotonic()
            assert [checked(service, known) for _ in range(20)] == [200] * 20
            assert calls(service, known) == [grpc.StatusCode.OK] * 2
            assert time.monotonic() - began < FRESH_SECONDS, "nobody waits"
            assert checked(service, unknown) == 503
            assert checked(service, unknown) == 503
            assert calls(service, unknown) == [grpc.StatusCode.UNAVAILABLE] * 2
        until(lambda: checked(service, unknown) == 200)
        assert service.log.count("tokens could not be looked up") == 1
        assert service.log.count("the database answers again: looking up tokens again") == 1
        assert "a request failed" not in service.log
        until(lambda: httpx.delete(f"{service.url}/api/v1/tokens/{number}", headers=service.headers).is_success)
        assert checked(service, known) == 401


@pytest.mark.extended
def test_a_silent_postgresql_is_told_of_and_nobody_waits_long_for_it(tmp_path: Path) -> None:
    with Postgres() as server, warm_service(tmp_path, database_url=server.url) as service:
        rules = f"{service.url}/api/v1/rules"
        assert httpx.get(rules, headers=service.headers, **OPTIONS).status_code == 200
        with server.frozen():
            began = time.monotonic()
            assert httpx.get(rules, headers=service.headers, **OPTIONS).status_code == 503
            assert time.monotonic() - began < BOUND
            service.process.send_signal(signal.SIGHUP)  # to look now, and not with the next poll
            until(lambda: ready(service) == (200, "degraded"), seconds=BOUND)
            assert metric(service, "headgate_database_failing") == 1
            assert checked(service, {}) == 200
        service.process.send_signal(signal.SIGHUP)
        until(lambda: ready(service) == (200, "ready"))
        assert metric(service, "headgate_database_failing") == 0
        assert httpx.get(rules, headers=service.headers, **OPTIONS).status_code == 200


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.extended)])
def test_it_stops_in_time_while_a_request_waits_for_a_silent_postgresql(tmp_path: Path, workers: int) -> None:
    with (
        Postgres() as server,
        ThreadPoolExecutor(4) as threads,
        warm_service(tmp_path, database_url=server.url, workers=workers, drain_timeout=1) as service,
    ):
        paths = ["rules", "ruleset", "events", "tokens"]

        def get(path: str) -> int:
            return httpx.get(f"{service.url}/api/v1/{path}", headers=service.headers, **OPTIONS).status_code

        assert [get(path) for path in paths * 2] == [200] * 8
        with server.frozen():
            waiting = [threads.submit(get, path) for path in paths]
            time.sleep(0.5)
            began = time.monotonic()
            assert service.stop() == 0
            assert time.monotonic() - began < 1 + 8
            assert all(isinstance(one.exception(), httpx.TransportError) for one in waiting), "cut off"
    assert "Traceback" not in service.log
    assert "4 connections were cut off" in service.log or workers > 1


@pytest.mark.extended
def test_an_export_that_breaks_off_is_a_line_in_the_log(tmp_path: Path) -> None:
    long = "x" * 500
    first = Event(
        *("", 0, "n", "r", "over_limit", False, "user", "u", "u", long, long, long, long, long, long),
        *({}, 1, 1, 0, 1, 1),
    )
    events = [first._replace(id=f"{number:x}", at_us=number) for number in range(10_000)]
    with Postgres() as server, warm_service(tmp_path, database_url=server.url) as service:
        with closing(Database(server.url)) as database:
            Events(database).write("run", [EventBatch(1, events, [])], 1)
        url = f"{service.url}/api/v1/events?format=csv"
        with httpx.stream("GET", url, headers=service.headers, **OPTIONS) as answer, server.frozen():
            assert answer.status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                answer.read()
    assert "an answer breaks off" in service.log
    assert "Traceback" not in service.log
