"""Make decisions outside of a program: from known outcomes, or from another decision."""

from __future__ import annotations

from functools import lru_cache

from headgate.core.check import Block, Check, Outcome
from headgate.core.decision import Decision
from headgate.core.plan import Plan, Reason
from headgate.core.reading import WarningStates
from headgate.core.verdict import hold_us


def turn_us(decision: Decision) -> int:
    """Return the time until a request delayed by rules with action `throttle` can be forwarded.

    Do not call it for refusals with a wait of `NEVER`.
    """
    limits = zip(decision.plan.limits, decision.outcomes, decision.costs, strict=True)
    return max((_turn_us(*one) for one in limits if one[0].enforced), default=0)


def _turn_us(limit: Check, outcome: Outcome, cost: int) -> int:
    if outcome.wait_us == 0:
        return hold_us(limit, outcome, cost)
    # Once a leaky bucket has room for the request, its turn comes when everything now in the bucket has left.
    leaks = limit.quota.algorithm == "leaky_bucket" and limit.refusal.max_delay_us > 0
    return max(outcome.wait_us, outcome.reset_us) if leaks else outcome.wait_us


def decide(
    plan: Plan,
    outcomes: tuple[Outcome, ...],
    now_us: int,
    *,
    costs: tuple[int, ...] | None = None,
    subjects: tuple[str, ...] = (),
    reason: Reason | None = None,
    states: WarningStates | None = None,
) -> Decision:
    """Make a decision from the outcomes of a request's limits: allowed unless an enforced limit must wait."""
    allowed = True
    for limit, outcome in zip(plan.limits, outcomes, strict=True):
        if outcome[0] and limit.enforced:
            allowed = False
    return Decision.of(allowed, now_us, plan, outcomes, costs=costs, subjects=subjects, reason=reason, states=states)


def refuse_blocked(limit: Check, block: Block, now_us: int) -> Decision:
    """Make the refusal of a blocked client. `limit` belongs to the rule whose refusal started the block."""
    outcome = Outcome(block.left_us, 0, block.left_us)
    return Decision.of(False, now_us, _plan_of(limit), (outcome,), reason="penalty", subjects=("",))


@lru_cache(maxsize=1_024)
def _plan_of(limit: Check) -> Plan:
    return Plan((limit,))


def refuse_delayed(decision: Decision) -> Decision:
    """Make the refusal of a request that should be delayed when too many requests already wait."""
    plan, costs = decision.plan, decision.costs
    waiting = tuple(
        outcome._replace(wait_us=hold_us(limit, outcome, cost) or outcome.wait_us)
        for limit, outcome, cost in zip(plan.limits, decision.outcomes, costs, strict=True)
    )
    return decide(plan, waiting, decision.at_us, costs=costs)


def decision_after_refund(decision: Decision) -> Decision:
    """Return the decision to show after the charge of an allowed request was refunded.

    `remaining` is exact. The reset may still include the charge, so it is late rather than early.
    """
    if decision.reason not in ("within_limit", "shadow"):
        return decision  # it charged nothing
    before = tuple(map(_before, decision.plan.limits, decision.outcomes, decision.costs))
    shown = Decision.of(
        True,
        decision.at_us,
        decision.plan,
        before,
        costs=decision.costs,
        subjects=decision.subjects,
        states=decision.reading.states,
    )
    shown.settled = True
    return shown


def decision_within_limits(decision: Decision) -> Decision:
    """Return the repetition of a decision with no more remaining than its limits, which may be lower by now: an
    override that applied to the first request may have ended."""
    outcomes = decision.outcomes
    limits = zip(decision.plan.limits, outcomes)  # noqa: B905 - a blocked client has no outcomes
    bounded = tuple([one._replace(remaining=min(one.remaining, limit.quota.capacity)) for limit, one in limits])
    if bounded == outcomes:
        return decision
    shown = Decision.of(
        decision.allowed,
        decision.at_us,
        decision.plan,
        bounded,
        costs=decision.costs,
        subjects=decision.subjects,
        reason=decision.reading.reason,
        states=decision.reading.states,
    )
    shown.settled = True
    block = getattr(decision, "block", None)
    if block is not None:
        shown.block = block
    return shown


def _before(limit: Check, outcome: Outcome, cost: int) -> Outcome:
    if outcome.wait_us != 0:  # a shadow that did not fit was not charged
        return outcome
    capacity = limit.quota.capacity
    remaining = min(capacity, outcome.remaining + cost)
    return Outcome(0, remaining, 0 if remaining == capacity else outcome.reset_us)
