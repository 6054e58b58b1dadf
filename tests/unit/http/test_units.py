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
    [("tokens=150", 850, "requests=1, tokens=150"), ("requests=1, tokens=20", 980, "requests=1, tokens=20")],
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


def reporting(*lines: str, status: int = 200) -> Any:
    async def complete(_: Request) -> Response:
        response = PlainTextResponse("ok", status)
        for line in lines:
            response.headers.append("x-used", line)
        return response

    return complete


def test_the_lines_of_a_charge_header_count_together() -> None:
    client, limiter = client_of(
        reporting("requests=2", "tokens=150"), cost={"requests": 1, "tokens": 400}, charge_header="x-used"
    )
    response = client.get()
    assert "x-used" not in response.headers
    assert response.headers["x-ratelimit-cost"] == "requests=2, tokens=150"
    assert left(limiter) == {"requests": 1, "tokens": 850}


@pytest.mark.parametrize(
    ("cost", "told", "shown", "expected"),
    [
        (1, "tokens=50", None, {"requests": 2, "tokens": 1_000}),
        ({"requests": 1}, "requests=2, tokens=50", "requests=2", {"requests": 1, "tokens": 1_000}),
        ({"tokens": 5}, "7", "tokens=5", {"requests": 3, "tokens": 995}),
    ],
)
def test_a_unit_that_the_cost_does_not_name_is_logged_once_and_not_shown_as_charged(
    cost: Any, told: str, shown: str | None, expected: dict[str, int], caplog: Any
) -> None:
    client, limiter = client_of(reporting(told), cost=cost, charge_header="x-used")
    assert client.get().headers.get("x-ratelimit-cost") == shown
    assert left(limiter) == expected
    client.get()
    (record,) = [record for record in caplog.records if "charge header" in record.getMessage()]
    assert ("requests" if told == "7" else "tokens") in record.getMessage()


def test_an_exempt_request_may_report_any_unit(caplog: Any) -> None:
    client, limiter = client_of(reporting("tokens=50"), exempt_when=lambda _: True, charge_header="x-used")
    assert "x-used" not in client.get().headers
    assert "charge header" not in caplog.text
    assert left(limiter) == {"requests": 3, "tokens": 1_000}


@pytest.mark.parametrize(
    ("status", "expected", "shown"),
    [
        (200, {"requests": 2, "tokens": 970}, "requests=1, tokens=30"),
        (500, {"requests": 3, "tokens": 1_000}, "requests=1, tokens=100"),
    ],
)
def test_what_deduct_when_refunds_is_not_charged_by_the_charge_header(
    status: int, expected: dict[str, int], shown: str
) -> None:
    client, limiter = client_of(
        reporting("tokens=30", status=status),
        cost={"requests": 1, "tokens": 100},
        charge_header="x-used",
        deduct_when=lambda response: response.status_code < 400,
    )
    assert client.get().headers["x-ratelimit-cost"] == shown
    assert left(limiter) == expected


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
