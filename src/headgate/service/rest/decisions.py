"""Decisions as JSON: what `Decision.as_dict` says, written out, as it is done for every check."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from headgate.core.check import NEVER, Check, Outcome
from headgate.core.decision import Decision
from headgate.core.quota import MICROSECONDS, Quota

REMEMBERED: Final = 4_096  # limits

_DECISION: Final = (
    '{"allowed":%s,"limit":%d,"remaining":%d,"reset_at":%r,"reset_after":%r,"retry_after":%s,"delay":0.0,'
    '"rule":%s,"state":"%s","reason":"%s","limits":[%s]}'
)
_LIMIT: Final = (
    '{"rule":%s,"quota":%s,"enforced":%s,"allowed":%s,"limit":%d,"remaining":%d,"reset_after":%r,"retry_after":%s,'
    '"delay":0.0}'
)
_BOOLEANS: Final = ("false", "true")


class _Known(NamedTuple):
    """What is the same whenever a rule's limit is told of."""

    quota: Quota
    name: str  # of the rule
    rule: str  # the same in JSON, as all that follows
    notation: str
    usual: str  # a usual decision on it, but for its figures; empty, if there is more to say

    def told(self, now_us: int, remaining: int, reset_us: int) -> str:
        """A usual decision on it."""
        after = reset_us / MICROSECONDS
        return self.usual % (remaining, now_us / MICROSECONDS + after, after, remaining, after)


_known: Final[dict[int, _Known]] = {}  # by the quota's identity: to hash one takes too long


def encoded(decision: Decision) -> str:
    """A decision as JSON, in ASCII. The same as `as_dict` gives."""
    usual = decision.usual()
    if usual is not None:
        now_us, check, remaining, reset_us = usual
        known = _about(check)
        return known.told(now_us, remaining, reset_us) if known.usual else json.dumps(decision.as_dict())
    now_us, checks, outcomes = decision.at_us, decision.plan.limits, decision.outcomes
    if not checks:
        allowed, at = _BOOLEANS[decision.allowed], now_us / MICROSECONDS
        return _DECISION % (allowed, 0, 0, at, 0.0, "0.0", "null", decision.state, decision.reason, "")
    for check in checks:
        if check.quota.algorithm == "leaky_bucket":  # which has delays
            return json.dumps(decision.as_dict())
    if len(checks) > 1:
        return _written(decision, decision.ranked)
    return _written(decision, [(checks[0], outcomes[0])])


def _written(decision: Decision, pairs: list[tuple[Check, Outcome]]) -> str:
    """A decision on these checks, the most restrictive first."""
    check, (wait_us, remaining, reset_us) = pairs[0]
    reset_after = reset_us / MICROSECONDS
    return _DECISION % (
        _BOOLEANS[decision.allowed],
        check.quota.capacity,
        remaining,
        decision.at_us / MICROSECONDS + reset_after,
        reset_after,
        "0.0" if decision.allowed else _seconds(wait_us),
        _about(check).rule,
        decision.state,
        decision.reason,
        ",".join([_limit(one, outcome) for one, outcome in pairs]),
    )


def _limit(check: Check, outcome: Outcome) -> str:
    wait_us, remaining, reset_us = outcome
    known = _about(check)
    return _LIMIT % (
        known.rule,
        known.notation,
        _BOOLEANS[check.enforced],
        _BOOLEANS[wait_us == 0],
        check.quota.capacity,
        remaining,
        reset_us / MICROSECONDS,
        _seconds(wait_us),
    )


def _seconds(wait_us: int) -> str:
    return "null" if wait_us == NEVER else repr(wait_us / MICROSECONDS)


def _about(check: Check) -> _Known:
    known = _known.get(id(check.quota))
    return known if known is not None and known.name == check.rule else _learn(check)


def _learn(check: Check) -> _Known:
    """What is known of a check's limit; remembered, and the quota with it: its identity is not taken by another."""
    quota = check.quota
    rule, notation = json.dumps(check.rule), json.dumps(str(quota))
    usual = ""
    if quota.algorithm != "leaky_bucket":
        name, size = rule.replace("%", "%%"), quota.capacity
        limit = (
            f'{{"rule":{name},"quota":{notation.replace("%", "%%")},"enforced":true,"allowed":true,"limit":{size},'
            '"remaining":%d,"reset_after":%r,"retry_after":0.0,"delay":0.0}'
        )
        usual = (
            f'{{"allowed":true,"limit":{size},"remaining":%d,"reset_at":%r,"reset_after":%r,"retry_after":0.0,'
            f'"delay":0.0,"rule":{name},"state":"normal","reason":"within_limit","limits":[{limit}]}}'
        )
    if len(_known) >= REMEMBERED:
        _known.clear()
    known = _known[id(quota)] = _Known(quota, check.rule, rule, notation, usual)
    return known
