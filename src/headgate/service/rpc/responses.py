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

_ALMOST: Final = MICROSECONDS - 1  # added before dividing, to round seconds up


def encode(decision: Decision) -> bytes:
    """Return a decision as a CheckResponse: the figures, and the id of a refusal."""
    parts: list[bytes] = []
    _append_response(parts, decision)
    return b"".join(parts)


def encode_figures(decision: Decision) -> bytes:
    """Return a decision as a QuotaResponse, or as a CheckResponse without an id: a peek is not recorded."""
    parts: list[bytes] = []
    _append_figures(parts, decision)
    return b"".join(parts)


def encode_batch(decisions: list[Decision]) -> bytes:
    """Return decisions as a CheckBatchResponse."""
    parts: list[bytes] = []
    for decision in decisions:
        at = len(parts)
        parts.append(b"")
        parts[at] = _responses_prefix(_append_response(parts, decision))
    return b"".join(parts)


def _append_response(parts: list[bytes], decision: Decision) -> int:
    """Append a CheckResponse. Return its size."""
    size = _append_figures(parts, decision)
    if decision.allowed:
        return size
    decision_id = decision.id.encode("ascii")
    parts += (b"\x5a", varint(len(decision_id)), decision_id)
    return size + len(decision_id) + 2  # it is shorter than 128 bytes


def _append_figures(parts: list[bytes], decision: Decision) -> int:
    """Append a CheckResponse without an id. Return its size."""
    reading, order, allowed = decision.reading, decision.order, decision.allowed
    said = (allowed, decision.state, "within_limit" if allowed and reading.causes is not None else decision.reason)
    verdict = _VERDICTS.get(said) or _encode_verdict(said)
    figures, now_us = decision.figures, decision.verdict[0]
    if not order:
        answer = b"%b\x28%b" % (verdict, varint(_seconds(now_us)))
        if not allowed:  # a request is refused because no limit applies to it: waiting does not help
            answer = b"%b\x30%b" % (answer, _NEVER)
        parts.append(answer)
        return len(answer)
    limits: list[_LimitParts] | None = reading.plan.prepared.get(encode_figures)
    if limits is None:
        limits = reading.plan.prepared[encode_figures] = [_encode_limit(limit) for limit in reading.plan.limits]
    size = 0
    for at in order:
        capacity, response, status, starts = limits[at]
        wait_us, remaining, reset_us = figures[at]
        left, reset_at = varint(remaining), _recent_varint((now_us + reset_us + _ALMOST) // MICROSECONDS)
        length = len(left) + len(reset_at)
        if not size:  # the binding limit: its rule, current_count, remaining and reset_at
            used = varint(capacity - remaining)
            parts += (verdict, response, b"\x10", used, b"\x20", left, b"\x28", reset_at)
            size = len(verdict) + len(response) + len(used) + length + 3
            if not allowed:
                wait = _wait(wait_us)
                parts += (b"\x30", wait)  # retry_after
                size += len(wait) + 1
        if wait_us:  # a later value overrides: not allowed
            reset_at = b"%b\x10\x00\x38%b" % (reset_at, _wait(wait_us))
            length = len(left) + len(reset_at)
        start = starts.get(length)
        if start is None:
            start = starts[length] = b"\x52%b%b\x28" % (varint(len(status) + length + 2), status)
        parts += (start, left, b"\x30", reset_at)
        size += len(start) + length + 1
    return size


Verdict = tuple[bool, str, str]  # whether allowed, the state and the reason: a few values each
_VERDICTS: Final[dict[Verdict, bytes]] = {}


def _encode_verdict(said: Verdict) -> bytes:
    allowed, state, reason = said
    verdict = messages.CheckResponse(allowed=allowed, state=state, reason=reason).SerializeToString()
    _VERDICTS[said] = verdict
    return verdict


def _seconds(us: int) -> int:
    return (us + _ALMOST) // MICROSECONDS


def _wait(us: int) -> bytes:
    return _NEVER if us == NEVER else varint(_seconds(us))


# What all answers about a limit have in common: its capacity, its part of a CheckResponse and its LimitStatus when
# allowed, both without figures, and starts of that LimitStatus by the size of its figures.
_LimitParts = tuple[int, bytes, bytes, dict[int, bytes]]


@lru_cache(maxsize=REMEMBERED)
def _encode_limit(check: Check) -> _LimitParts:
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
    return limit, response.SerializeToString(), status.SerializeToString(), {}


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
_recent_varint: Final = lru_cache(maxsize=4_096)(varint)  # for times, which many answers share


@lru_cache(maxsize=4_096)
def _responses_prefix(size: int) -> bytes:
    """Return what precedes a response of this size in a CheckBatchResponse."""
    return b"\x0a" + varint(size)
