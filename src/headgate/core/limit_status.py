"""LimitStatus: one rule's part in a decision."""

from __future__ import annotations

from typing import NamedTuple

from headgate.core.check import NEVER, Check, Outcome
from headgate.core.cost import REQUESTS
from headgate.core.quota import MICROSECONDS, Quota
from headgate.core.verdict import delay_us

# The figures of a decision that its text and its dictionary show.
FIGURES = [
    "allowed",
    "limit",
    "remaining",
    "reset_at",
    "reset_after",
    "retry_after",
    "delay",
    "rule",
    "state",
    "reason",
]


class LimitStatus(NamedTuple):
    """One rule's part in a decision. The figures have the same meaning as in `Decision`."""

    rule: str
    quota: Quota
    enforced: bool
    allowed: bool
    limit: int
    remaining: int
    reset_after: float
    retry_after: float | None
    delay: float
    unit: str = REQUESTS  # what the limit counts


def status_of_limit(limit: Check, outcome: Outcome, cost: int) -> LimitStatus:
    wait_us, remaining, reset_us = outcome
    return LimitStatus(
        rule=limit.rule,
        quota=limit.quota,
        enforced=limit.enforced,
        allowed=wait_us == 0,
        limit=limit.quota.capacity,
        remaining=remaining,
        reset_after=reset_us / MICROSECONDS,
        retry_after=None if wait_us == NEVER else wait_us / MICROSECONDS,
        delay=delay_us(limit, outcome, cost) / MICROSECONDS,
        unit=limit.refusal.unit,
    )
