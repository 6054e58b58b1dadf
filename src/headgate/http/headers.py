"""Decisions as header fields: the X-RateLimit ones, and RateLimit and RateLimit-Policy of
draft-ietf-httpapi-ratelimit-headers.

Only limits that are enforced are told of: clients need not know of a rule that is being tried out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from operator import itemgetter
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from headgate.core.check import Check, Outcome
from headgate.core.decision import Decision, restrictiveness
from headgate.core.quota import MICROSECONDS

Fields = list[tuple[str, str]]
RawFields = list[tuple[bytes, bytes]]

_PLAIN: Final = re.compile(r"[ !#-\[\]-~]*")  # what a string of structured fields may hold as it is
_LONGEST: Final = 999_999_999_999_999  # of an integer in structured fields
_MOST: Final = b"%d" % _LONGEST
_ALMOST: Final = MICROSECONDS - 1  # added before seconds are counted: those that have begun count
REMEMBERED: Final = 4_096  # limits


class Charged(NamedTuple):
    """A decision on a request, what the request costs, and who decided."""

    decision: Decision
    cost: int = 1
    limiter: Any = None


def fields_of(charged: Sequence[Charged]) -> Fields:
    """The fields of the response to a request on which these decisions were made.

    The most restrictive limit of them all gives the X-RateLimit figures. Without an enforced limit, there are none.
    """
    if len(charged) == 1:  # nearly always
        decision, cost, _ = charged[0]
        limits = decision.enforced
        warns = decision.state == "warning"
    elif not charged:
        return []
    else:
        decision, cost, _ = binding(charged)
        limits = sorted((pair for one in charged for pair in one.decision.enforced), key=restrictiveness)
        warns = any(one.decision.state == "warning" for one in charged)
    if not limits:
        return []
    check, (_, remaining, reset_us) = limits[0]
    quota = check.quota
    limit, policies, name = _static(check.rule, quota.capacity, quota.limit, quota.window_us)
    statuses = f"{name};r={min(remaining, _LONGEST)};t={-(reset_us // -MICROSECONDS)}"
    for other, outcome in limits[1:]:
        policies = f"{policies}, {policy(other)}"
        statuses = f"{statuses}, {status(other.rule, outcome)}"
    fields = [
        ("X-RateLimit-Limit", limit),
        ("X-RateLimit-Remaining", str(remaining)),
        ("X-RateLimit-Reset", str(-((decision.at_us + reset_us) // -MICROSECONDS))),
        ("RateLimit-Policy", policies),
        ("RateLimit", statuses),
    ]
    if cost != 1:
        fields.append(("X-RateLimit-Cost", str(cost)))
    if not decision.allowed:
        if decision.retry_after is not None:
            fields.append(("Retry-After", str(ceil(decision.retry_after))))
    elif warns:
        fields.append(("X-RateLimit-Warning", f"{name};r={remaining};q={limit}"))
    return fields


def raw_fields_of(decision: Decision, cost: int = 1) -> RawFields:
    """The fields of the response to a request on which one decision was made, as ASGI wants them."""
    usual = raw_usual(decision) if cost == 1 else None
    return raw(fields_of((Charged(decision, cost),))) if usual is None else usual


def raw_usual(decision: Decision) -> RawFields | None:
    """What `raw(fields_of(...))` would be of one decision and cost 1, in the usual case: one limit, far from being
    reached. None in all others.
    """
    usual = decision.usual()
    if usual is None:
        return None
    now_us, check, remaining, reset_us = usual
    known = _raw_known.get(check.space)
    if known is None or known[0] is not check:
        known = _raw_static(check)
    _, limit, policies, start = known
    left = b"%d" % remaining
    until = (now_us + reset_us + _ALMOST) // MICROSECONDS
    seconds = (reset_us + _ALMOST) // MICROSECONDS
    return [
        limit,
        (b"x-ratelimit-remaining", left),
        _raw_resets.get(until) or _raw_reset(until),
        policies,
        (
            b"ratelimit",
            start + (left if remaining <= _LONGEST else _MOST) + (_raw_waits.get(seconds) or _raw_wait(seconds)),
        ),
    ]


_RawStatic = tuple[Check, tuple[bytes, bytes], tuple[bytes, bytes], bytes]
_raw_known: Final[dict[str, _RawStatic]] = {}  # by space, and good for that very check: to hash one takes too long


def _raw_static(check: Check) -> _RawStatic:
    """What is told of a check's limit in every response, as ASGI wants it; remembered."""
    quota = check.quota
    limit, policy, name = _static(check.rule, quota.capacity, quota.limit, quota.window_us)
    start = f"{name};r=".encode()
    known = check, (b"x-ratelimit-limit", limit.encode()), (b"ratelimit-policy", policy.encode()), start
    if len(_raw_known) >= REMEMBERED:
        _raw_known.clear()
    _raw_known[check.space] = known
    return known


# Of many responses in a second, all or most say the same of when a limit is whole again.
_raw_resets: Final[dict[int, tuple[bytes, bytes]]] = {}
_raw_waits: Final[dict[int, bytes]] = {}


def _raw_reset(until: int) -> tuple[bytes, bytes]:
    if len(_raw_resets) >= REMEMBERED:
        _raw_resets.clear()
    field = _raw_resets[until] = (b"x-ratelimit-reset", b"%d" % until)
    return field


def _raw_wait(seconds: int) -> bytes:
    if len(_raw_waits) >= REMEMBERED:
        _raw_waits.clear()
    text = _raw_waits[seconds] = b";t=%d" % seconds
    return text


def raw(fields: Fields) -> RawFields:
    """Fields as ASGI wants them."""
    return [(_RAW[name], value.encode()) for name, value in fields]


_RAW: Final = {
    name: name.lower().encode()
    for name in (
        *("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "RateLimit-Policy", "RateLimit"),
        *("X-RateLimit-Cost", "X-RateLimit-Warning", "Retry-After"),
        *("Content-Type", "Content-Length", "Cache-Control"),
    )
}


def binding(charged: Sequence[Charged]) -> Charged:
    """The decision that speaks for a request: a refusal if there is one, else that of the most restrictive limit."""
    ranked = [(restrictiveness(one.decision.enforced[0]), one) for one in charged if one.decision.enforced]
    return min(ranked, key=itemgetter(0))[1] if ranked else charged[0]


def policy(check: Check) -> str:
    """`"search-free";q=100;w=3600`. Of a bucket, all of it and the time that it takes to fill."""
    quota = check.quota
    return _static(check.rule, quota.capacity, quota.limit, quota.window_us).policy


def status(rule: str, outcome: Outcome) -> str:
    """`"search-free";r=42;t=17`."""
    return f"{string(rule)};r={min(outcome.remaining, _LONGEST)};t={-(outcome.reset_us // -MICROSECONDS)}"


class _Static(NamedTuple):
    """What is told of a limit in every response."""

    limit: str
    policy: str
    name: str


@lru_cache(maxsize=REMEMBERED)
def _static(rule: str, capacity: int, limit: int, window_us: int) -> _Static:
    name = string(rule)
    filling_us = -(capacity * window_us // -limit)
    return _Static(str(capacity), f"{name};q={min(capacity, _LONGEST)};w={-(filling_us // -MICROSECONDS)}", name)


@lru_cache(maxsize=REMEMBERED)
def string(text: str) -> str:
    """A text as a string of structured fields (RFC 9651), which hold ASCII only: all else is percent-encoded."""
    if not _PLAIN.fullmatch(text):
        text = quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~", errors="surrogatepass")
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
