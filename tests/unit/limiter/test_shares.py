"""Failure mode local: a node's share of a limit, and what it owes the store. No store but memory, and no thread."""

from __future__ import annotations

import pytest

from headgate import Limiter, Quota, Rule
from headgate.core.check import Check
from headgate.core.share import ALONE, Standing
from headgate.limiter.shares import LIVES_SECONDS, OWED, LocalShares
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.unit.limiter.test_failure import ALWAYS, Flaky

ALGORITHMS = (
    "fixed_window",
    "sliding_window_log",
    "sliding_window_counter",
    "token_bucket",
    "leaky_bucket",
    "gcra",
)
LIMIT = 10


def nodes(clock: FakeClock, quota: Quota, count: int) -> list[Limiter]:
    """As many limiters, which have heard of one another, and whose stores are away."""
    limiters = []
    for place in range(count):
        store = Flaky(clock)
        store.failures = ALWAYS
        limiter = Limiter([Rule(id="r", quota=quota)], store=store, clock=clock, failure_mode="local")
        limiter._engine.fallback.shares.set_standing(Standing(count, place), 0)
        limiter._engine.fallback.shares.merges = True
        limiters.append(limiter)
    return limiters


def owed(limiter: Limiter) -> list[tuple[str, int]]:
    engine = limiter._engine
    return [(check.subject, check.cost) for check in engine.fallback.shares.take_owed(engine.fallback.local)]


def admitted(limiter: Limiter, tries: int = 2 * LIMIT) -> int:
    return sum(limiter.check("alice").allowed for _ in range(tries))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_nodes_together_admit_the_limit(clock: FakeClock, algorithm: str, count: int) -> None:
    quota = Quota(LIMIT, 60, algorithm=algorithm)  # type: ignore[arg-type]
    assert sum(map(admitted, nodes(clock, quota, count))) == LIMIT


def test_more_nodes_than_the_limit_has_units(clock: FakeClock) -> None:
    limiters = nodes(clock, Quota(2, 60, algorithm="fixed_window"), 5)
    assert [admitted(limiter) for limiter in limiters] == [1, 1, 0, 0, 0]
    refused = limiters[4].check("bob")
    assert (refused.allowed, refused.reason, refused.rule, refused.retry_after) == (False, "local_fallback", "r", 1.0)


def test_the_decision_has_the_figures_of_the_share(clock: FakeClock) -> None:
    (limiter, _, _) = nodes(clock, Quota(LIMIT, 60, algorithm="fixed_window"), 3)
    decision = limiter.check("alice")
    assert (decision.limit, decision.remaining, decision.reason) == (4, 3, "local_fallback")


def test_what_is_too_large_for_the_share_alone_may_pass_later(clock: FakeClock) -> None:
    (limiter, _, _) = nodes(clock, Quota(LIMIT, 60, algorithm="fixed_window"), 3)
    assert limiter.check("alice", cost=5).retry_after == 1.0
    assert limiter.check("alice", cost=LIMIT + 1).retry_after is None


def test_more_nodes_are_believed_at_once_and_fewer_later() -> None:
    shares = LocalShares()
    assert shares.standing == ALONE
    shares.set_standing(Standing(3, 1), 0.0)
    shares.set_standing(Standing(1, 0), 1.0)
    shares.set_standing(Standing(2, 0), 1.0 + LIVES_SECONDS / 2)
    assert shares.standing == Standing(3, 1)
    shares.set_standing(Standing(2, 0), 1.0 + LIVES_SECONDS)
    assert shares.standing == Standing(2, 0)
    shares.set_standing(Standing(5, 4), 20.0)
    assert shares.standing == Standing(5, 4)


def test_who_is_missed_for_a_moment_is_not_given_up() -> None:
    shares = LocalShares()
    for now, count in ((0.0, 3), (1.0, 1), (2.0, 3), (10.5, 1), (11.5, 1)):
        shares.set_standing(Standing(count, 0), now)
    assert shares.standing == Standing(3, 0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_was_admitted_is_owed_once(clock: FakeClock, algorithm: str) -> None:
    (limiter,) = nodes(clock, Quota(LIMIT, 60, algorithm=algorithm), 1)  # type: ignore[arg-type]
    assert admitted(limiter, 4) == 4
    assert limiter.check("bob", cost=2).allowed
    limiter.peek("carol")
    assert sorted(owed(limiter)) == [("alice", 4), ("bob", 2)]
    assert owed(limiter) == []
    limiter.check("alice")
    assert owed(limiter) == [("alice", 1)]  # and not what is known already, which still counts here


def test_what_no_longer_counts_is_not_owed(clock: FakeClock) -> None:
    (limiter,) = nodes(clock, Quota(LIMIT, 60, algorithm="token_bucket"), 1)
    admitted(limiter, 4)
    clock.advance(12)  # two have come back
    assert owed(limiter) == [("alice", 2)]
    admitted(limiter, 1)
    clock.advance(60)
    assert owed(limiter) == []


def test_what_could_not_be_charged_is_still_owed(clock: FakeClock) -> None:
    (limiter,) = nodes(clock, Quota(LIMIT, 60, algorithm="fixed_window"), 1)
    engine = limiter._engine
    admitted(limiter, 4)
    engine.fallback.shares.keep_owed(engine.fallback.shares.take_owed(engine.fallback.local))
    admitted(limiter, 1)
    assert owed(limiter) == [("alice", 5)]


def test_a_reset_is_forgotten_here_too(clock: FakeClock) -> None:
    (limiter,) = nodes(clock, Quota(LIMIT, 60, algorithm="fixed_window"), 1)
    admitted(limiter)
    limiter.reset("alice")
    assert owed(limiter) == []


def test_what_is_remembered_is_bounded(clock: FakeClock) -> None:
    shares, store, quota = LocalShares(), MemoryStore(clock=clock), Quota(LIMIT, 60, algorithm="fixed_window")
    shares.keep_owed([Check("r", "s", str(number), quota) for number in range(OWED + 10)])
    store.adjust((), [Check("r", "s", str(number), quota) for number in range(OWED + 10)])
    assert len(shares.take_owed(store)) == OWED
