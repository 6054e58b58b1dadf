"""The search for a shard with room, for one check of a rule that has shards. No I/O.

A request is charged to one shard if it fits there, and otherwise to several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from os import urandom
from typing import Final
from zlib import crc32

from headgate.core.check import NEVER, Charge, Check, Outcome, OutcomeAt, OutcomeOf
from headgate.core.decision import Decision
from headgate.core.decision_factory import decide as decide_all
from headgate.core.fork import renew_in_children
from headgate.core.key import shard_key_template
from headgate.core.plan import Plan
from headgate.core.reading import WarningStates
from headgate.core.share import parts_of
from headgate.errors import StoreUnavailable
from headgate.rules.holder import Holder

SPLITS: Final = 3  # attempts to charge shards that had room: other requests may take the room first

Shards = Mapping[str, int]  # the number of shards by rule id, of rules with shards
Layout = list[tuple[int, int]]  # indexes of parts and costs: the charges to make, all or none


class Home:
    """The rules that have shards, and the shard with which this node starts."""

    def __init__(self) -> None:
        self.holder: Holder | None = None  # of the rules in force; set as soon as the limiter has it
        self.reset_after_fork()
        renew_in_children(self)

    def reset_after_fork(self) -> None:
        """Choose another start in a forked child, which is another node."""
        self.start = int.from_bytes(urandom(2))

    @property
    def shards(self) -> Shards:
        return {} if self.holder is None else self.holder.current.sharded


def home_of(subject: str, start: int) -> int:
    """Return the home shard of a subject on a node, before the remainder by the number of shards."""
    return crc32(subject.encode("utf-8", "surrogatepass")) + start


def checks_of(check: Check, shards: int) -> list[Check]:
    """Return a check for each part of the quota, each with the cost of the whole check."""
    return [
        check._replace(key_template=shard_key_template(check.key_template, index), quota=part)
        for index, part in enumerate(parts_of(check.quota, shards))
    ]


def evenly(parts: Sequence[Check], cost: int) -> Layout:
    """Divide a cost in proportion to the parts. If all parts together can hold the cost, each can hold its share."""
    total = sum(part.quota.capacity for part in parts)
    layout, before = [], 0
    for index, size in enumerate(accumulate(part.quota.capacity for part in parts)):
        upto = cost * size // total
        if upto > before:
            layout.append((index, upto - before))
        before = upto
    return layout


def checks_of_all_shards(check: Check, shards: int) -> list[Check]:
    """Return checks for all places that may hold a check's state."""
    return [check._replace(key_template=shard_key_template(check.key_template, index)) for index in range(shards)]


