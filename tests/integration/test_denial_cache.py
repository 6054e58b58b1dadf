"""Hot keys on real servers: floods of refusals cost hardly a call, and what others give back is seen in time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from headgate import AsyncLimiter, Limiter, Rule
from headgate.rules import Penalties, Snapshot
from headgate.stores.redis.aio import AsyncRedisStore
from headgate.stores.redis.sync import RedisStore
from headgate.testing import FakeClock
from tests.integration.limiters import ALGORITHMS, Open, calm
from tests.integration.test_store_observer import Noted
from tests.topologies import Cluster, SentinelTrio

LIMIT = 3
FLOOD = 200
RULES = {
    "one": [Rule(id="a", quota=calm(LIMIT))],
    "several": [Rule(id="a", quota=calm(LIMIT)), Rule(id="b", quota=calm(LIMIT + 1), dimension="global")],
}


def frozen(url: str) -> tuple[RedisStore, FakeClock, Noted]:
    """A store on which time stands still, so that what is remembered stays."""
    clock, noted = FakeClock(), Noted()
    return RedisStore(f"{url}&remember=1", clock=clock, observer=noted), clock, noted


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_a_flood_costs_a_call(redis_url: str, rules: list[Rule]) -> None:
    store, clock, noted = frozen(redis_url)
    limiter = Limiter(rules, store=store, clock=clock)
    decisions = [limiter.check("alice") for _ in range(FLOOD)]
    assert [decision.allowed for decision in decisions] == [True] * LIMIT + [False] * (FLOOD - LIMIT)
    assert len(noted.calls) == LIMIT + 1
    assert store.denials.hits == FLOOD - LIMIT - 1
    assert decisions[-1] == decisions[LIMIT]
    assert [one.allowed for one in limiter.check_many([*["alice"] * 3, "bob"])] == [False] * 3 + [True]
    clock.advance(1)
    assert not limiter.check("alice")
    assert len(noted.calls) == LIMIT + 3
    store.close()


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_a_flood_of_tasks_costs_a_call(redis_url: str, rules: list[Rule]) -> None:
    async def main() -> tuple[list[bool], int, int]:
        clock, noted = FakeClock(), Noted()
        store = AsyncRedisStore(f"{redis_url}&remember=1", clock=clock, observer=noted)
        limiter = AsyncLimiter(rules, store=store, clock=clock)
        allowed = [(await limiter.check("alice")).allowed for _ in range(FLOOD)]
        allowed += [one.allowed for one in await limiter.check_many(["alice"] * 3)]
        calls = len(noted.calls)
        await limiter.reset("alice")
        if len(rules) == 1:
            assert (await limiter.check("alice")).allowed
        await store.close()
        return allowed, calls, store.denials.hits

    allowed, calls, hits = asyncio.run(main())
    assert allowed == [True] * LIMIT + [False] * (FLOOD - LIMIT + 3)
    assert calls == LIMIT + 1
    assert hits == FLOOD - LIMIT + 2


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_check_at_the_announced_wait_is_allowed(redis_url: str, open_limiter: Open, algorithm: str) -> None:
    """By the server's clock, and through what is remembered."""
    limiter = open_limiter(f"5/second {algorithm}", store=redis_url)
    for _ in range(3):
        decision = limiter.check("alice")
        while decision.allowed:
            decision = limiter.check("alice")
        for _ in range(20):
            decision = limiter.check("alice")
        if not decision.allowed:
            assert decision.retry_after is not None
            time.sleep(decision.retry_after)
            assert limiter.check("alice").allowed


def test_what_this_process_gives_back_is_seen_at_once(redis_url: str) -> None:
    store, clock, _ = frozen(redis_url)
    limiter = Limiter([Rule(id="a", quota=calm(LIMIT))], store=store, clock=clock)

    def exhaust() -> Any:
        decision = limiter.check("alice")
        while limiter.check("alice"):
            pass
        assert not limiter.check("alice")
        return decision

    exhaust()
    limiter.reset("alice")
    limiter.give_back(exhaust())
    assert limiter.check("alice")
    limiter.reset("alice")
    reservation = limiter.reserve("alice")
    exhaust()
    reservation.settle(0)
    assert limiter.check("alice")
    store.close()


