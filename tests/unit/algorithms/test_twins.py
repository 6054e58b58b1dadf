"""Where the twins once disagreed, or agreed on what cannot be: each case by itself, found by tests/property."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate import Quota
from headgate.core.check import NEVER, Check, Group, Outcome, Result
from headgate.core.key import key_template
from headgate.core.quota import BUCKETS, MAX_INT, WINDOWS
from headgate.stores.memory import MemoryStore
from headgate.stores.redis.sync import RedisStore
from headgate.testing import FakeClock

START = 1_600_000_000


class Twins:
    """A memory store and a Redis store on one clock. Each question goes to both, and both answers are returned."""

    def __init__(self, url: str) -> None:
        self.clock = FakeClock(START)
        self.redis = RedisStore(url, clock=self.clock)
        self.stores = (MemoryStore(clock=self.clock), self.redis)

    def check(self, quota: Quota, cost: int) -> tuple[Outcome, Outcome]:
        return self._ask(quota, cost, peek=False)

    def peek(self, quota: Quota, cost: int) -> tuple[Outcome, Outcome]:
        return self._ask(quota, cost, peek=True)

    def _ask(self, quota: Quota, cost: int, *, peek: bool) -> tuple[Outcome, Outcome]:
        group = Group((Check("rule", key_template("user", "rule", quota.algorithm), "alice", quota, cost),), peek)
        memory, redis = (store.check([group])[0] for store in self.stores)
        assert isinstance(memory, Result)
        assert isinstance(redis, Result)
        return memory.outcomes[0], redis.outcomes[0]

    def move(self, us: int) -> None:
        self.clock.advance(us / 1_000_000)


@pytest.fixture
def twins(redis_url: str) -> Iterator[Twins]:
    twins = Twins(redis_url)
    yield twins
    twins.redis.close()


@pytest.mark.parametrize("cost", [0, 2])
def test_a_log_that_is_over_is_forgotten_by_both_or_by_neither(twins: Twins, cost: int) -> None:
    """A check that charges nothing, because it looks or can never fit, met a log of which all has left."""
    quota = Quota(1, 1, algorithm="sliding_window_log")
    twins.check(quota, 1)
    twins.move(1_000_000)
    twins.check(quota, cost)
    twins.move(-1)
    memory, redis = twins.check(quota, 1)
    assert memory == redis


def test_a_log_of_the_largest_limit_counts_what_has_to_leave(twins: Twins) -> None:
    """What is there and what is asked for are above 2^53 together."""
    quota = Quota(MAX_INT, 0.001, algorithm="sliding_window_log")
    twins.check(quota, 1)
    twins.move(1)
    twins.check(quota, 1)
    outcome = Outcome(1_000, MAX_INT - 2, 1_000)
    assert twins.peek(quota, MAX_INT) == (outcome, outcome)


def test_a_leaky_bucket_of_the_largest_limit_counts_what_has_to_leak(twins: Twins) -> None:
    """The level and what is asked for are above 2^53 together."""
    quota = Quota(MAX_INT, 366 * 86_400, algorithm="leaky_bucket")
    twins.check(quota, 570)  # of which some 285 leak in a microsecond
    outcome = Outcome(3, MAX_INT - 570, 3)
    assert twins.peek(quota, MAX_INT) == (outcome, outcome)


def test_a_refusal_by_a_very_fast_gcra_changes_nothing(twins: Twins) -> None:
    """All of its burst comes back within a microsecond, so that it is full and not in use at the same time."""
    quota = Quota(2_931, 0.00141, burst=2, algorithm="gcra")
    twins.check(quota, 1)
    twins.move(8)
    never = Outcome(NEVER, 2, 0)
    assert twins.check(quota, 3) == (never, never)
    twins.move(-1)
    full = Outcome(0, 2, 0)
    assert twins.peek(quota, 1) == (full, full)


def test_a_gcra_that_takes_a_century_to_refill_waits_exactly_in_the_next_one(twins: Twins) -> None:
    """The time and two refills are above 2^53 together."""
    quota = Quota(7, 1, burst=22_075_199_999, algorithm="gcra")
    twins.move(3_300_000_000 * 1_000_000)
    twins.check(quota, 1)
    twins.check(quota, quota.burst - 1)
    refused = Outcome(3_153_599_999_857_143, 0, 3_153_599_999_857_143)
    assert twins.peek(quota, quota.burst) == (refused, refused)


def test_a_log_that_is_partly_over_has_its_future_moved_to_now_as_well(twins: Twins) -> None:
    """One entry has left, and another, of a coarser log before the quota changed, is stamped ahead of time."""
    fine = Quota(16_383, 0.001, algorithm="sliding_window_log")
    coarse = Quota(26_212, 1, algorithm="sliding_window_log")
    twins.check(fine, 4)
    twins.move(1_000)
    twins.check(coarse, 16_382)
    charged = Outcome(0, 0, 1_000)
    assert twins.check(fine, 1) == (charged, charged)
    refused = Outcome(1_000, 0, 1_000)
    assert twins.peek(fine, 1) == (refused, refused)


@pytest.mark.parametrize("costs", [(1, 1, 1, 1), (3, 3, 3, 3), (1, 0, 4, 1), (1, 1, 1, 6)])
@pytest.mark.parametrize("algorithm", WINDOWS + BUCKETS)
def test_checks_under_one_quota_are_decided_in_one_call(twins: Twins, algorithm: str, costs: tuple[int, ...]) -> None:
    quota, where = Quota(5, 60, algorithm=algorithm), key_template("user", "rule", algorithm)  # type: ignore[arg-type]
    groups = [
        Group((Check("rule", where, subject, quota, cost),))
        for subject, cost in zip(["alice", "bob", "alice", "carol"], costs, strict=True)
    ]
    memory, redis = (store.check(groups) for store in twins.stores)
    assert memory == redis
    remaining = [result.outcomes[0].remaining for result in redis if isinstance(result, Result)]
    assert remaining[:2] == [5 - costs[0], 5 - costs[1]]
