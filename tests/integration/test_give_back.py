"""Charges that are given back because something else refused the request: as if they had never been made."""

from __future__ import annotations

import asyncio
import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headgate import AsyncLimiter, Decision, Limiter, Rule
from headgate.core.decision_factory import decision_after_refund
from headgate.http.request_limiter import resolve
from headgate.limiter.batch import RequestPart
from tests.topologies import Cluster

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
            await resolve(limiter.decide(FACTS))
            decision = await resolve(limiter.decide(FACTS))
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
        assert "could not correct the charge" in caplog.text
        await gone.close()

    asyncio.run(scenario())


async def the_same_twice(limiter: AsyncLimiter) -> list[Decision]:
    return [await limiter.check("bob")] * 2


async def a_repetition(limiter: AsyncLimiter) -> list[Decision]:
    return [await limiter.check("bob", idempotency_key="k"), await limiter.check("bob", idempotency_key="k")]


async def a_repetition_in_a_batch(limiter: AsyncLimiter) -> list[Decision]:
    return await limiter.check_many([{"user": "bob", "idempotency_key": "k"}] * 2)


async def a_peek(limiter: AsyncLimiter) -> list[Decision]:
    return [await limiter.check("bob"), await limiter.peek("bob")]


async def a_copy(limiter: AsyncLimiter) -> list[Decision]:
    decision = await limiter.check("bob")
    return [decision, copy.copy(decision), pickle.loads(pickle.dumps(decision))]


async def what_is_told_after_it_was_given_back(limiter: AsyncLimiter) -> list[Decision]:
    decision = await limiter.check("bob")
    return [decision, decision_after_refund(decision)]


async def parts_that_share_a_limit(limiter: AsyncLimiter) -> list[Decision]:
    await limiter.check("bob")
    refused = (
        await resolve(limiter.decide_together([RequestPart({"user": "bob"}), RequestPart({"user": "carol"}, cost=6)]))
    ).parts
    return [
        refused[0],
        *(
            await resolve(limiter.decide_together([RequestPart({"user": "bob"}), RequestPart({"user": "bob"}, cost=2)]))
        ).parts,
    ]


CHARGED_ONCE = [
    the_same_twice,
    a_repetition,
    a_repetition_in_a_batch,
    a_peek,
    a_copy,
    what_is_told_after_it_was_given_back,
]


@pytest.fixture(params=["memory", "redis", "cluster"])
def any_store(request: pytest.FixtureRequest, redis_url: str) -> str:
    if request.param != "cluster":
        return "memory://" if request.param == "memory" else redis_url
    cluster: Cluster = request.getfixturevalue("cluster")
    cluster.empty()
    return cluster.url


@pytest.mark.parametrize("method", ["give_back", "correct"])
@pytest.mark.parametrize("decide", CHARGED_ONCE)
@pytest.mark.parametrize("shards", [1, 2])
def test_a_decision_gives_back_once_and_only_what_it_charged(
    any_store: str, decide: Any, method: str, shards: int
) -> None:
    async def scenario() -> None:
        rules = [Rule(id="a", quota="10/hour fixed_window", dimension="user", shards=shards)]
        async with AsyncLimiter(rules, store=any_store) as limiter:
            await resolve(limiter.decide({"user": "bob"}, cost=4))
            for decision in await decide(_ByUser(limiter)):
                await (limiter.give_back(decision) if method == "give_back" else limiter.correct(decision, 0))
            assert (await limiter.peek(user="bob")).remaining == 6

    asyncio.run(scenario())


def test_the_parts_of_one_request_are_not_given_back(any_store: str) -> None:
    async def scenario() -> None:
        async with AsyncLimiter([Rule(id="a", quota="5/hour", dimension="user")], store=any_store) as limiter:
            for decision in await parts_that_share_a_limit(_ByUser(limiter)):  # type: ignore[arg-type]
                await limiter.give_back(decision)
            assert (await limiter.peek(user="bob")).remaining == 2

    asyncio.run(scenario())


def test_no_quota_comes_of_giving_back_what_was_not_charged(store: str) -> None:
    with Limiter("10/hour fixed_window", store=store) as limiter:
        admitted = 0
        for _ in range(100):
            admitted += limiter.check("alice").allowed
            limiter.give_back(limiter.peek("alice", cost=0))
            limiter.correct(limiter.peek("alice"), 0)
            limiter.give_back(limiter.check("alice", cost=10, idempotency_key="k"))
        assert admitted == 10


def test_of_many_threads_that_give_a_decision_back_one_does() -> None:
    with Limiter("1000/hour fixed_window") as limiter, ThreadPoolExecutor(8) as threads:
        limiter.check("alice", cost=500)
        for _ in range(50):
            decision = limiter.check("alice")
            list(threads.map(lambda _, decision=decision: limiter.give_back(decision), range(8)))
        assert limiter.peek("alice").remaining == 500


class _ByUser:
    """An AsyncLimiter of rules, asked by subject."""

    def __init__(self, limiter: AsyncLimiter) -> None:
        self._limiter = limiter
        self.check_many, self.decide_together = limiter.check_many, limiter.decide_together

    async def check(self, user: str, **options: Any) -> Decision:
        return await self._limiter.check(user=user, **options)

    async def peek(self, user: str) -> Decision:
        return await self._limiter.peek(user=user)
