"""Decisions as messages of `headgate.v1`, in the form that they have on the wire.

The usual decision, on one rule that is far from being reached, is most of all that a service answers. What it says of
the rule is written once, and only figures are added to it: some times quicker than to fill in a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from headgate.core.check import NEVER, Check, Outcome
from headgate.core.decision import Decision
from headgate.core.quota import MICROSECONDS
from headgate.service.data import Concluded
from headgate.service.protos import rate_limiter_pb2 as messages

REMEMBERED: Final = 4_096  # rules


def written(decision: Decision) -> bytes:
    """A decision as a CheckResponse, and as a QuotaResponse, which has the same fields."""
    usual = decision.usual()
    if usual is None:
        return _written_whole(decision)
    now_us, check, remaining, reset_us = usual
    _, response, status = _known.get(id(check)) or _remember(check)
    left, reset_at = varint(remaining), _recent_varint(-((now_us + reset_us) // -MICROSECONDS))
    used, length = varint(check.quota.capacity - remaining), _recent_varint(len(status) + len(left) + len(reset_at) + 2)
    # current_count, remaining, reset_at, and limits, of which one is there: with remaining and reset_at
    figures = (_USUAL, response, used, left, reset_at, length, status, left, reset_at)
    return b"%b%b\x10%b\x20%b\x28%b\x52%b%b\x28%b\x30%b" % figures


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


def _written_whole(decision: Decision) -> bytes:
    now_us, pairs = decision.at_us, decision.ranked
    if not pairs:
        return b"%b\x28%b" % (_verdict(decision.allowed, decision.state, decision.reason), varint(_seconds(now_us)))
    check, (wait_us, remaining, reset_us) = pairs[0]  # the one that binds
    parts = [
        _verdict(decision.allowed, decision.state, decision.reason),
        (_known.get(id(check)) or _remember(check))[1],
        b"\x10%b\x20%b" % (varint(check.quota.capacity - remaining), varint(remaining)),  # current_count, remaining
        b"\x28%b" % _recent_varint(_seconds(now_us + reset_us)),  # reset_at
    ]
    if not decision.allowed:
        parts.append(b"\x30%b" % _wait(wait_us))  # retry_after
    for one, outcome in pairs:
        status = _status(one, outcome, now_us)
        parts += (b"\x52", varint(len(status)), status)  # limits
    return b"".join(parts)


def _status(check: Check, outcome: Outcome, now_us: int) -> bytes:
    """A LimitStatus. What is said later counts: that it is not allowed."""
    wait_us, remaining, reset_us = outcome
    known = (_known.get(id(check)) or _remember(check))[2]
    status = b"%b\x28%b\x30%b" % (known, varint(remaining), _recent_varint(_seconds(now_us + reset_us)))
    return b"%b\x10\x00\x38%b" % (status, _wait(wait_us)) if wait_us else status


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
