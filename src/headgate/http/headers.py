"""Decisions as header fields: X-RateLimit-*, and RateLimit and RateLimit-Policy of
draft-ietf-httpapi-ratelimit-headers.

Only enforced limits appear, so that clients do not see a rule on trial. A rule with action `annotate` appears when it
is over its limit.
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
from headgate.core.cost import REQUESTS, Cost, cost_text
from headgate.core.decision import Decision
from headgate.core.quota import CONCURRENCY, MICROSECONDS
from headgate.core.verdict import restrictiveness
from headgate.rules.snapshot import HeaderStyle

Fields = list[tuple[str, str]]
RawFields = list[tuple[bytes, bytes]]

DECISION_ID: Final = "X-RateLimit-Decision-Id"
_PLAIN: Final = re.compile(r"[ !#-\[\]-~]*")  # a string that structured fields can hold unescaped
_LONGEST: Final = 999_999_999_999_999  # the largest integer of structured fields
_ALMOST: Final = MICROSECONDS - 1  # added before dividing, to round seconds up
REMEMBERED: Final = 4_096  # limits
MAX_ORDERS: Final = 256  # of one plan's limits


class Charged(NamedTuple):
    """A decision on a request, the request's cost, and the limiter that decided."""

    decision: Decision
    cost: Cost = 1
    limiter: Any = None


def fields_of(charged: Sequence[Charged], style: HeaderStyle = "both") -> Fields:
    """Return the response's fields for a request with these decisions, as strings."""
    return [(_NAMES[name], value.decode("ascii")) for name, value in raw_fields_of(charged, style)]


def raw_fields_of(charged: Sequence[Charged], style: HeaderStyle = "both") -> RawFields:
    """Return the response's fields for a request with these decisions, in ASGI's form.

    The X-RateLimit fields describe the most restrictive limit. Without an enforced limit there are no such fields.
    """
    if len(charged) == 1:
        decision, cost, _ = charged[0]
        return render(decision, cost, style)
    limits = sorted((pair for one in charged for pair in one.decision.enforced), key=restrictiveness)
    notes = _annotation([rule for one in charged for rule in one.decision.annotated])
    if not limits:
        return fields_of_style(notes, style)
    decision, cost, _ = binding(charged)
    warns = any(one.decision.state == "warning" for one in charged)
    arranged = _arrange([(at, limit) for at, (limit, _) in enumerate(limits)])
    fields = _fields(decision, cost, arranged, [outcome for _, outcome in limits], warns)
    return fields_of_style(fields + notes, style)


def render(decision: Decision, cost: Cost = 1, style: HeaderStyle = "both") -> RawFields:
    """Return the response's fields for a request with one decision.

    The parts that all responses share are computed once, and cached with the plan.
    """
    outcomes, plan, order = decision.outcomes, decision.reading.plan, decision.order
    known: dict[tuple[int, ...], _Arranged] | None = plan.prepared.get(render)
    if known is None:
        known = plan.prepared[render] = {}
    arranged = known.get(order)
    if arranged is None:
        if len(known) >= MAX_ORDERS:
            known.clear()
        arranged = known[order] = _arrange([(at, plan.limits[at]) for at in order if plan.limits[at].enforced])
    fields = _fields(decision, cost, arranged, outcomes, decision.state == "warning") if arranged.indexes else []
    if plan.annotates:
        fields += _annotation(decision.annotated)
    return fields if style == "both" else fields_of_style(fields, style)


def fields_of_style(fields: RawFields, style: HeaderStyle) -> RawFields:
    """Return the fields of this style: always `Retry-After`, and annotations unless the style is `off`."""
    return [field for field in fields if field[0] not in _HIDDEN[style]]


class _Arranged(NamedTuple):
    """Limits in the order of the header fields, and the parts of their fields that all responses share."""

    limit: tuple[bytes, bytes]  # the field X-RateLimit-Limit
    policies: tuple[bytes, bytes]  # the field RateLimit-Policy
    statuses: bytes  # format of RateLimit's value: remaining and seconds to the reset, for each limit
    start: str  # of the first limit's item: `"search-free";r=`
    indexes: tuple[int, ...]  # of the limits among the outcomes


def _arrange(limits: Sequence[tuple[int, Check]]) -> _Arranged:
    texts = [_texts_of(limit) for _, limit in limits]
    return _Arranged(
        (b"x-ratelimit-limit", texts[0].limit if texts else b""),
        (b"ratelimit-policy", ", ".join([text.policy for text in texts]).encode()),
        ", ".join([text.start.replace("%", "%%") + "%d;t=%d" for text in texts]).encode(),
        texts[0].start if texts else "",
        tuple([index for index, _ in limits]),
    )


