"""envoy.service.ratelimit.v3.RateLimitService: Envoy asks whether a request may pass.

Every descriptor is a check of its own, with a status of its own. All of them are about one request, so they are decided
together: either every limit is charged, or none is. A limit that several descriptors meet is charged once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Final, Literal

from headgate.core.decision import Decision
from headgate.core.quota import MICROSECONDS
from headgate.errors import InvalidCheck
from headgate.http.headers import Charged, binding, fields_of
from headgate.http.problem import MEDIA_TYPE, decision_field, problem
from headgate.service.data_plane import MAX_BATCH, DataPlane, Part
from headgate.service.protos import rls_pb2 as messages
from headgate.service.rpc.descriptors import DESCRIPTOR, facts_of, itself, plan_of_limit
from headgate.service.rpc.method import Method
from headgate.service.rpc.rate_limiter import require_decided

Response = messages.RateLimitResponse

MAX_LOGGED: Final = 100
log = logging.getLogger("headgate")

_LARGEST: Final = 2**32 - 1  # of the figures in a status
_DAY_US: Final = 86_400 * MICROSECONDS
_UNITS: Final[dict[int, int]] = {  # by the window
    MICROSECONDS: Response.RateLimit.SECOND,
    60 * MICROSECONDS: Response.RateLimit.MINUTE,
    3_600 * MICROSECONDS: Response.RateLimit.HOUR,
    _DAY_US: Response.RateLimit.DAY,
    7 * _DAY_US: Response.RateLimit.WEEK,
    30 * _DAY_US: Response.RateLimit.MONTH,
    365 * _DAY_US: Response.RateLimit.YEAR,
}


class RateLimitService:
    """The method. Raises `InvalidCheck`, and `StoreError` when the store cannot decide and a rule fails closed: Envoy
    then does as its own `failure_mode_deny` says."""

    name: Final = "envoy.service.ratelimit.v3.RateLimitService"
    protocol: Final[Literal["envoy"]] = "envoy"

    def __init__(self, data: DataPlane) -> None:
        self._data = data
        self._logged: set[str] = set()  # keys that no rule can name
        self.methods: Mapping[str, Method] = {
            "ShouldRateLimit": Method(
                messages.RateLimitRequest, self.should_rate_limit, size=lambda request: len(request.descriptors)
            )
        }

    async def should_rate_limit(self, request: messages.RateLimitRequest) -> messages.RateLimitResponse:
        parts = self._known(_parts(request))
        decisions = await self._data.check_together(parts)
        for decision in decisions:
            require_decided(decision)
        charged = [Charged(decision, part.cost) for decision, part in zip(decisions, parts, strict=True)]
        allowed = all(decision.allowed for decision in decisions)
        response = Response(overall_code=Response.OK if allowed else Response.OVER_LIMIT)
        for decision in decisions:
            _tell(response.statuses.add(), decision)
        for name, value in fields_of(charged, self._data.limiter.snapshot.headers):
            response.response_headers_to_add.add(key=name.lower(), value=value)
        annotated = [rule for decision in decisions for rule in decision.annotated]
        if allowed and annotated:
            response.dynamic_metadata.update({"annotated": ",".join(dict.fromkeys(annotated))})
        if not allowed:
            refused = binding(charged).decision
            content = [("content-type", MEDIA_TYPE), *decision_field(refused, self._data.limiter.snapshot)]
            for name, value in content:
                response.response_headers_to_add.add(key=name.lower(), value=value)
            response.raw_body = json.dumps(problem(refused)).encode()
            # The protocol has no field for a status. Envoy's local replies can go by metadata: see deploy/envoy.
            told = {"status": str(refused.status), "rule": refused.rule or "", "decision_id": refused.id}
            response.dynamic_metadata.update(told)
        return response

    def _known(self, parts: list[Part]) -> list[Part]:
        """Return the parts without entries whose keys no rule can name, which are logged once.

        They are no error, as they are to other callers: Envoy lets pass what it gets an error for.
        """
        names = self._data.limiter.snapshot.fact_names
        known = []
        for part in parts:
            facts = names.known_among(part.facts)
            known.append(part if len(facts) == len(part.facts) else part._replace(facts=facts))
            for name in part.facts.keys() - facts.keys() - self._logged:
                if len(self._logged) < MAX_LOGGED:
                    self._logged.add(name)
                    log.warning("Envoy: an entry of a descriptor is left out: %s", names.describe_unknown(name))
        return known


def _parts(request: messages.RateLimitRequest) -> list[Part]:
    domain, descriptors = request.domain, request.descriptors
    if not domain:
        raise InvalidCheck("domain: must not be empty")
    if not 1 <= len(descriptors) <= MAX_BATCH:
        raise InvalidCheck(f"descriptors: must be from 1 to {MAX_BATCH:,}, got {len(descriptors):,}")
    parts = []
    for place, descriptor in enumerate(descriptors):
        try:
            parts.append(_part(domain, descriptor, request.hits_addend or 1))
        except InvalidCheck as error:
            raise InvalidCheck(f"descriptors[{place}]: {error}") from None
    return parts


def _part(domain: str, descriptor: messages.RateLimitDescriptor, hits: int) -> Part:
    cost = descriptor.hits_addend.value if descriptor.HasField("hits_addend") else hits
    facts = facts_of(domain, descriptor.entries)
    if not descriptor.HasField("limit"):
        return Part(facts, cost)
    facts[DESCRIPTOR] = itself(domain, descriptor.entries)
    return Part(facts, cost, plan_of_limit(descriptor.limit))


def _tell(status: messages.RateLimitResponse.DescriptorStatus, decision: Decision) -> None:
    """Write a decision into a new status: the figures of the limit that binds, if one applies."""
    status.code = Response.OK if decision.allowed else Response.OVER_LIMIT
    limits = decision.enforced
    if not limits:
        return
    check, outcome = limits[0]
    quota, limit = check.quota, status.current_limit
    limit.requests_per_unit = min(quota.limit, _LARGEST)
    limit.unit = _UNITS.get(quota.window_us, Response.RateLimit.UNKNOWN)  # type: ignore[assignment]
    limit.name = check.rule
    status.limit_remaining = min(outcome.remaining, _LARGEST)
    seconds, us = divmod(outcome.reset_us, MICROSECONDS)
    status.duration_until_reset.seconds = seconds
    status.duration_until_reset.nanos = us * 1_000
