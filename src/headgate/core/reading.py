"""Reading: the data that all decisions of one program share, and the way to read their figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headgate.core.check import Outcome
from headgate.core.plan import Plan, Reason

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

    `read` computes the outcomes from a decision's `verdict`; None means that the verdict contains them. `reason`
    applies to decisions without limits. `states` remembers which limits are in warning.
    """

    __slots__ = ("low", "plan", "read", "reason", "states")

    def __init__(
        self,
        plan: Plan,
        states: WarningStates | None = None,
        read: Callable[[Any], tuple[Outcome, ...]] | None = None,
        reason: Reason | None = None,
    ) -> None:
        self.plan = plan
        self.states = states
        percent = WARNING_PERCENT if states is None else states.percent()
        # The remaining amount at which each limit enters warning; -1 for shadow limits, which never warn.
        self.low = tuple([capacity + (capacity * percent // -100) if capacity else -1 for capacity in plan.capacities])
        self.read = read
        self.reason = reason

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


def is_any_in_warning(
    states: WarningStates, plan: Plan, subjects: tuple[str, ...], outcomes: tuple[Outcome, ...], at_us: int
) -> bool:
    """Return whether any limit is in warning. Reports each limit's use to `states`, which remembers warnings."""
    warning = False
    for limit, subject, outcome in zip(plan.limits, subjects, outcomes, strict=False):
        capacity = limit.quota.capacity
        used = capacity - outcome.remaining
        if limit.enforced and states.warns(limit.key_template, subject, used, capacity, at_us, outcome.reset_us):
            warning = True
    return warning
