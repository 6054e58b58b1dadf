"""Programs of rules whose limit in our own store varies by key and over time.

They do what `Router._quota` does, for plans of one limit, in as few calls as possible. Threads and asyncio share them:
they return what the store's own program returns, a decision or an awaitable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headgate.core.check import Check
from headgate.core.decision import Decision
from headgate.core.decision_factory import decide
from headgate.core.plan import Plan
from headgate.core.reading import WarningStates
from headgate.features.regions.router import Router
from headgate.rules.rule import Spread

MAX_PROGRAMS: Final = 1_024  # to remember per rule

LimitProgram = Callable[[tuple[str, ...], tuple[int, ...]], Any]  # a `Program` of one limit


class LimitPrograms(dict[int, LimitProgram]):
    """The store's own programs of one rule, by limit. Each is compiled on first use."""

    def __init__(self, make: Callable[[int], LimitProgram]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, limit: int) -> LimitProgram:
        if len(self) >= MAX_PROGRAMS:
            self.clear()
        program = self[limit] = self._make(limit)
        return program


def granted_program(router: Router, template: Check, programs: LimitPrograms) -> LimitProgram:
    """Return the program of a rule with `regions = "quota_auto"`."""
    quota, shares, (ticks, tick) = template.quota, router.shares, router.ticks
    held_by, floor = shares.table(template.key_template), shares.floor(quota)

    def check(subjects: tuple[str, ...], costs: tuple[int, ...]) -> Any:
        (subject,), (cost,) = subjects, costs
        held = held_by.get(subject)
        if held is None or held.check.quota is not quota:
            held = shares.follow(template._replace(subject=subject))
            if held is None:
                return programs[floor](subjects, costs)
        held.demand += cost
        return programs[held.share if ticks() // tick < held.until_us else held.floor](subjects, costs)

    return check


def synced_program(
    router: Router,
    template: Check,
    programs: LimitPrograms,
    listen: Callable[[LimitProgram, tuple[str, ...], tuple[int, ...]], Any],
) -> LimitProgram:
    """Return the program of a rule with `regions = "synced"`. `listen` calls one, and reports our own store's time."""
    quota, counts, (ticks, tick) = template.quota, router.counts, router.ticks
    known_by, interval_us = counts.table(template.key_template), counts.interval_us

    def check(subjects: tuple[str, ...], costs: tuple[int, ...]) -> Any:
        subject = subjects[0]
        at_us, known = ticks() // tick, known_by.get(subject)
        if known is None or known.check.quota is not quota or at_us - known.touched_us > interval_us:
            known = counts.follow(template._replace(subject=subject), at_us)
            limit = counts.limit(known, quota, at_us)
        else:
            known.touched_us = at_us
            totals, state, until_us, limit = known.limited
            if totals is not known.totals or state is not counts.state or at_us >= until_us:
                limit = counts.limit(known, quota, at_us)
        program = programs[limit]
        return listen(program, subjects, costs) if counts.wants_time and limit > 0 else program(subjects, costs)

    return check


def refusal(
    router: Router,
    mode: Spread,
    plan: Plan,
    states: WarningStates | None,
    subjects: tuple[str, ...],
    costs: tuple[int, ...],
) -> Decision:
    """Return the decision when nothing may pass here."""
    outcome = router.refuse(mode, plan.limits[0]._replace(cost=costs[0]))
    return decide(plan, (outcome,), router.store_us(), costs=costs, subjects=subjects, states=states)
