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
from headgate.core.decision import Decision
from headgate.core.quota import MICROSECONDS
from headgate.http.headers import Charged, binding, raw_fields_of, render
from headgate.http.problem import MEDIA_TYPE, decision_field, problem
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


def written(charged: Sequence[Charged], whole: Decision | None, snapshot: Snapshot) -> bytes:
    """Return the response to a request from its descriptors' decisions, in their order.

    `whole` is one decision that is equivalent to all of them, if there is one.
    """
    allowed = True
    parts = [b""]
    for decision, _, _ in charged:
        allowed = allowed and decision.allowed
        status = _status(decision)
        parts += (b"\x12", varint(len(status)), status)
    parts[0] = _CODES[allowed]
    cost = charged[0].cost
    if whole is None or any(one.cost != cost for one in charged):
        fields = raw_fields_of(charged, snapshot.headers)
    else:
        fields = render(whole, cost, snapshot.headers)
    parts += [_header(field) if field[0] in _CHANGING else _known_header(field) for field in fields]
    if not allowed:
        parts.append(_refusal(charged, snapshot))
    else:
        annotated = [rule for one in charged if one.decision.plan.annotates for rule in one.decision.annotated]
        if annotated:
            response = Response()
            response.dynamic_metadata.update({"annotated": ",".join(dict.fromkeys(annotated))})
            parts.append(response.SerializeToString())
    return b"".join(parts)


def _status(decision: Decision) -> bytes:
    """Return a decision as a DescriptorStatus, with the figures of the binding limit, if any."""
    plan, order = decision.reading.plan, decision.order
    if not order or not plan.limits[order[0]].enforced:
        return _CODES[decision.allowed]
    limits: list[bytes] | None = plan.prepared.get(_status)
    if limits is None:
        limits = plan.prepared[_status] = [_current_limit(limit) for limit in plan.limits]
    at = order[0]
    _, remaining, reset_us = decision.outcomes[at]
    seconds, us = divmod(reset_us, MICROSECONDS)
    duration = b"\x08%b\x10%b" % (varint(seconds), varint(us * 1_000))
    left = varint(remaining if remaining < _LARGEST else _LARGEST)
    return b"%b%b\x18%b\x22%b%b" % (_CODES[decision.allowed], limits[at], left, varint(len(duration)), duration)


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
    header = b"\x0a%b%b\x12%b%b" % (varint(len(name)), name, varint(len(value)), value)
    return b"\x1a%b%b" % (varint(len(header)), header)


_CHANGING: Final = frozenset((b"x-ratelimit-remaining", b"ratelimit"))  # differ between responses
_known_header: Final = lru_cache(maxsize=REMEMBERED)(_header)


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
