"""Decisions as header fields: X-RateLimit-*, and RateLimit and RateLimit-Policy of
draft-ietf-httpapi-ratelimit-headers.

Only enforced limits appear, so that clients do not see a rule on trial. A rule with action `annotate` appears when it
is over its limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from math import ceil
from operator import itemgetter
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from headgate.core.check import Check
from headgate.core.cost import REQUESTS, Cost, cost_text
from headgate.core.decision import Decision
from headgate.core.plan import Plan
from headgate.core.quota import CONCURRENCY, MICROSECONDS
from headgate.core.verdict import Figures, restrictiveness
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
        one = charged[0]
        return render(one[0], one[1], style)
    ranked = [(restrictiveness(pair), pair, one) for one in charged for pair in one.decision.enforced]
    notes = _annotation([rule for one in charged for rule in one.decision.annotated])
    if not ranked:
        return fields_of_style(notes, style)
    ranked.sort(key=itemgetter(0))
    decision, cost, _ = ranked[0][2]  # the binding one
    arranged = _Arranged([(at, limit) for at, (_, (limit, _), _) in enumerate(ranked)])
    figures = [figures for _, (_, figures), _ in ranked]
    fields = arranged.fields(decision.verdict[0], figures)
    if cost != 1 or any(one.decision.state != "normal" for one in charged):
        warned = [at for at, (_, (limit, _), one) in enumerate(ranked) if _is_in_warning(one.decision, limit)]
        fields += arranged.further_fields(decision, cost, figures, warned)
    return fields_of_style(fields + notes, style)


def render(decision: Decision, cost: Cost = 1, style: HeaderStyle = "both") -> RawFields:
    """Return the response's fields for a request with one decision.

    The parts that all responses share are computed once, and cached with the plan.
    """
    plan = decision.reading.plan
    fields: RawFields = []
    if plan.enforced:
        try:
            arranged = plan.prepared[render][decision.order]
        except KeyError:
            arranged = _arrange(plan, decision.order)
        fields = arranged.fields(decision.verdict[0], decision.figures)
        if decision.state != "normal" or cost != 1:
            fields += arranged.further_fields(decision, cost, decision.figures, decision.in_warning)
    if plan.annotates:
        fields += _annotation(decision.annotated)
    return fields if style == "both" else fields_of_style(fields, style)


def _arrange(plan: Plan, order: tuple[int, ...]) -> _Arranged:
    """Return the plan's enforced limits in this order, and keep them with the plan."""
    known: dict[tuple[int, ...], _Arranged] = plan.prepared.setdefault(render, {})
    if len(known) >= MAX_ORDERS:
        known.clear()
    known[order] = arranged = _Arranged([(at, plan.limits[at]) for at in order if plan.limits[at].enforced])
    return arranged


def _is_in_warning(decision: Decision, limit: Check) -> bool:
    """Return whether a limit of this decision is in warning."""
    limits = decision.reading.plan.limits
    return any(limits[at] is limit for at in decision.in_warning)


def fields_of_style(fields: RawFields, style: HeaderStyle) -> RawFields:
    """Return the fields of this style: always `Retry-After`, and annotations unless the style is `off`."""
    return [field for field in fields if field[0] not in _HIDDEN[style]]


class _Arranged:
    """Limits in the order of the header fields, and the parts of their fields that all responses share.

    `limits` are the limits with their indexes among the figures, the most restrictive first. `fields` returns the
    fields that all responses have, given the time and the figures of the decision.
    """

    __slots__ = ("_indexes", "_texts", "fields")

    def __init__(self, limits: Sequence[tuple[int, Check]]) -> None:
        texts = [_texts_of(limit) for _, limit in limits]
        self._indexes = tuple([index for index, _ in limits])
        self._texts = texts
        policies = ", ".join([text.policy for text in texts]).encode()
        # The format of RateLimit's value: remaining and seconds to the reset, for each limit.
        statuses = ", ".join([text.start.replace("%", "%%") + "%d;t=%d" for text in texts]).encode()
        shared = ((b"x-ratelimit-limit", texts[0].limit), (b"ratelimit-policy", policies), statuses)
        self.fields: Callable[[int, Figures], RawFields] = _maker(len(limits))(self._indexes, *shared)

    def further_fields(self, decision: Decision, cost: Cost, figures: Figures, warned: Sequence[int]) -> RawFields:
        """Return the fields that only some responses have. `warned` are the indexes of limits in warning."""
        fields: RawFields = []
        if cost != 1:
            fields.append((b"x-ratelimit-cost", cost_text(cost).encode()))
        if not decision.allowed:
            if decision.retry_after is not None:
                fields.append((b"retry-after", b"%d" % ceil(decision.retry_after)))
        elif warned:
            fields += self._warning(figures, warned)
        return fields

    def _warning(self, figures: Figures, warned: Sequence[int]) -> RawFields:
        """Return the field that names the first limit in warning."""
        for index, text in zip(self._indexes, self._texts, strict=True):
            if index in warned:
                value = f"{text.start}{min(figures[index][1], _LONGEST)};q={min(int(text.limit), _LONGEST)}"
                return [(b"x-ratelimit-warning", value.encode())]
        return []


# Makes the function that returns the fields of all responses, from the time and the figures of limits.
_FIELDS: Final = """\
def make(indexes, limit, policies, statuses):
    ({indexes}) = indexes

    def fields(now, figures):
{lines}
        return [
            limit,
            (b"x-ratelimit-remaining", b"%d" % remaining0),
            (b"x-ratelimit-reset", b"%d" % ((now + reset0 + {almost}) // {second})),
            policies,
            (b"ratelimit", statuses % ({numbers})),
        ]

    return fields
"""


@cache
def _maker(count: int) -> Callable[..., Callable[[int, Figures], RawFields]]:
    """Return the function that `_FIELDS` defines for this many limits. It reads each limit's figures without a loop."""
    numbers = "remaining{0} if remaining{0} <= {longest} else {longest}, (reset{0} + {almost}) // {second}, "
    parts = {
        "index{0}, ": "indexes",
        "        _, remaining{0}, reset{0} = figures[index{0}]\n": "lines",
        numbers: "numbers",
    }
    constants = {"longest": _LONGEST, "almost": _ALMOST, "second": MICROSECONDS}
    repeated = {name: "".join([part.format(at, **constants) for at in range(count)]) for part, name in parts.items()}
    names: dict[str, Any] = {}
    exec(_FIELDS.format(**repeated, **constants), names)
    made: Callable[..., Callable[[int, Figures], RawFields]] = names["make"]
    return made


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
        policy = f"{name};q={min(quota.limit, _LONGEST)};qu={string(f'concurrent-{limit.refusal.unit}')}"
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
