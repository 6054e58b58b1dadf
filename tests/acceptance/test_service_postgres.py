"""The whole service when its PostgreSQL is gone, or there and silent: checks go on, and nobody waits long for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from headgate.service.protos import rate_limiter_pb2 as rl
from headgate.service.protos import rls_pb2 as rls
from tests.acceptance.test_service_faults import code_of
from tests.postgres import Postgres
from tests.service import Service, warm_service
from tests.waiting import until

DATA_TOKEN = "the-data-plane's-own-token"
FRESH_SECONDS = 2.0
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


@pytest.mark.parametrize("away", [stopped, Postgres.frozen])
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
        assert service.log.count("tokens are looked up again") == 1
        assert "a request failed" not in service.log
        until(lambda: httpx.delete(f"{service.url}/api/v1/tokens/{number}", headers=service.headers).is_success)
        assert checked(service, known) == 401
