"""Encodes decisions as JSON, with the fields of `Decision.as_dict`. Hand-written for speed: every check needs it.

The parts that all decisions of a plan share are encoded once, and cached with the plan.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from headgate.core.check import NEVER, Check, Outcome
from headgate.core.decision import Decision
from headgate.core.quota import MICROSECONDS
from headgate.core.verdict import delay_us

_DECISION: Final = (
    '{"allowed":%s,"limit":%d,"remaining":%d,"reset_at":%r,"reset_after":%s,"retry_after":%s,"delay":%r,'
    '"rule":%s,"state":"%s","reason":"%s","limits":[%s]%s%s}'
)
_BOOLEANS: Final = ("false", "true")


class _Limit(NamedTuple):
    """The parts of a limit's JSON that are the same in every response."""

    limit: Check
    rule: str
    start: str  # up to whether it allows the request
    middle: str  # from there up to what remains


class _Prepared:
    """The JSON that all decisions of a plan share."""

    __slots__ = ("delays", "limits")

    def __init__(self, limits: tuple[Check, ...]) -> None:
        self.limits = [_prepare(limit) for limit in limits]
        self.delays = any(limit.quota.algorithm == "leaky_bucket" for limit in limits)


def encode_decision(decision: Decision, more: str = "") -> str:
    """Return a decision as JSON in ASCII, equal to its `as_dict`. `more` are further fields: `,"slot":null`."""
    plan = decision.plan
    prepared: _Prepared | None = plan.prepared.get(_Prepared)
    if prepared is None:
        prepared = plan.prepared[_Prepared] = _Prepared(plan.limits)
    allowed, at_us, order, figures = decision.allowed, decision.at_us, decision.order, decision.figures
    if not order:
        at = at_us / MICROSECONDS
        after = "0.0" if allowed else "null"  # refused because no rule applies: waiting does not help
        values = (_BOOLEANS[allowed], 0, 0, at, "0.0", after, 0.0, "null", decision.state, decision.reason, "")
        return _DECISION % (*values, _id(decision), more)
    first = prepared.limits[order[0]]
    wait_us, remaining, reset_us = figures[order[0]]
    reset_after = _seconds(reset_us)
    costs = decision.costs
    limits = _limit(first, figures[order[0]], costs[order[0]], reset_after)
    for at in order[1:]:
        limits += "," + _limit(prepared.limits[at], figures[at], costs[at], _seconds(figures[at][2]))
    return _DECISION % (
        _BOOLEANS[allowed],
        first.limit.quota.capacity,
        remaining,
        at_us / MICROSECONDS + reset_us / MICROSECONDS,
        reset_after,
        "0.0" if allowed else _seconds(wait_us),
        decision.delay if prepared.delays else 0.0,
        first.rule,
        decision.state,
        decision.reason,
        limits,
        _id(decision),
        more,
    )


def _id(decision: Decision) -> str:
    return "" if decision.allowed else f',"decision_id":"{decision.id}"'


def _limit(known: _Limit, figures: tuple[int, int, int], cost: int, reset_after: str) -> str:
    limit, _, start, middle = known
    wait_us, remaining, _ = figures
    delay = 0.0
    if limit.quota.algorithm == "leaky_bucket":
        delay = delay_us(limit, Outcome(*figures), cost) / MICROSECONDS
    return (
        f'{start}{"true" if wait_us == 0 else "false"}{middle}{remaining},"reset_after":{reset_after},'
        f'"retry_after":{_seconds(wait_us)},"delay":{delay!r}}}'
    )


def _seconds(us: int) -> str:
    return "0.0" if us == 0 else "null" if us == NEVER else repr(us / MICROSECONDS)


def _prepare(limit: Check) -> _Limit:
    rule, notation, unit = json.dumps(limit.rule), json.dumps(str(limit.quota)), json.dumps(limit.refusal.unit)
    start = f'{{"rule":{rule},"quota":{notation},"unit":{unit},"enforced":{_BOOLEANS[limit.enforced]},"allowed":'
    return _Limit(limit, rule, start, f',"limit":{limit.quota.capacity},"remaining":')