class ShardSearch:
    """The search for room for one check of a rule with shards: where to charge it next, and its final outcome.

    `home` is the part to try first. With `look`, it reads all parts and charges nothing. `layout` is what to send to
    the store now; pass the answers to `record_answers`.
    """

    __slots__ = (
        "_away",
        "_costs",
        "_fits",
        "_look",
        "_now_us",
        "_seen",
        "_splits",
        "_waits",
        "check",
        "home",
        "layout",
        "parts",
    )

    def __init__(self, check: Check, shards: int, home: int, *, look: bool = False) -> None:
        self.check = check
        self.parts = parts = checks_of(check, shards)
        self.home = home % len(parts)
        self._look = look or check.cost == 0
        self._seen: dict[int, Outcome] = {}  # the last outcome of each part, by index
        self._waits: list[int] = []  # from the last answers
        self._costs: Layout = []  # charged, or that would have been charged
        self._now_us = 0
        self._fits = False
        self._away: set[int] = set()  # indexes of parts that could not be reached
        self._splits = 0
        self.layout: Layout = [(self.home, check.cost)]
        if self._look:
            some = dict(evenly(parts, check.cost)) if check.cost <= check.quota.capacity else {}
            cost = check.cost
            self.layout = [(index, cost if cost == 1 else some.get(index, 0)) for index in range(len(parts))]
        elif check.cost > check.quota.capacity:  # it never fits, but the outcome needs what is left
            self.layout += [(index, 0) for index in range(len(parts)) if index != self.home]
        elif check.enforced and check.cost > parts[self.home].quota.capacity:
            self.layout = evenly(parts, check.cost)

    @property
    def checks(self) -> list[Check]:
        """The checks of this layout."""
        enforced = self.check.enforced
        return [
            self.parts[index]._replace(cost=cost, enforced=enforced and cost > 0)  # reading alone never refuses
            for index, cost in self.layout
        ]

    @property
    def fits(self) -> bool:
        """Return whether the last layout fitted."""
        return self._fits

    def record_answers(self, outcomes: Sequence[Outcome], now_us: int) -> None:
        """Record the answers to this layout, as of `now_us` on the store's clock."""
        self._now_us, self._costs, self._waits = now_us, self.layout, []
        for (index, cost), outcome in zip(self.layout, outcomes, strict=True):
            self._seen[index] = outcome
            self._waits.append(outcome.wait_us if cost else 0)
        if self._look:
            self._fits = self.check.cost <= self._room_left()
        else:
            self._fits = not any(self._waits)

    def skip_part(self) -> bool:
        """Record that the first part of the layout cannot be reached. Return whether there is another part to try."""
        self._away.add(self.layout[0][0])
        return self.advance()

    def advance(self) -> bool:
        """Choose the next `layout` after the cost did not fit. Return False if there is none left to try."""
        cost, parts = self.check.cost, self.parts
        if self._look or cost > self.check.quota.capacity:
            return False
        if cost == 1:
            for turn in range(1, len(parts)):
                index = (self.home + turn) % len(parts)
                if index not in self._seen and index not in self._away:
                    self.layout = [(index, cost)]
                    return True
            return False
        if self._away:
            return False
        if len(self._seen) < len(parts):
            layout = evenly(parts, cost)
            missing = [(index, 0) for index in range(len(parts)) if index not in dict(layout)]
            self.layout = layout + missing  # the missing parts are only read: their room may be needed
            return True
        if self._splits == SPLITS or self._room_left() < cost:
            return False
        self._splits += 1
        self.layout = self._where_there_is_room(cost)
        return True

    def surcharges(self, cost: int) -> list[Check]:
        """Return checks that charge a cost even if it does not fit: first where there is room, the rest evenly."""
        costs = Counter(dict(self._where_there_is_room(cost)))
        costs.update(dict(evenly(self.parts, cost - costs.total())))
        return [self.parts[index]._replace(cost=some) for index, some in costs.items()]

    def _where_there_is_room(self, cost: int) -> Layout:
        """Place as much of a cost as fits on as few parts as possible."""
        layout = []
        for index in sorted(self._seen, key=lambda index: -self._seen[index].remaining):
            taken = min(cost, self._seen[index].remaining)
            if taken:
                layout.append((index, taken))
                cost -= taken
        return layout

    def outcome(self, *, charged: bool) -> Outcome:
        """Return the outcome of the whole check. `charged`: whether the request was charged."""
        reset_us = max(outcome.reset_us for outcome in self._seen.values())
        if not self._fits:
            return Outcome(self._wait_us(), self._room_left(), reset_us)
        if not charged:
            return Outcome(0, self._likely(), reset_us)
        charges = tuple(
            Charge(self.parts[index]._replace(cost=cost), self._at_us(index), self._seen[index].reset_us)
            for index, cost in self._costs
            if cost
        )
        return OutcomeOf.of(Outcome(0, self._likely(), reset_us), charges)

    def _room_left(self) -> int:
        """Return the room left in the parts that were read."""
        return sum(outcome.remaining for outcome in self._seen.values())

    def _likely(self) -> int:
        """Estimate the room left in all parts: assume that unread parts are as full as the one that was charged."""
        remaining, capacity = self._seen[self._costs[0][0]].remaining, self.parts[self._costs[0][0]].quota.capacity
        others = sum(part.quota.capacity for index, part in enumerate(self.parts) if index not in self._seen)
        return self._room_left() + remaining * others // capacity

    def _wait_us(self) -> int:
        """Return the time until the cost fits: a cost of 1 in the first part with room, more in all parts together."""
        if self.check.cost > self.check.quota.capacity:
            return NEVER
        if self.check.cost == 1:
            return min(outcome.wait_us for outcome in self._seen.values())
        return max(self._waits)

    def _at_us(self, index: int) -> int:
        outcome = self._seen[index]
        return outcome.at_us if isinstance(outcome, OutcomeAt) else self._now_us


def checks_of_parts(plan: Plan, shards: int) -> list[Check]:
    """Return the limits of a plan's only rule, one per shard, with an id that has no shards."""
    return [part._replace(rule="") for part in checks_of(plan.limits[0], shards)]


def search_of(plan: Plan, subjects: tuple[str, ...], shards: int, home: Home) -> ShardSearch:
    """Return the search for a shard with room for a request of cost 1, which fits into any single shard."""
    (subject,) = subjects
    return ShardSearch(plan.limits[0]._replace(subject=subject, cost=1), shards, home_of(subject, home.start))


def skip_shard(search: ShardSearch, error: StoreUnavailable) -> StoreUnavailable:
    """Continue after a shard could not be reached. Raises the error if it was sent, or no shard is left."""
    if error.sent or not search.skip_part():
        raise error
    return error


def is_last(search: ShardSearch, decision: Decision, away: StoreUnavailable | None) -> bool:
    """Return whether a shard's refusal is final. Raises the error of an unreachable shard, which may have had room."""
    search.record_answers(decision.outcomes, decision.at_us)
    if search.advance():
        return False
    if away is not None:
        raise away
    return True


def conclude(plan: Plan, states: WarningStates | None, search: ShardSearch, decision: Decision) -> Decision:
    """Return a shard's decision as a decision on the whole limit."""
    if decision.allowed:
        search.record_answers(decision.outcomes, decision.at_us)
    whole = (search.outcome(charged=decision.allowed),)
    return decide_all(plan, whole, decision.at_us, costs=decision.costs, subjects=decision.subjects, states=states)
