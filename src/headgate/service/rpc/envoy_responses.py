"""Encodes decisions as Envoy's RateLimitResponse, in protobuf's wire format.

The constant part of each limit is encoded once, and cached with the plan; only figures are added. The parts of refusals
are encoded by protobuf: concatenated messages are read as one merged message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from headgate.core.check import Check
from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.core.quota import MICROSECONDS
from headgate.http.headers import Charged, binding, raw_fields_of, render
from headgate.http.problem import MEDIA_TYPE, decision_field, problem
from headgate.limiter.batch import DecidedTogether
from headgate.rules.snapshot import Snapshot
from headgate.service.protos import rls_pb2 as messages
from headgate.service.rpc.responses import varint

Response = messages.RateLimitResponse

REMEMBERED: Final = 1_024  # header fields

_LARGEST: Final = 2**32 - 1  # figure in a status
_DAY_US: Final = 86_400 * MICROSECONDS
_UNITS: Final[dict[int, int]] = {  # by window
    MICROSECONDS: Response.RateLimit.SECOND,
    60 * MICROSECONDS: Response.RateLimit.MINUTE,
    3_600 * MICROSECONDS: Response.RateLimit.HOUR,
    _DAY_US: Response.RateLimit.DAY,
    7 * _DAY_US: Response.RateLimit.WEEK,
    30 * _DAY_US: Response.RateLimit.MONTH,
    365 * _DAY_US: Response.RateLimit.YEAR,
}
_CODES: Final = {True: b"\x08\x01", False: b"\x08\x02"}  # OK, OVER_LIMIT: the first field of response and status


def encode_response(decided: DecidedTogether, costs: Sequence[Cost], snapshot: Snapshot) -> bytes:
    """Return the response to a request from its descriptors' decisions, and from the costs of the descriptors."""
    decisions, whole = decided
    allowed, annotates = True, False
    parts = [b""]
    for decision in decisions:
        if not decision.allowed:
            allowed = False
        if decision.reading.plan.annotates:
            annotates = True
        parts.append(_status(decision))
    parts[0] = _CODES[allowed]
    cost = costs[0]
    if whole is not None and (len(costs) == 1 or costs.count(cost) == len(costs)):
        fields = render(whole, cost, snapshot.headers)
    else:
        fields = raw_fields_of(list(map(Charged, decisions, costs)), snapshot.headers)
    for field in fields:
        parts.append(_header(field) if field[0] in _CHANGING else _known_header(field))
    if not allowed:
        parts.append(_refusal(list(map(Charged, decisions, costs)), snapshot))
    elif annotates:
        parts.append(_annotation([rule for decision in decisions for rule in decision.annotated]))
    return b"".join(parts)


# The codes of a status without figures, as entries of `statuses`.
_BARE_STATUSES: Final = {allowed: b"\x12\x02" + code for allowed, code in _CODES.items()}


def _status(decision: Decision) -> bytes:
    """Return a decision as an entry of `statuses`, with the figures of the binding limit, if any."""
    order = decision.order
    if not order:
        return _BARE_STATUSES[decision.allowed]
    prepared = decision.reading.plan.prepared
    limits: list[bytes | None] | None = prepared.get(_status)
    if limits is None:
        found = decision.reading.plan.limits
        limits = prepared[_status] = [_current_limit(limit) if limit.enforced else None for limit in found]
    at = order[0]
    limit = limits[at]
    if limit is None:
        return _BARE_STATUSES[decision.allowed]
    _, remaining, reset_us = decision.figures[at]
    seconds, us = divmod(reset_us, MICROSECONDS)
    left, whole, ns = varint(remaining if remaining < _LARGEST else _LARGEST), varint(seconds), varint(us * 1_000)
    size = len(whole) + len(ns) + 2  # of the duration, which takes a byte to write
    code = _CODES[decision.allowed]
    total = varint(len(limit) + len(left) + size + 5)  # of the status: its code takes two bytes
    return b"\x12%b%b%b\x18%b\x22%c\x08%b\x10%b" % (total, code, limit, left, size, whole, ns)


def _current_limit(limit: Check) -> bytes:
    """Return the field `current_limit` of a status."""
    status = Response.DescriptorStatus()
    status.current_limit.requests_per_unit = min(limit.quota.limit, _LARGEST)
    status.current_limit.unit = _UNITS.get(limit.quota.window_us, Response.RateLimit.UNKNOWN)  # type: ignore[assignment]
    status.current_limit.name = limit.rule
    return status.SerializeToString()


def _header(field: tuple[bytes, bytes]) -> bytes:
    """Return a header field as an entry of `response_headers_to_add`."""
    name, value = field
    size = len(value)
    if size < _SHORT:
        return b"\x1a%c\x0a%c%b\x12%c%b" % (len(name) + size + 4, len(name), name, size, value)
    length = varint(size)
    return b"\x1a%b\x0a%c%b\x12%b%b" % (varint(3 + len(name) + len(length) + size), len(name), name, length, value)


_SHORT: Final = 64  # bytes of a value: with its name, which is shorter, its length takes a byte to write
_CHANGING: Final = frozenset((b"x-ratelimit-remaining", b"ratelimit"))  # differ between responses
_known_header: Final = lru_cache(maxsize=REMEMBERED)(_header)


def _annotation(rules: Sequence[str]) -> bytes:
    """Return the metadata that name rules of action `annotate` that are over their limits."""
    response = Response()
    if rules:
        response.dynamic_metadata.update({"annotated": ",".join(dict.fromkeys(rules))})
    return response.SerializeToString()


def _refusal(charged: Sequence[Charged], snapshot: Snapshot) -> bytes:
    """Return the fields of a refusal: problem details, and metadata for Envoy's local replies."""
    refused, response = binding(charged).decision, Response()
    for name, value in [("content-type", MEDIA_TYPE), *decision_field(refused, snapshot)]:
        response.response_headers_to_add.add(key=name.lower(), value=value)
    response.raw_body = json.dumps(problem(refused)).encode()
    # The protocol has no field for a status. Envoy's local replies can use metadata: see deploy/envoy.
    response.dynamic_metadata.update(
        {"status": str(refused.status), "rule": refused.rule or "", "decision_id": refused.id}
    )
    return response.SerializeToString()
