"""Units in middleware: a cost by units, reservations of a request, charge headers, and what clients are told."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from headgate import AsyncLimiter, Rule
from headgate.http.asgi import RateLimitMiddleware
from headgate.http.middleware_options import charge_of
from headgate.testing import FakeClock

RULES = [
    Rule(id="calls", quota="3/minute fixed_window", dimension="ip"),
    Rule(id="tokens", quota="1000/minute fixed_window", dimension="ip", unit="tokens"),
]
BOTH = {"requests": 1, "tokens": 1}


class Client:
    """Gets an app's only page."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def get(self, headers: dict[str, str] | None = None) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.get("/", headers=headers)

        return asyncio.run(ask())


def client_of(endpoint: Any, **options: Any) -> tuple[Client, AsyncLimiter]:
    limiter = AsyncLimiter(RULES, clock=FakeClock(1_000_020.0))
    app = Starlette(routes=[Route("/", endpoint)])
    return Client(RateLimitMiddleware(app, limiter=limiter, **options)), limiter


def left(limiter: AsyncLimiter) -> dict[str, int]:
    decision = asyncio.run(limiter.peek(ip="127.0.0.1", cost=BOTH))
    return {status.unit: status.remaining for status in decision.limits}


async def plain(_: Request) -> Response:
    return PlainTextResponse("ok")


def test_a_cost_function_may_return_units_and_clients_are_told_of_them() -> None:
    client, limiter = client_of(plain, cost=lambda request: {"requests": 1, "tokens": int(request.header("x-n"))})
    response = client.get(headers={"x-n": "400"})
    assert response.headers["x-ratelimit-cost"] == "requests=1, tokens=400"
    assert response.headers["ratelimit-policy"] == '"calls";q=3;w=60, "tokens";q=1000;w=60;qu="tokens"'
    assert response.headers["ratelimit"] == '"calls";r=2;t=60, "tokens";r=600;t=60'
    refused = client.get(headers={"x-n": "601"})
    assert refused.status_code == 429
    assert refused.json()["violated-policies"] == ["tokens"]
    assert left(limiter) == {"requests": 2, "tokens": 600}


def test_a_handler_reserves_tokens_on_a_route_that_has_a_request_limit() -> None:
    async def complete(request: Request) -> Response:
        async with await request.state.headgate.reserve(tokens=400) as reservation:
            if not reservation:
                return PlainTextResponse("too many tokens", 429)
            await reservation.settle(tokens=150)
            return PlainTextResponse("ok")

    client, limiter = client_of(complete)
    assert [client.get().status_code for _ in range(4)] == [200, 200, 200, 429]
    assert left(limiter) == {"requests": 0, "tokens": 550}


@pytest.mark.parametrize(
    ("told", "tokens", "cost"),
    [("tokens=150", 850, "tokens=150"), ("requests=1, tokens=20", 980, "requests=1, tokens=20")],
)
def test_a_charge_header_may_name_units(told: str, tokens: int, cost: str) -> None:
    async def complete(_: Request) -> Response:
        return PlainTextResponse("ok", headers={"x-used": told})

    client, limiter = client_of(complete, cost={"requests": 1, "tokens": 400}, charge_header="X-Used")
    response = client.get()
    assert "x-used" not in response.headers
    assert response.headers["x-ratelimit-cost"] == cost
    assert left(limiter) == {"requests": 2, "tokens": tokens}


def test_a_unit_that_is_named_with_0_is_paid_afterwards_and_refuses_who_is_in_debt() -> None:
    async def complete(_: Request) -> Response:
        return PlainTextResponse("ok", headers={"x-used": "tokens=1200"})

    client, limiter = client_of(complete, cost={"requests": 1, "tokens": 0}, charge_header="x-used")
    assert client.get().status_code == 200
    assert left(limiter) == {"requests": 2, "tokens": 0}
    assert client.get().status_code == 429
    assert left(limiter) == {"requests": 2, "tokens": 0}


@pytest.mark.parametrize(
    ("text", "cost"),
    [("120", 120), ("tokens=5", {"tokens": 5}), ("a=1,b=2", {"a": 1, "b": 2}), ("0", 0)],
)
def test_charge_headers_that_can_be_read(text: str, cost: Any) -> None:
    assert charge_of(text) == cost


@pytest.mark.parametrize("text", ["", "-1", "tokens", "tokens=", "tokens=-1", "=5", "tokens=5,", "a=1,a=2", "1.5"])
def test_charge_headers_that_cannot_be_read_are_logged_and_ignored(text: str, caplog: Any) -> None:
    with caplog.at_level(logging.ERROR, "headgate"):
        assert charge_of(text) is None
    assert "charge header" in caplog.text
