"""Reading: the data that all decisions of one program share, and the way to read their figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headgate.core.check import Outcome
from headgate.core.plan import Plan, Reason
from headgate.core.verdict import low_check, order_check

WARNING_PERCENT = 80


class WarningStates(Protocol):
    """A memory of the limits that are in warning, so that a limit stays in warning for a while."""

    warned: bool  # whether any limit was ever in warning

    def percent(self) -> int:
        """Return the percentage of use at which a limit enters warning."""
        ...

    def warns(self, key_template: str, subject: str, used: int, limit: int, now_us: int, reset_us: int) -> bool:
        """Return whether the subject's limit is in warning when `used` of it is used."""
        ...


class Reading:
    """The data that all decisions of one program share: their plan, and how to compute their figures.

    `read` computes the figures from a decision's `verdict`; None means that the verdict contains them. `reason`
    applies to decisions without limits. `states` remembers which limits are in warning.
    """

    __slots__ = ("causes", "is_low", "is_ordered", "low", "order", "plan", "read", "reason", "states")

    def __init__(
        self,
        plan: Plan,
        states: WarningStates | None = None,
        read: Callable[[Any], tuple[tuple[int, int, int], ...]] | None = None,
        reason: Reason | None = None,
    ) -> None:
        self.plan = plan
        self.states = states
        percent = WARNING_PERCENT if states is None else states.percent()
        # The remaining amount at which each limit enters warning; -1 for shadow limits, which never warn.
        self.low = tuple([capacity + (capacity * percent // -100) if capacity else -1 for capacity in plan.capacities])
        self.is_low = low_check(len(self.low))  # whether any limit has so little remaining
        self.order = plan.indexes  # the order of the last decision's limits, the most restrictive first
        self.is_ordered = order_check(len(plan.indexes))  # whether limits are in a given order
        self.read = read
        self.reason = reason
        # By limit, the `cause` of a decision that allows the request and that this limit binds; None if the figures
        # have to tell.
        self.causes: tuple[tuple[str, Reason], ...] | None = None
        if plan.limits and not plan.shadows and reason is None:
            self.causes = tuple([(limit.rule, "within_limit") for limit in plan.limits])

    @classmethod
    def of_outcomes(cls, plan: Plan, states: WarningStates | None = None, reason: Reason | None = None) -> Reading:
        """Return the shared data for decisions with known outcomes. The plan keeps it."""
        if not plan.limits:  # a plan without limits outlives the limiter that `states` belongs to
            return cls(plan, states, reason=reason)
        key = (states, reason)
        known: Reading | None = plan.prepared.get(key)
        if known is None:
            known = plan.prepared[key] = cls(plan, states, reason=reason)
        return known


def indexes_in_warning(
    reading: Reading, subjects: tuple[str, ...], outcomes: tuple[Outcome, ...], at_us: int
) -> tuple[int, ...]:
    """Return the indexes of the limits that are in warning. Reports each limit's use to `states`, if there are any,
    which remember warnings."""
    states, low = reading.states, reading.low
    if states is None:
        return tuple([at for at, outcome in enumerate(outcomes) if outcome.remaining <= low[at]])
    found = []
    for at, (limit, subject, outcome) in enumerate(zip(reading.plan.limits, subjects, outcomes, strict=False)):
        capacity = limit.quota.capacity
        used = capacity - outcome.remaining
        if limit.enforced and states.warns(limit.key_template, subject, used, capacity, at_us, outcome.reset_us):
            found.append(at)
    return tuple(found)