def test_what_another_process_resets_is_seen_within_a_second(redis_url: str, open_limiter: Open) -> None:
    limiter = open_limiter([Rule(id="a", quota=calm(LIMIT))], store=redis_url)
    other = open_limiter([Rule(id="a", quota=calm(LIMIT))], store=redis_url)
    while limiter.check("alice"):
        pass
    assert not limiter.check("alice")
    other.reset("alice")
    time.sleep(1.0)  # real time is the point
    assert limiter.check("alice").allowed


def test_another_limit_is_seen_at_once(redis_url: str) -> None:
    store, clock, _ = frozen(redis_url)
    one, more = (
        Snapshot([Rule(id="a", quota=calm(limit)), Rule(id="b", quota=calm(9))]) for limit in (LIMIT, LIMIT + 1)
    )
    limiter = Limiter(one, store=store, clock=clock)
    while limiter.check("alice"):
        pass
    assert not limiter.check("alice")
    limiter._engine.holder.swap(more)
    assert limiter.check("alice")
    store.close()


def test_refusals_still_count_as_violations(redis_url: str) -> None:
    store, clock, noted = frozen(redis_url)
    rules = Snapshot([Rule(id="a", quota=calm(LIMIT))], penalties=Penalties(enabled=True, violation_threshold=3))
    limiter = Limiter(rules, store=store, clock=clock)
    reasons = [limiter.check("alice").reason for _ in range(LIMIT + 3)]
    assert reasons[-1] == "penalty"
    assert len(noted.calls) == LIMIT + 3
    assert store.denials.hits == 0
    store.close()


def test_when_the_server_fails_failure_modes_decide(own_server: Any, open_limiter: Open) -> None:
    limiter = open_limiter([Rule(id="a", quota=calm(LIMIT))], store=f"{own_server.url}?timeout=10")
    while limiter.check("alice"):
        pass
    own_server.stop()
    assert limiter.check("bob").reason == "fail_open"
    assert limiter.check("alice").reason == "fail_open"


@pytest.mark.parametrize("topology", [SentinelTrio, Cluster], ids=["sentinel", "cluster"])
def test_floods_cost_a_call_in_every_topology(topology: type[SentinelTrio | Cluster]) -> None:
    """Of several servers, each subject's is asked once."""
    subjects, clock = ("alice", "bob", "carol"), FakeClock()
    rules = [Rule(id="a", quota=calm(LIMIT))]
    with topology() as servers:
        url = f"{servers.url}?timeout=5&remember=1"
        noted = Noted()
        store = RedisStore(url, clock=clock, observer=noted)
        limiter = Limiter(rules, store=store, clock=clock)
        for subject in subjects:
            assert sum(limiter.check(subject).allowed for _ in range(FLOOD)) == LIMIT
        assert store.denials.hits == len(subjects) * (FLOOD - LIMIT - 1)
        assert len(noted.calls) == len(subjects) * (LIMIT + 1)
        limiter.reset("alice")
        assert limiter.check("alice")
        assert not limiter.check("bob")
        store.close()

        async def main() -> tuple[list[int], int]:
            store = AsyncRedisStore(url, clock=clock)
            limiter = AsyncLimiter(rules, store=store, clock=clock)
            await limiter.reset("carol")
            allowed = [sum([(await limiter.check(one)).allowed for _ in range(FLOOD)]) for one in subjects]
            await store.close()
            return allowed, store.denials.hits

        allowed, hits = asyncio.run(main())
        assert allowed == [LIMIT - 1, 0, LIMIT]
        assert hits == sum(FLOOD - admitted - 1 for admitted in allowed)


@pytest.mark.parametrize("rules", [1, 2])
def test_a_leased_limit_is_not_remembered_here(redis_url: str, rules: int) -> None:
    """The leases remember it: for a shorter while, as other nodes give back what they do not use."""
    store, clock, _ = frozen(redis_url)
    leased = [Rule(id=f"{place}", quota=calm(LIMIT), sync="leased") for place in range(rules)]
    limiter, other = (Limiter(leased, store=store, clock=clock) for _ in range(2))
    last = limiter.check("alice")
    while limiter.check("alice"):
        pass
    assert not store.denials.known
    assert not other.check("alice")
    other.give_back(last)
    clock.advance(0.05)
    assert limiter.check("alice")
    store.close()
