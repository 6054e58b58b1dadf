"""The short ways of rules whose limit in our own store changes from key to key, and from moment to moment.

They are part of every check, and say what `Router._quota` does in as few calls as can be. Threads and asyncio have the
same: the store's own way gives a decision, or something to be awaited, and that is what they give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headgate.core.check import Check
from headgate.core.deciding import decide
from headgate.core.decision import Decision, States
from headgate.core.plan import Plan
from headgate.features.regions.router import Router
from headgate.rules.rule import Spread

MOST: Final = 1_024  # ways that are remembered for one rule

Way = Callable[[tuple[str, ...], tuple[int, ...]], Any]  # a `Program` of one limit


class Ways(dict[int, Way]):
    """The store's own short ways of one rule, by limit. They are made when they are first needed."""

    def __init__(self, make: Callable[[int], Way]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, limit: int) -> Way:
        if len(self) >= MOST:
            self.clear()
        way = self[limit] = self._make(limit)
        return way


def granted(router: Router, template: Check, ways: Ways) -> Way:
    """The short way of a rule of `quota_auto`."""
    quota, shares, (ticks, tick) = template.quota, router.shares, router.ticks
    held_by, floor = shares.table(template.space), shares.floor(quota)

    def check(subjects: tuple[str, ...], costs: tuple[int, ...]) -> Any:
        (subject,), (cost,) = subjects, costs
        held = held_by.get(subject)
        if held is None or held.check.quota is not quota:
            held = shares.held(template._replace(subject=subject))
            if held is None:
                return ways[floor](subjects, costs)
        held.asked += cost
        return ways[held.share if ticks() // tick < held.until_us else held.floor](subjects, costs)

    return check


def synced(
    router: Router, template: Check, ways: Ways, listen: Callable[[Way, tuple[str, ...], tuple[int, ...]], Any]
) -> Way:
    """The short way of a rule of `synced`. `listen` takes one, and tells the counts the time of our own store."""
    quota, counts, (ticks, tick) = template.quota, router.counts, router.ticks
    known_by, interval_us = counts.table(template.space), counts.interval_us

    def check(subjects: tuple[str, ...], costs: tuple[int, ...]) -> Any:
        subject = subjects[0]
        at_us, known = ticks() // tick, known_by.get(subject)
        if known is None or known.check.quota is not quota or at_us - known.touched_us > interval_us:
            known = counts.known(template._replace(subject=subject), at_us)
            limit = counts.limit(known, quota, at_us)
        else:
            known.touched_us = at_us
            totals, state, until_us, limit = known.limited
            if totals is not known.totals or state is not counts.state or at_us >= until_us:
                limit = counts.limit(known, quota, at_us)
        way = ways[limit]
        return listen(way, subjects, costs) if counts.wants_time and limit > 0 else way(subjects, costs)

    return check


def refusal(
    router: Router, mode: Spread, plan: Plan, states: States | None, subjects: tuple[str, ...], costs: tuple[int, ...]
) -> Decision:
    """The decision when nothing may pass here."""
    outcome = router.nothing(mode, plan.limits[0]._replace(cost=costs[0]))
    return decide(plan, (outcome,), router.store_us(), costs=costs, subjects=subjects, states=states)
