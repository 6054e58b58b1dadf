"""Charges that are given back because something else refused the request: as if they had never been made."""

from __future__ import annotations

import asyncio

import pytest

from headgate import AsyncLimiter, Rule
from headgate.http.entrance import awaited

QUOTA = "5/hour"
RULES = [
    Rule(id="a", quota=QUOTA, cost=2),
    Rule(id="b", quota="9/hour gcra", dimension="ip"),
    Rule(id="shadow", quota="1/hour", action="log_only"),
]
FACTS = {"user": "alice", "ip": "192.0.2.7"}


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, redis_url: str) -> str:
    return "memory://" if request.param == "memory" else redis_url


@pytest.mark.parametrize("algorithm", ["", " gcra", " token_bucket", " sliding_window_log", " fixed_window"])
def test_of_one_limit(store: str, algorithm: str) -> None:
    async def scenario() -> None:
        async with AsyncLimiter(QUOTA + algorithm, store=store) as limiter:
            await limiter.check("alice")
            decision = await limiter.check("alice", cost=3)
            assert decision.remaining == 1
            await limiter.give_back(decision)
            assert (await limiter.peek("alice")).remaining == 4

    asyncio.run(scenario())


def test_of_several_rules_with_costs_of_their_own_and_a_shadow_that_was_not_charged(store: str) -> None:
    async def scenario() -> None:
        async with AsyncLimiter(RULES, store=store) as limiter:
            await awaited(limiter.decide(FACTS))
            decision = await awaited(limiter.decide(FACTS))
            assert decision.reason == "shadow"
            await limiter.give_back(decision)
            left = {
                status.rule: status.remaining for status in (await limiter.peek(user="alice", ip="192.0.2.7")).limits
            }
            assert left == {"a": 3, "b": 8, "shadow": 0}

    asyncio.run(scenario())


def test_what_charged_nothing_gives_nothing_back(store: str) -> None:
    async def scenario() -> None:
        async with AsyncLimiter(QUOTA, store=store) as limiter:
            await limiter.check("alice", cost=4)
            await limiter.give_back(await limiter.check("alice", cost=2))
            await limiter.give_back(await limiter.check("alice", cost=0))
            assert (await limiter.peek("alice")).remaining == 1
        async with AsyncLimiter([], store=store) as without_rules:
            await without_rules.give_back(await without_rules.check("alice"))

    asyncio.run(scenario())


@pytest.mark.parametrize("failure_mode", ["open", "closed", "local"])
def test_a_store_that_is_away_raises_nothing(failure_mode: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        gone = AsyncLimiter(QUOTA, store="redis://127.0.0.1:1/0?timeout=5", failure_mode=failure_mode)  # type: ignore[arg-type]
        await gone.give_back(await gone.check("alice"))
        assert "given back" not in caplog.text  # it did not charge
        await gone.give_back(await AsyncLimiter(QUOTA).check("alice"))
        assert "was not corrected" in caplog.text
        await gone.close()

    asyncio.run(scenario())
