"""Slots against an oracle: a plain list of what is held, gone through again for every question. In memory and on Redis.

The oracle knows one subject under one rule, beside a rate that is charged in the same step.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.check import NEVER, Charge, Check, Group, Outcome
from headgate.core.key import key_template
from headgate.core.quota import CONCURRENCY, Quota
from headgate.core.slot import new_slot
from headgate.stores.memory import MemoryStore
from headgate.stores.redis.sync import RedisStore
from headgate.testing import FakeClock
from tests.property.strategies import examples, sequences, starts
from tests.property.world import World, expect_result

SECOND = 1_000_000
_runs = count()


class Held(NamedTuple):
    """A slot in the oracle's list."""

    slot: str
    cost: int
    ttl: int
    since: int  # when it was taken or last renewed

    @property
    def expires(self) -> int:
        return self.since + self.ttl


class Oracle:
    """What a store should answer. A slot from the future, by a clock that went back, was taken now."""

    def __init__(self) -> None:
        self.held: list[Held] = []

    def live(self, now: int) -> list[Held]:
        return [one for one in self.held if one.expires > now]

    def acquire(self, now: int, quota: Quota, cost: int, slot: str, *, other_fits: bool = True) -> Outcome:
        live = self.live(now)
        used = sum(one.cost for one in live)
        if cost > quota.limit:
            wait = NEVER
        elif cost == 0 or used + cost <= quota.limit:
            wait = 0
        else:
            left = sorted(live, key=lambda one: one.expires)
            while used + cost > quota.limit:
                used -= left[0].cost
                wait = left.pop(0).expires - now
        if wait == 0 and cost and other_fits:
            self.held.append(Held(slot, cost, quota.window_us, now))
        return Outcome(wait, *self.figures(now, quota))

    def figures(self, now: int, quota: Quota) -> tuple[int, int]:
        live = self.live(now)
        remaining = max(0, quota.limit - sum(one.cost for one in live))
        return remaining, max((one.expires - now for one in live), default=0)

    def release(self, now: int, slot: str) -> bool:
        found = [one for one in self.live(now) if one.slot == slot]
        self.held = [one for one in self.held if one.slot != slot]
        return bool(found)

    def renew(self, now: int, slot: str) -> bool:
        found = [one for one in self.live(now) if one.slot == slot]
        self.held = [one._replace(since=now) if one in found else one for one in self.held]
        return bool(found)


class Operation(NamedTuple):
    """Let time pass, then do something. `which` is a slot, counted from the newest; or one that never was."""

    kind: str  # one of KINDS
    us: int
    cost: int
    version: int  # of the quota
    which: int


KINDS = ("acquire", "acquire", "acquire", "beside", "release", "release", "renew", "renew", "peek", "refund", "reset")
MOVES = (0, 0, 1, 1, SECOND - 1, SECOND, SECOND + 1, 5 * SECOND, 100 * SECOND)


def operations(*, back: bool = False) -> st.SearchStrategy[list[Operation]]:
    moves = (*MOVES, -1, -SECOND, -7 * SECOND) if back else MOVES
    drawn = st.tuples(
        st.sampled_from(KINDS), st.sampled_from(moves), st.integers(0, 4), st.integers(0, 2), st.integers(0, 5)
    )
    return sequences(drawn.map(lambda values: Operation(*values)), 40)


quotas = st.lists(
    st.builds(
        lambda limit, ttl: Quota(limit, ttl=ttl / SECOND, algorithm=CONCURRENCY),
        st.integers(1, 6),
        st.sampled_from([SECOND, 2 * SECOND, 10 * SECOND]),
    ),
    min_size=3,
    max_size=3,
)


