"""Decisions for tests, made without a plan."""

from __future__ import annotations

from headgate.core.check import Check, Outcome
from headgate.core.decision import Decision
from headgate.core.decision_factory import decide
from headgate.core.plan import Plan, Reason


def combine(
    checks: tuple[Check, ...],
    outcomes: tuple[Outcome, ...],
    now_us: int,
    *,
    cost: int = 1,
    reason: Reason | None = None,
) -> Decision:
    """Make a decision without an existing plan, from checks whose costs are those of a request of cost 1."""
    plan = Plan(checks)
    return decide(plan, outcomes, now_us, costs=plan.costs(cost), reason=reason)
