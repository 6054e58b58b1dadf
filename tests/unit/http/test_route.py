"""Limits of single routes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate import AsyncLimiter, InvalidCheck, Limiter
from headgate.http.limits import Limits
from headgate.http.route import Ask, RouteLimit, subject_of
from headgate.testing import FakeClock


def test_a_sibling_counts_apart_on_the_same_store_and_clock() -> None:
    clock = FakeClock(1_700_000_000)
    limiter = Limiter("1/minute", clock=clock)
    sibling, twin = limiter.sibling("1/minute", name="other"), limiter.sibling("1/minute", name="other")
    assert limiter.check("alice")
    assert sibling.check("alice")
    assert not twin.check("alice")
    assert sibling.clock is clock


def test_an_async_sibling() -> None:
    async def main() -> list[bool]:
        limiter = AsyncLimiter("1/minute", clock=FakeClock(1_700_000_000))
        sibling = limiter.sibling("1/minute", name="other")
        return [(await one.check("alice")).allowed for one in (limiter, sibling, sibling)]

    assert asyncio.run(main()) == [True, True, False]


def test_a_limit_makes_one_limiter_for_each_name_and_limiter() -> None:
    limit, one, other = RouteLimit("1/minute"), Limiter("1/minute"), Limiter("1/minute")
    assert limit.limiter(one, "a", "1/minute") is limit.limiter(one, "a", "1/minute")
    assert limit.limiter(one, "a", "1/minute") is not limit.limiter(one, "b", "1/minute")
    assert limit.limiter(one, "a", "1/minute") is not limit.limiter(other, "a", "1/minute")


def test_the_limits_of_one_route_have_names_of_their_own() -> None:
    taken: list[str] = []
    limits = [RouteLimit("1/minute"), RouteLimit("1/minute", name="shared"), RouteLimit("1/minute")]
    assert [limit.name_for("/x", taken) for limit in limits] == ["/x", "shared", "/x (2)"]


def test_no_key_can_be_mistaken_for_a_client() -> None:
    limits: Limits[Any] = Limits(Limiter("1/minute"), {"ip": "192.0.2.7"})
    client = subject_of(limits, None)
    assert client not in (subject_of(limits, key) for key in (client, "192.0.2.7", "ip:192.0.2.7", ""))
    assert subject_of(limits, 7) == subject_of(limits, "7")
    for key in (True, 1.5, b"x"):
        with pytest.raises(InvalidCheck, match="key: must return a string"):
            subject_of(limits, key)  # type: ignore[arg-type]


def ask_both(limit: RouteLimit) -> list[Any]:
    async def call(function: Any) -> Any:
        return function(None)

    async def ask() -> Any:
        return await Ask.of_async(limit, call)

    return [lambda: Ask.of(limit, lambda function: function(None)), lambda: asyncio.run(ask())]


@pytest.mark.parametrize("cost", [{"tokens": 5}, {"tokens": 5, "bytes": 1}])
def test_a_cost_without_requests_does_not_turn_a_limit_off(cost: dict[str, int]) -> None:
    for ask in ask_both(RouteLimit("1/minute", cost=lambda _: cost)):
        with pytest.raises(InvalidCheck, match=r"cost: this limit counts 'requests', but .* the units 'tokens'"):
            ask()


@pytest.mark.parametrize("cost", [2, {"requests": 2}, {"requests": 2, "tokens": 5}])
def test_a_costs_function_may_return_a_number_or_a_mapping_with_requests(cost: Any) -> None:
    for ask in ask_both(RouteLimit("1/minute", cost=lambda _: cost)):
        assert ask().cost == cost