class Trio:
    """Both stores and, while the clock goes forward, the oracle: all on one clock."""

    def __init__(self, redis: RedisStore, clock: FakeClock, quotas: list[Quota], start: int, *, back: bool) -> None:
        self.stores = (MemoryStore(clock=clock), redis)
        self.world = World(self.stores[0], clock)
        self.world.begin(start)
        self.quotas, self.rule = quotas, f"slots {next(_runs)}"
        self.oracle = None if back else Oracle()
        self.taken: list[Check] = []
        self.rate = self._check("rate", Quota(3, "1s", algorithm="fixed_window"), 1)
        # Both keys, one by one: the memory store drops moot keys when it meets new ones only. Which of them a store
        # still has is its own affair, until a clock goes back to when they mattered.
        first = self._check("slots", quotas[0], 1)._replace(slot=new_slot())
        for check in (self.rate, first):
            self._decide(Group((check,)))
        self._both("release_slots", first)

    def perform(self, operation: Operation) -> None:
        kind, us, cost, version, which = operation
        self.world.move(us)
        now, quota = self.world.now, self.quotas[version]
        check = self._check("slots", quota, cost)._replace(slot=new_slot())
        known = self.taken[-1 - which % len(self.taken)] if self.taken and which < 5 else check
        match kind:
            case "acquire":
                (outcome,) = self._decide(Group((check,)))
                self._expect(outcome, lambda oracle: oracle.acquire(now, quota, cost, check.slot))
                self.taken += [check] if cost and outcome.wait_us == 0 else []
            case "beside":
                outcome, rate = self._decide(Group((check, self.rate._replace(slot=check.slot))))
                fits = rate.wait_us == 0
                self._expect(outcome, lambda oracle: oracle.acquire(now, quota, cost, check.slot, other_fits=fits))
                if outcome.wait_us:
                    before = self._decide(Group((self.rate,), peek=True))[0].remaining
                    assert before == rate.remaining, "a refusal for lack of a slot was charged to the rate"
                self.taken += [check] if cost and outcome.wait_us == 0 and fits else []
            case "release":
                self._expect(self._both("release_slots", known), lambda oracle: oracle.release(now, known.slot))
            case "renew":
                self._expect(self._both("renew_slots", known), lambda oracle: oracle.renew(now, known.slot))
            case "refund":
                for store in self.stores:
                    store.refund([Charge(known, now, 0)])
                if self.oracle is not None:
                    self.oracle.release(now, known.slot)
            case "reset" if which == 0:
                for store in self.stores:
                    store.reset([check])
                if self.oracle is not None:
                    self.oracle.held.clear()
        for look in self.quotas:
            (looked,) = self._decide(Group((self._check("slots", look, 1),), peek=True))
            self._expect(tuple(looked[1:]), lambda oracle, look=look: oracle.figures(self.world.now, look))

    def _check(self, name: str, quota: Quota, cost: int) -> Check:
        return Check(name, key_template("user", f"{self.rule} {name}", quota.algorithm), "alice", quota, cost)

    def _decide(self, group: Group) -> tuple[Outcome, ...]:
        memory, redis = (expect_result(store.check([group])[0]) for store in self.stores)
        assert memory == redis, f"memory: {memory}\nredis:  {redis}\nasked: {group}"
        return memory.outcomes

    def _both(self, verb: str, check: Check) -> bool:
        (memory,), (redis,) = (getattr(store, verb)([check]) for store in self.stores)
        assert memory == redis, f"{verb}: memory {memory}, redis {redis}"
        held: bool = memory
        return held

    def _expect(self, answered: object, by_oracle: object) -> None:
        if self.oracle is not None:
            assert callable(by_oracle)
            expected = by_oracle(self.oracle)
            assert answered == expected, f"answered {answered}, by the oracle {expected}"


@examples(150)
@given(quotas=quotas, start=starts(), done=operations())
def test_slots_are_as_the_oracle_says(
    redis_store: RedisStore, clock: FakeClock, quotas: list[Quota], start: int, done: list[Operation]
) -> None:
    trio = Trio(redis_store, clock, quotas, start, back=False)
    for operation in done:
        trio.perform(operation)


@examples(150)
@given(quotas=quotas, start=starts(), done=operations(back=True))
def test_twins_of_slots_agree_when_the_clock_goes_back(
    redis_store: RedisStore, clock: FakeClock, quotas: list[Quota], start: int, done: list[Operation]
) -> None:
    trio = Trio(redis_store, clock, quotas, start, back=True)
    for operation in done:
        trio.perform(operation)
