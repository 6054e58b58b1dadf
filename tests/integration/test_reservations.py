"""Reservations on real servers: exact, whoever settles and however many do so at a time."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from headgate import AsyncLimiter, Limiter, Rule
from headgate.core.quota import BUCKETS
from headgate.testing import FakeClock
from tests.integration.hammer import rules_of
from tests.integration.limiters import ALGORITHMS, Open, calm, calm_window
from tests.integration.workers import Workers
from tests.servers import Server

PROCESSES = 4
LIMIT = 1_000_000


@pytest.fixture(scope="module")
def settlers() -> Iterator[Workers]:
    settlers = Workers("tests.integration.settler", PROCESSES)
    yield settlers
    settlers.close()


def expect(algorithm: str, remaining: int, ideal: int) -> None:
    """Windows are exact. A bucket may keep what flowed in meanwhile, which is a few units, but gives none too many."""
    assert ideal - (5 if algorithm in BUCKETS else 0) <= remaining <= ideal


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_of_several_processes_that_settle_the_same_one_wins(settlers: Workers, redis_url: str, algorithm: str) -> None:
    rule = {"id": "tokens", "dimension": "user", "limit": LIMIT, "window": calm_window(), "algorithm": algorithm}
    shared: dict[str, Any] = {"url": redis_url, "rules": [rule]}
    with Limiter(rules_of(shared), store=redis_url) as limiter:
        ids = [limiter.reserve("alice", cost=1_000, ttl=3_600).id for _ in range(200)]
        assert limiter.peek("alice").remaining == LIMIT - 200_000
        costs = {name: number * 10 for number, name in enumerate(ids)}  # from 0 to 1,990

        settled = settlers.run([shared | {"costs": costs}] * PROCESSES)

        assert sum(settled) == 200
        expect(algorithm, limiter.peek("alice").remaining, LIMIT - sum(costs.values()))


@pytest.mark.parametrize("quota", [*(f"10/hour {algorithm}" for algorithm in ALGORITHMS), "10/calendar month"])
def test_what_a_settlement_gives_back_is_told_even_above_the_limit(redis_url: str, quota: str) -> None:
    for store in ("memory://", redis_url):
        with Limiter(quota, store=store, clock=FakeClock(1_700_000_040)) as limiter:
            more, *others = [limiter.reserve("alice", cost=2) for _ in range(5)]
            assert more.settle(9).surcharged == 7
            assert [other.settle(0).refunded for other in others] == [2, 2, 2, 2]
            assert limiter.peek("alice").remaining == 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_in_the_end_the_count_is_what_it_really_cost(redis_url: str, algorithm: str) -> None:
    """Many tasks reserve, and settle for less or for more, or let an exception give it back."""
    chance = random.Random(7)
    spent = 0

    async def main() -> int:
        nonlocal spent
        rules = [
            Rule(id="user", quota=calm(LIMIT, algorithm)),
            Rule(id="all", quota=calm(LIMIT, algorithm), dimension="global"),
        ]
        async with AsyncLimiter(rules, store=redis_url) as limiter:

            async def task() -> None:
                nonlocal spent
                for _ in range(10):
                    actual = chance.choice([None, 0, chance.randrange(500), chance.randrange(1_500)])
                    with suppress(TypeError):
                        async with await limiter.reserve("alice", cost=500, ttl=3_600) as reservation:
                            assert reservation
                            await asyncio.sleep(0)
                            spent += actual  # type: ignore[operator]  # None is what goes wrong
                            assert await reservation.settle(actual)

            await asyncio.gather(*(task() for _ in range(32)))
            left = await limiter.peek("alice")
            assert {status.remaining for status in left.limits} == {left.remaining}
            return left.remaining

    expect(algorithm, asyncio.run(main()), LIMIT - spent)
    assert spent > 10_000


def test_one_that_is_never_settled_expires_by_the_servers_clock(open_limiter: Open, redis_url: str) -> None:
    limiter = open_limiter(calm(10), store=redis_url)
    with Limiter(calm(10), store=redis_url) as crashed:
        assert crashed.reserve("alice", cost=10, ttl=0.05)
    assert not limiter.check("alice")
    time.sleep(0.06)  # a real time to live is the point
    assert not limiter.settle("some-other-one", 1)  # whoever reserves or settles finds what has expired
    assert limiter.check("alice", cost=10)


def test_nothing_is_left_behind_for_ever(redis_server: Server, redis_url: str) -> None:
    with Limiter("1000/minute gcra", store=redis_url) as limiter:
        for _ in range(3):
            limiter.reserve("alice", cost=10, ttl=30)
            limiter.reserve("alice", cost=10, ttl=0.001)
            limiter.reserve("alice", cost=10).settle(3)
            limiter.reserve("alice", cost=10).settle(30)
        with redis_server.client() as client:
            keys = [key.decode() for key in client.scan_iter()]
            lives = {key: client.pttl(key) for key in keys}
    assert all(0 < life < 2 * 3_600_000 for life in lives.values()), lives
    assert {key for key in keys if "reservations" in key} >= {
        "rl:{reservations}:open",
        "rl:{reservations}:records",
    }


def test_what_was_settled_leaves_no_record(redis_server: Server, redis_url: str) -> None:
    with Limiter("1000/minute", store=redis_url) as limiter:
        for _ in range(10):
            assert limiter.reserve("alice", cost=10).settle(3)
    with redis_server.client() as client:
        assert client.keys("rl:{reservations}:*") == []
