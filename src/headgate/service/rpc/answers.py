"""Decisions as messages of `headgate.v1`, in the form that they have on the wire.

What a decision says of the limits of its plan is written once, and kept with the plan; only figures are added to it.
That takes less time than to fill in a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from headgate.core.check import NEVER, Check
from headgate.core.decision import Decision
from headgate.core.quota import MICROSECONDS
from headgate.service.data import Concluded
from headgate.service.protos import rate_limiter_pb2 as messages

REMEMBERED: Final = 4_096  # rules


def written(decision: Decision) -> bytes:
    """A decision as a CheckResponse, and as a QuotaResponse, which has the same fields."""
    outcomes, plan, order, allowed = decision.outcomes, decision.reading.plan, decision.order, decision.allowed
    now_us: int = decision.verdict[0]
    verdict = _verdict(allowed, decision.state, decision.reason)
    if not order:
        return b"%b\x28%b" % (verdict, varint(_seconds(now_us)))
    prepared: list[tuple[Check, bytes, bytes]] | None = plan.prepared.get(written)
    if prepared is None:
        prepared = plan.prepared[written] = [_known.get(id(limit)) or _remember(limit) for limit in plan.limits]
    head = b""
    statuses: list[bytes] = []
    for at in order:
        check, response, status = prepared[at]
        wait_us, remaining, reset_us = outcomes[at]
        left, reset_at = varint(remaining), _recent_varint(-((now_us + reset_us) // -MICROSECONDS))
        if not statuses:  # the one that binds: its rule, current_count, remaining, reset_at, and perhaps retry_after
            used = varint(check.quota.capacity - remaining)
            head = b"%b%b\x10%b\x20%b\x28%b" % (verdict, response, used, left, reset_at)
            if not allowed:
                head = b"%b\x30%b" % (head, _wait(wait_us))
        if wait_us:  # what is said later counts: that it is not allowed
            reset_at = b"%b\x10\x00\x38%b" % (reset_at, _wait(wait_us))
        size = len(status) + len(left) + len(reset_at) + 2
        statuses.append(b"\x52%b%b\x28%b\x30%b" % (_recent_varint(size), status, left, reset_at))
    return head + b"".join(statuses)


def written_batch(decisions: list[Decision]) -> bytes:
    """Decisions as a CheckBatchResponse."""
    parts: list[bytes] = []
    for decision in decisions:
        response = written(decision)
        parts += (b"\x0a", _recent_varint(len(response)), response)  # responses
    return b"".join(parts)


def written_alike(concluded: Sequence[Concluded]) -> bytes:
    """Decisions on requests that are alike, as a CheckBatchResponse."""
    parts: list[bytes] = []
    for some in concluded:
        responses = written_usual(some)
        for place, decision in some.unusual.items():
            responses[place] = written(decision)
        for response in responses:
            size = len(response)
            parts += (b"\x0a", _LAST[size] if size < 1 << 14 else varint(size), response)  # responses
    return b"".join(parts)


def written_usual(concluded: Concluded) -> list[bytes]:
    """Decisions on requests that are alike, each as a CheckResponse: of those that are not as usual, nonsense."""
    checks, (now_us, figures, _), _, _, orders = concluded
    step = 3 * len(checks)
    seconds = {us: _recent_varint(_seconds(now_us + us)) for us in set(figures[2::3])}  # nearly always a few
    columns = [
        _Column(check, figures[3 * at + 1 :: step], [seconds[us] for us in figures[3 * at + 2 :: step]])
        for at, check in enumerate(checks)
    ]
    if len(columns) == 1:
        return [columns[0].written(place, b"") for place in range(len(orders))]
    return [
        columns[first].written(place, b"".join([columns[at].status(place) for at in others]))
        for place, (first, *others) in enumerate(orders)
    ]


class _Column:
    """What one check has to say in each of many usual answers."""

    __slots__ = ("_head", "_lefts", "_lengths", "_limit", "_remaining", "_resets_at", "_status")

    def __init__(self, check: Check, remaining: Sequence[int], resets_at: Sequence[bytes]) -> None:
        _, response, self._status = _known.get(id(check)) or _remember(check)
        self._head = _USUAL + response
        self._limit = check.quota.capacity
        self._remaining = remaining
        self._lefts = list(map(varint, remaining))
        self._resets_at = resets_at
        # Of a status, by what its figures take: they are two numbers.
        self._lengths = [varint(len(self._status) + 2 + more) for more in range(2 * len(_NEVER) + 1)]

    def written(self, place: int, others: bytes) -> bytes:
        """The whole answer, if it is this check that binds. `others` are the statuses of all other checks."""
        left, reset_at = self._lefts[place], self._resets_at[place]
        used, length = varint(self._limit - self._remaining[place]), self._lengths[len(left) + len(reset_at)]
        figures = (self._head, used, left, reset_at, length, self._status, left, reset_at, others)
        return b"%b\x10%b\x20%b\x28%b\x52%b%b\x28%b\x30%b%b" % figures

    def status(self, place: int) -> bytes:
        """The check's part in `limits`."""
        left, reset_at = self._lefts[place], self._resets_at[place]
        return b"\x52%b%b\x28%b\x30%b" % (self._lengths[len(left) + len(reset_at)], self._status, left, reset_at)


@lru_cache(maxsize=64)
def _verdict(allowed: bool, state: str, reason: str) -> bytes:
    return messages.CheckResponse(allowed=allowed, state=state, reason=reason).SerializeToString()


_USUAL: Final = _verdict(True, "normal", "within_limit")


def _seconds(us: int) -> int:
    return -(us // -MICROSECONDS)


def _wait(us: int) -> bytes:
    return _NEVER if us == NEVER else varint(_seconds(us))


# What is told of a rule in every answer, by the identity of its check, which is found quicker than all that the check
# consists of. The check is kept, so that no other takes its identity. Then, the part of it in a CheckResponse, and a
# LimitStatus that is allowed, both without figures.
_known: dict[int, tuple[Check, bytes, bytes]] = {}


def _remember(check: Check) -> tuple[Check, bytes, bytes]:
    if len(_known) >= REMEMBERED:
        _known.clear()
    limit = check.quota.capacity
    response = messages.CheckResponse(limit=limit, rule=check.rule)
    status = messages.LimitStatus(
        rule=check.rule, allowed=True, enforced=check.enforced, limit=limit, quota=str(check.quota)
    )
    known = _known[id(check)] = (check, response.SerializeToString(), status.SerializeToString())
    return known


# Numbers are written in groups of seven bits, the lowest first; all but the last have the top bit set. Two groups at a
# time are looked up here: those that more follow, and those that end a number.
_MORE: Final = [bytes((number & 127 | 128, number >> 7 | 128)) for number in range(1 << 14)]
_LAST: Final = [
    bytes((number,)) if number < 128 else bytes((number & 127 | 128, number >> 7)) for number in range(1 << 14)
]


def varint(number: int) -> bytes:
    """A number from 0 to 2^56-1, as protobuf writes it."""
    if number < 1 << 14:
        return _LAST[number]
    if number < 1 << 28:
        return _MORE[number & 16_383] + _LAST[number >> 14]
    if number < 1 << 42:
        return _MORE[number & 16_383] + _MORE[number >> 14 & 16_383] + _LAST[number >> 28]
    return _MORE[number & 16_383] + varint(number >> 14)


_NEVER: Final = b"\xff" * 9 + b"\x01"  # -1
_recent_varint: Final = lru_cache(maxsize=4_096)(varint)  # for times and lengths, which many answers have in common
