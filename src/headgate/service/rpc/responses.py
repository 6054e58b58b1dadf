"""Encodes decisions as messages of `headgate.v1`, in protobuf's wire format.

The constant part of each limit is encoded once, and cached with the plan; only figures are added. That is faster than
filling in a message.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from headgate.core.check import NEVER, Check
from headgate.core.decision import Decision
from headgate.core.quota import MICROSECONDS
from headgate.service.protos import rate_limiter_pb2 as messages

REMEMBERED: Final = 4_096  # rules


def written(decision: Decision) -> bytes:
    """Return a decision as a CheckResponse: the figures, and the id of a refusal."""
    figures = written_figures(decision)
    return figures if decision.allowed else b"%b\x5a\x1e%b" % (figures, decision.id.encode("ascii"))  # 30 characters


def written_figures(decision: Decision) -> bytes:
    """Return a decision as a QuotaResponse, or as a CheckResponse without an id: a peek is not recorded."""
    outcomes, plan, order, allowed = decision.outcomes, decision.reading.plan, decision.order, decision.allowed
    now_us: int = decision.verdict[0]
    verdict = _verdict(allowed, decision.state, decision.reason)
    if not order:
        figures = b"%b\x28%b" % (verdict, varint(_seconds(now_us)))
        return (
            figures if allowed else b"%b\x30%b" % (figures, _NEVER)
        )  # refused because no rule applies: waiting does not help
    prepared: list[tuple[Check, bytes, bytes]] | None = plan.prepared.get(written_figures)
    if prepared is None:
        prepared = plan.prepared[written_figures] = [_known.get(id(limit)) or _remember(limit) for limit in plan.limits]
    head = b""
    statuses: list[bytes] = []
    for at in order:
        check, response, status = prepared[at]
        wait_us, remaining, reset_us = outcomes[at]
        left, reset_at = varint(remaining), _recent_varint(-((now_us + reset_us) // -MICROSECONDS))
        if (
            not statuses
        ):  # the binding limit: its rule, current_count, remaining, reset_at, and retry_after of a refusal
            used = varint(check.quota.capacity - remaining)
            head = b"%b%b\x10%b\x20%b\x28%b" % (verdict, response, used, left, reset_at)
            if not allowed:
                head = b"%b\x30%b" % (head, _wait(wait_us))
        if wait_us:  # a later value overrides: not allowed
            reset_at = b"%b\x10\x00\x38%b" % (reset_at, _wait(wait_us))
        size = len(status) + len(left) + len(reset_at) + 2
        statuses.append(b"\x52%b%b\x28%b\x30%b" % (_recent_varint(size), status, left, reset_at))
    return head + b"".join(statuses)


def written_batch(decisions: list[Decision]) -> bytes:
    """Return decisions as a CheckBatchResponse."""
    parts: list[bytes] = []
    for decision in decisions:
        response = written(decision)
        parts += (b"\x0a", _recent_varint(len(response)), response)  # responses
    return b"".join(parts)


@lru_cache(maxsize=64)
def _verdict(allowed: bool, state: str, reason: str) -> bytes:
    return messages.CheckResponse(allowed=allowed, state=state, reason=reason).SerializeToString()


def _seconds(us: int) -> int:
    return -(us // -MICROSECONDS)


def _wait(us: int) -> bytes:
    return _NEVER if us == NEVER else varint(_seconds(us))


# The encoded parts of a rule in every answer, by the identity of its check: a lookup by identity is faster than one by
# value. Each entry keeps its check, so that no other object can reuse that identity. Then come the rule's part of a
# CheckResponse, and its LimitStatus when allowed, both without figures.
_known: dict[int, tuple[Check, bytes, bytes]] = {}


def _remember(check: Check) -> tuple[Check, bytes, bytes]:
    if len(_known) >= REMEMBERED:
        _known.clear()
    limit = check.quota.capacity
    response = messages.CheckResponse(limit=limit, rule=check.rule)
    status = messages.LimitStatus(
        rule=check.rule,
        allowed=True,
        enforced=check.enforced,
        limit=limit,
        quota=str(check.quota),
        unit=check.refusal.unit,
    )
    known = _known[id(check)] = (check, response.SerializeToString(), status.SerializeToString())
    return known


# A varint is written in groups of seven bits, the lowest first; all but the last have the top bit set. The tables hold
# two groups at a time: those in the middle of a number, and those at its end.
_MORE: Final = [bytes((number & 127 | 128, number >> 7 | 128)) for number in range(1 << 14)]
_LAST: Final = [
    bytes((number,)) if number < 128 else bytes((number & 127 | 128, number >> 7)) for number in range(1 << 14)
]


def varint(number: int) -> bytes:
    """Encode a number from 0 to 2^56-1 as a protobuf varint."""
    if number < 1 << 14:
        return _LAST[number]
    if number < 1 << 28:
        return _MORE[number & 16_383] + _LAST[number >> 14]
    if number < 1 << 42:
        return _MORE[number & 16_383] + _MORE[number >> 14 & 16_383] + _LAST[number >> 28]
    return _MORE[number & 16_383] + varint(number >> 14)


_NEVER: Final = b"\xff" * 9 + b"\x01"  # -1
_recent_varint: Final = lru_cache(maxsize=4_096)(varint)  # for times and lengths, which many answers share
