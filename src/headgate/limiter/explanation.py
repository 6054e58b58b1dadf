"""Completes an explanation with the store's data: the state of each limit, the decision, and possible remedies."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from headgate.core.check import NEVER, Outcome
from headgate.core.cost import REQUESTS, Cost
from headgate.core.decision import Decision
from headgate.core.quota import MICROSECONDS
from headgate.rules.explanation import Explanation, LimitState, Remedy
from headgate.rules.plan import RulePlan

MAX_TIERS: Final = 20  # tiers to try


def conclude(
    explanation: Explanation, plan: RulePlan, decision: Decision, by_tier: Mapping[str, Decision]
) -> Explanation:
    """Return the explanation with the decision of a peek, and of peeks with other tiers."""
    if len(decision.plan.limits) == len(plan.limits):
        outcomes = dict(zip((limit.rule for limit in plan.limits), decision.outcomes, strict=False))
        capacities = {limit.rule: limit.quota.capacity for limit in plan.limits}
        for rule in explanation.rules:
            if rule.applies and rule.rule in outcomes:
                rule.state = _state(outcomes[rule.rule], capacities[rule.rule])
    explanation.decision = decision.as_dict()
    explanation.decision.pop("decision_id", None)  # nothing was decided, so there is no event with this id
    if not decision.allowed:
        explanation.remedies = list(_remedies(explanation, plan, decision, by_tier))
    return explanation


def _state(outcome: Outcome, capacity: int) -> LimitState:
    wait_us, remaining, reset_us = outcome
    return LimitState(
        limit=capacity,
        used=capacity - remaining,
        remaining=remaining,
        reset_after=reset_us / MICROSECONDS,
        allowed=wait_us == 0,
        retry_after=None if wait_us == NEVER else wait_us / MICROSECONDS,
    )


def _remedies(
    explanation: Explanation, plan: RulePlan, decision: Decision, by_tier: Mapping[str, Decision]
) -> list[Remedy]:
    remedies = []
    if decision.retry_after is not None:
        at = datetime.fromtimestamp(decision.at_us / MICROSECONDS + decision.retry_after, UTC).isoformat()
        remedies.append(Remedy("wait", decision.retry_after, at))
    remedies += [Remedy("tier", tier) for tier, one in by_tier.items() if one.allowed]
    if decision.reason == "over_limit":
        cost = _fitting_cost(explanation.cost, plan, decision)
        if cost is not None:
            remedies.append(Remedy("cost", cost))
    return remedies


def _fitting_cost(cost: Cost, plan: RulePlan, decision: Decision) -> Cost | None:
    """Return the largest cost, in each unit, at which a refused request passes now; None if only 0 passes."""
    fitting = {REQUESTS: cost} if isinstance(cost, int) else dict(cost)
    for limit, outcome, factor in zip(plan.limits, decision.outcomes, plan.ones, strict=False):
        if limit.enforced and outcome.wait_us:
            unit = limit.refusal.unit
            fitting[unit] = min(fitting[unit], outcome.remaining // factor)
            if not fitting[unit]:
                return None
    return fitting[REQUESTS] if isinstance(cost, int) else fitting