def _fields(decision: Decision, cost: Cost, arranged: _Arranged, outcomes: Sequence[Outcome], warns: bool) -> RawFields:
    """Return the fields of a decision whose limits are in this order, the most restrictive first."""
    limit_field, policies, statuses, start, indexes = arranged
    figures: tuple[int, ...] = ()
    for index in indexes:
        outcome = outcomes[index]
        remaining = outcome[1]
        figures += (remaining if remaining <= _LONGEST else _LONGEST, (outcome[2] + _ALMOST) // MICROSECONDS)
    _, remaining, reset_us = outcomes[indexes[0]]
    until = (decision.verdict[0] + reset_us + _ALMOST) // MICROSECONDS
    fields = [
        limit_field,
        (b"x-ratelimit-remaining", b"%d" % remaining),
        (b"x-ratelimit-reset", b"%d" % until),
        policies,
        (b"ratelimit", statuses % figures),
    ]
    if cost != 1:
        fields.append((b"x-ratelimit-cost", cost_text(cost).encode()))
    if not decision.allowed:
        if decision.retry_after is not None:
            fields.append((b"retry-after", b"%d" % ceil(decision.retry_after)))
    elif warns:
        fields.append((b"x-ratelimit-warning", f"{start}{remaining};q={limit_field[1].decode()}".encode()))
    return fields


def _annotation(rules: Sequence[str]) -> RawFields:
    """Return the field that names the `annotate` rules that are over their limits."""
    return [(b"x-ratelimit-annotation", ", ".join(map(string, rules)).encode())] if rules else []


def raw(fields: Fields) -> RawFields:
    """Return fields in ASGI's form."""
    return [(_RAW[name], value.encode()) for name, value in fields]


_RAW: Final = {
    name: name.lower().encode()
    for name in (
        *("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "RateLimit-Policy", "RateLimit"),
        *("X-RateLimit-Cost", "X-RateLimit-Warning", "X-RateLimit-Annotation", "Retry-After"),
        *("Content-Type", "Content-Length", "Cache-Control", DECISION_ID),
    )
}
_IETF: Final = frozenset({b"ratelimit-policy", b"ratelimit"})
_X: Final = frozenset(
    {b"x-ratelimit-limit", b"x-ratelimit-remaining", b"x-ratelimit-reset", b"x-ratelimit-cost", b"x-ratelimit-warning"}
)
_HIDDEN: Final[dict[str, frozenset[bytes]]] = {
    "both": frozenset(),
    "ietf": _X,
    "x": _IETF,
    "off": _X | _IETF | {b"x-ratelimit-annotation"},
}
_NAMES: Final = {name: text for text, name in _RAW.items()}


def binding(charged: Sequence[Charged]) -> Charged:
    """Return the decision that answers a request: a refusal if there is one, else the most restrictive limit's."""
    ranked = [(restrictiveness(one.decision.enforced[0]), one) for one in charged if one.decision.enforced]
    return min(ranked, key=itemgetter(0))[1] if ranked else charged[0]


class _Texts(NamedTuple):
    """The parts of a limit's fields that are the same in every response."""

    limit: bytes
    policy: str  # `"search-free";q=100;w=3600`. For a bucket: its capacity and the time to fill it
    start: str  # of the limit's item: `"search-free";r=`


def _texts_of(limit: Check) -> _Texts:
    quota = limit.quota
    if quota.algorithm == CONCURRENCY:
        name = string(limit.rule)
        policy = f'{name};q={min(quota.limit, _LONGEST)};qu="concurrent-requests"'
        return _Texts(b"%d" % quota.limit, policy, f"{name};r=")
    window_us = 0 if quota.calendar is not None else quota.window_us  # months differ in length
    return _static(limit.rule, quota.capacity, quota.limit, window_us, limit.refusal.unit)


@lru_cache(maxsize=REMEMBERED)
def _static(rule: str, capacity: int, limit: int, window_us: int, unit: str) -> _Texts:
    name = string(rule)
    filling_us = -(capacity * window_us // -limit)
    policy = f"{name};q={min(capacity, _LONGEST)}"
    if window_us:
        policy += f";w={-(filling_us // -MICROSECONDS)}"
    if unit != REQUESTS:
        policy += f";qu={string(unit)}"
    return _Texts(b"%d" % capacity, policy, f"{name};r=")


@lru_cache(maxsize=REMEMBERED)
def string(text: str) -> str:
    """Return text as a structured field's string (RFC 9651). Non-ASCII characters are percent-encoded."""
    if not _PLAIN.fullmatch(text):
        text = quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~", errors="surrogatepass")
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
