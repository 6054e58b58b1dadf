"""Twins agree: the memory store and the Redis store answer alike, to the same operations at the same times.

Whatever the operations are: sensible or not, with a clock that goes back, quotas that change midway, refunds of what
has long come back. What each answer should be is not the question here (see test_oracle.py and test_laws.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.check import Charge, Check, Group, Idempotency, Outcome, Result
from headgate.core.key import key_template
from headgate.core.quota import MAX_INT, MAX_REFILL_US, Quota
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import Store
from headgate.stores.redis.sync import RedisStore
from headgate.testing import FakeClock
from tests.conftest import TIMEOUT
from tests.property.strategies import (
    BACK,
    EDGE_COSTS,
    EDGE_MOVES,
    SECOND,
    SIX,
    Cost,
    Move,
    costs,
    examples,
    moves,
    quota_of,
    quotas,
    sequences,
    starts,
)
from tests.property.world import World, expect_result
from tests.servers import Server

SUBJECTS = ("alice", "bob")
LAST_US = MAX_INT - MAX_REFILL_US  # from the year 2155 on, the time at which a bucket is full may be above 2^53
_runs = count()


class Operation(NamedTuple):
    """Let time pass, then do something with one subject's six keys, one per algorithm.

    each: a group for every key; alone: the same, each in a call of its own; group: all in one; shadows: the same, with
    every second one a shadow; burst: the same check several times in one call, and once that of the other subject;
    rules: groups in one call that share all keys but one, as those of a rule for all; peek: as each, charging nothing;
    refund: undo a charge; forgetful: the same, without the reset that was told; reset: one key.
    """

    kind: Literal["each", "alone", "group", "shadows", "burst", "rules", "peek", "refund", "forgetful", "reset"]
    move: Move
    subject: str
    cost: Cost
    version: int  # of the quotas
    which: int  # charge, counted from the newest, or key


KINDS = (
    *("each", "each", "alone", "alone", "group", "shadows", "burst", "rules"),
    *("peek", "refund", "refund", "forgetful", "reset"),
)


def operations(*, back: bool = False, edges: bool = False) -> st.SearchStrategy[list[Operation]]:
    """Any operations; with `back`, on a clock that goes back; with `edges`, at the moments that matter most."""
    moved = st.sampled_from(EDGE_MOVES) if edges else moves()
    if back:
        moved = st.one_of(moved, moved, st.sampled_from(BACK))
    cost = st.sampled_from(EDGE_COSTS) if edges else costs()
    fields = (st.sampled_from(KINDS), moved, st.sampled_from(SUBJECTS), cost, st.sampled_from([0, 0, 1, 2]))
    each = st.tuples(*fields, st.integers(0, 5)).map(lambda drawn: Operation(*drawn))
    return sequences(each, 30 if edges else 16)


def versions(shapes: st.SearchStrategy[Quota] | None = None) -> st.SearchStrategy[list[Quota]]:
    """A quota and what it is changed to: anything, or nearly the same."""
    any_quota = quotas() if shapes is None else shapes

    def with_changes(quota: Quota) -> st.SearchStrategy[list[Quota]]:
        near = st.sampled_from([-1, 1]).map(
            lambda change: quota_of(quota.algorithm, max(1, quota.limit // 2 + change), quota.window_us)
        )
        return st.tuples(near | any_quota, near | any_quota).map(lambda others: [quota, *others])

    return any_quota.flatmap(with_changes)


# Few units and short windows: remainders meet their edges all the time.
TIGHT = quotas("gcra", limit=st.integers(1, 8), window=st.sampled_from([1_000, 1_001, 1_008, SECOND]))


class Pair:
    """Two stores on one clock. Raises as soon as they differ."""

    def __init__(self, redis: Store, clock: FakeClock) -> None:
        self.memory, self.redis = MemoryStore(clock=clock), redis
        self.world = World(self.memory, clock)
        self.run = next(_runs)
        self.last = {(name, subject): Outcome(0, 1, 0) for name in SIX for subject in SUBJECTS}
        self.charges: list[Charge] = []

    def begin(self, versions: list[Quota], start: int) -> None:
        """The first charge of every key, one by one: the memory store drops moot keys when it meets new ones only.

        Which of them a store still has is its own affair, until a clock goes back to when they mattered.
        """
        self.world.begin(start)
        self.versions = versions
        groups = [Group((self._check(name, subject, 0, 1),)) for name in SIX for subject in SUBJECTS]
        self._decide(groups)

    def perform(self, operation: Operation) -> None:
        kind, move, subject, cost, version, which = operation
        quota = self.versions[version]
        self.world.move(move.us(quota, self.world.now, self.last[SIX[which], subject].wait_us))
        if self.world.now > LAST_US:
            return
        checks = [
            self._check(name, subject, version, cost.of(self._quota(name, version), self.last[name, subject].remaining))
            for name in SIX
        ]
        match kind:
            case "each" | "peek":
                self._decide([Group((check,), kind == "peek") for check in checks])
            case "alone":
                for check in checks:
                    self._decide([Group((check,))])
            case "group" | "shadows":
                enforced = [kind == "group" or place % 2 == 0 for place in range(len(checks))]
                mixed = (check._replace(enforced=flag) for check, flag in zip(checks, enforced, strict=True))
                self._decide([Group(tuple(mixed))])
            case "burst":
                for check in checks:
                    other = check._replace(subject=SUBJECTS[check.subject == SUBJECTS[0]])
                    self._decide([Group((one,)) for one in (check, check, other, check, check, check)])
            case "rules":
                own, others = checks[which], (*checks[:which], *checks[which + 1 :])
                self._decide([Group((own._replace(subject=one), *others)) for one in (*SUBJECTS, subject, subject)])
            case "refund" | "forgetful" if self.charges:
                charge = self.charges.pop(-1 - which % len(self.charges))
                self._both_refund([charge if kind == "refund" else charge._replace(reset_us=0)])
            case "reset":
                self.memory.reset([checks[which]])
                self.redis.reset([checks[which]])

    def look(self, version: int) -> None:
        """At every key, for one unit and for everything."""
        checks = [self._check(name, subject, version, 1) for name in SIX for subject in SUBJECTS]
        groups = [
            Group((check._replace(cost=cost),), peek=True) for check in checks for cost in (1, check.quota.capacity)
        ]
        self._same(groups)

    def _decide(self, groups: list[Group]) -> None:
        for group, result in zip(groups, self._same(groups), strict=True):
            pairs = list(zip(group.checks, result.outcomes, strict=True))
            refused = any(outcome.wait_us and check.enforced for check, outcome in pairs)
            for check, outcome in pairs:
                self.last[check.quota.algorithm, check.subject] = outcome
                if outcome.wait_us == 0 and check.cost and not refused and not group.peek:
                    self.charges.append(Charge(check, result.now_us, outcome.reset_us))

    def _same(self, groups: list[Group]) -> Iterator[Result]:
        memory, redis = self.memory.check(groups), self.redis.check(groups)
        for group, one, other in zip(groups, memory, redis, strict=True):
            assert one == other, f"memory: {one}\nredis:  {other}\nasked: {group}"
        return map(expect_result, memory)

    def _both_refund(self, charges: list[Charge]) -> None:
        self.memory.refund(charges)
        self.redis.refund(charges)

    def _quota(self, algorithm: str, version: int) -> Quota:
        quota = self.versions[version]
        return quota_of(algorithm, quota.limit, quota.window_us, quota.burst)

    def _check(self, algorithm: str, subject: str, version: int, cost: int) -> Check:
        rule = f"twins {self.run}"
        return Check(rule, key_template("user", rule, algorithm), subject, self._quota(algorithm, version), cost)


@pytest.fixture(scope="module")
def any_redis_store(redis_server: Server, clock: FakeClock) -> Iterator[RedisStore]:
    store = RedisStore(f"{redis_server.url}?{TIMEOUT}", clock=clock)
    yield store
    store.close()


def run(store: RedisStore, clock: FakeClock, versions: list[Quota], start: int, done: list[Operation]) -> None:
    pair = Pair(store, clock)
    pair.begin(versions, start)
    for operation in done:
        pair.perform(operation)
        if pair.world.now > LAST_US:
            break
        pair.look(operation.version)


@examples(200)
@given(versions=versions(), start=starts(), done=operations())
def test_twins_agree(
    redis_store: RedisStore, clock: FakeClock, versions: list[Quota], start: int, done: list[Operation]
) -> None:
    run(redis_store, clock, versions, start, done)


@examples(200)
@given(versions=versions(), start=starts(), done=operations(back=True))
def test_twins_agree_when_the_clock_goes_back(
    redis_store: RedisStore, clock: FakeClock, versions: list[Quota], start: int, done: list[Operation]
) -> None:
    run(redis_store, clock, versions, start, done)


@examples(200)
@given(versions=versions(TIGHT), start=starts(), done=operations(edges=True))
def test_twins_agree_in_tight_quarters(
    redis_store: RedisStore, clock: FakeClock, versions: list[Quota], start: int, done: list[Operation]
) -> None:
    run(redis_store, clock, versions, start, done)


@examples(30)
@given(versions=versions(), start=starts(), done=operations(back=True))
def test_twins_agree_on_every_kind_of_server(
    any_redis_store: RedisStore, clock: FakeClock, versions: list[Quota], start: int, done: list[Operation]
) -> None:
    run(any_redis_store, clock, versions, start, done)


@examples(60)
@given(
    start=starts(),
    done=sequences(
        st.tuples(
            st.sampled_from([0, 1, SECOND, 299 * SECOND, 300 * SECOND - 1, 300 * SECOND]),
            st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.sampled_from(SIX)), max_size=4),
        ),
        16,
    ),
)
def test_twins_agree_on_idempotency(
    redis_store: RedisStore, clock: FakeClock, start: int, done: list[tuple[int, list[tuple[str, str, str]]]]
) -> None:
    memory, run = MemoryStore(clock=clock), next(_runs)
    world = World(memory, clock)
    world.begin(start)
    for us, asked in done:
        world.move(us)
        groups = []
        for key, fingerprint, algorithm in asked:
            place = key_template("user", f"twins {run}", algorithm)
            check = Check("rule", place, "alice", quota_of(algorithm, 5, 60 * SECOND))
            groups.append(Group((check,), idempotency=Idempotency(f"{run}{key}", fingerprint)))
        answers = [[repr(result) for result in store.check(groups)] for store in (memory, redis_store)]
        assert answers[0] == answers[1]
