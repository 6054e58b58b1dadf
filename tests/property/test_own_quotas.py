"""Subjects with quotas of their own share a table of the memory store, and none changes what another has left.

In one store all subjects are in one table, as users with overrides or anchors of their own are; in the other, each has
a table to itself. Both get the same checks. New subjects come all the time, so that sweeps judge the known ones.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Quota
from headgate.core.check import Check, Group, Outcome
from headgate.core.key import key_template
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.property.strategies import SIX, Cost, Move, costs, examples, moves, quotas, sequences, starts
from tests.property.world import World, expect_result

DAY = 86_400_000_000
CALENDARS = st.builds(
    lambda limit, anchor: Quota.parse(f"{limit}/calendar month anchor {anchor}"), st.integers(1, 5), st.integers(1, 31)
)


class Act(NamedTuple):
    """Let time pass, then check one subject, or a new one that has the quota of a known one."""

    move: Move
    cost: Cost
    which: int
    is_new: bool


class Stores:
    """A store with one table for all, and one with a table for each subject."""

    def __init__(self, algorithm: str, start: int) -> None:
        self.clock = FakeClock()
        self.together, self.apart = MemoryStore(clock=self.clock), MemoryStore(clock=self.clock)
        World(self.together, self.clock).begin(start)
        self.algorithm = algorithm
        self.known: list[tuple[str, Quota]] = []

    def check(self, subject: str, quota: Quota, cost: int, *, peek: bool = False) -> Outcome:
        if quota.calendar is not None:
            quota = quota.at_time(self.clock.now_us())[0]
        results = []
        for store, rule in ((self.together, "all"), (self.apart, subject)):
            check = Check("rule", key_template("user", rule, self.algorithm), subject, quota, cost)
            results.append(expect_result(store.check([Group((check,), peek)])[0]))
        assert results[0] == results[1], f"together: {results[0]}\napart:    {results[1]}"
        return results[0].outcomes[0]


def play(algorithm: str, own: list[Quota], start: int, acts: list[Act]) -> None:
    stores = Stores(algorithm, start)
    known = [(f"user-{number}", quota) for number, quota in enumerate(own)]
    remaining = 1
    for number, (move, cost, which, is_new) in enumerate(acts):
        subject, quota = known[which % len(known)]
        if quota.calendar is None:
            stores.clock.advance(move.us(quota, stores.clock.now_us(), 0) / 1_000_000)
        else:
            stores.clock.advance(move.amount % 40 * DAY / 1_000_000)
        subject = f"new-{number}" if is_new else subject
        remaining = stores.check(subject, quota, cost.of(quota, remaining)).remaining
        for other, its_quota in known:
            stores.check(other, its_quota, 1, peek=True)


acts = sequences(st.builds(Act, moves(), costs(), st.integers(0, 5), st.booleans()), 30)


@pytest.mark.parametrize("algorithm", SIX)
@examples(100)
@given(data=st.data(), start=starts(), done=acts)
def test_no_subject_changes_what_another_has_left(
    algorithm: str, data: st.DataObject, start: int, done: list[Act]
) -> None:
    play(algorithm, data.draw(st.lists(quotas(algorithm), min_size=2, max_size=4)), start, done)


@examples(100)
@given(own=st.lists(CALENDARS, min_size=2, max_size=4), start=starts(), done=acts)
def test_nor_with_anchors_of_their_own(own: list[Quota], start: int, done: list[Act]) -> None:
    play("calendar_window", own, start, done)
