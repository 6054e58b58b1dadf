"""envoy.service.ratelimit.v3.RateLimitService: Envoy asks whether to allow a request.

Every descriptor is a separate check with its own status. All of them describe one request, so they are decided
together: either every limit is charged, or none is. A limit that several descriptors match is charged once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Final, Literal

from headgate.errors import InvalidCheck
from headgate.limiter.batch import DecidedTogether
from headgate.rules.snapshot import Snapshot
from headgate.service.data_plane import MAX_BATCH, DataPlane, RequestPart
from headgate.service.protos import rls_pb2 as messages
from headgate.service.rpc.descriptors import DESCRIPTOR, DescriptorFacts, plan_of_limit, text_of_descriptor
from headgate.service.rpc.envoy_responses import encode_response
from headgate.service.rpc.method import Answered, Method
from headgate.service.rpc.rate_limiter import require_decided


class RateLimitService:
    """Envoy's rate limit service. Raises `InvalidCheck`, and `StoreError` if the store fails and a rule fails closed:
    then Envoy's own `failure_mode_deny` applies."""

    name: Final = "envoy.service.ratelimit.v3.RateLimitService"
    protocol: Final[Literal["envoy"]] = "envoy"

    def __init__(self, data: DataPlane) -> None:
        self._data = data
        self._descriptors = DescriptorFacts()
        self.methods: Mapping[str, Method] = {"ShouldRateLimit": Method(self.should_rate_limit)}

    def should_rate_limit(self, received: bytes) -> Answered | Awaitable[Answered]:
        snapshot = self._data.limiter.holder.current
        parts = self._parts(messages.RateLimitRequest.FromString(received), snapshot)
        decided = self._data.begin_together(parts)
        if isinstance(decided, DecidedTogether):
            return _answer(parts, decided, snapshot)
        return self._await(parts, decided, snapshot)

    async def _await(
        self, parts: list[RequestPart], answer: Awaitable[DecidedTogether], snapshot: Snapshot
    ) -> Answered:
        return _answer(parts, await answer, snapshot)

    def _parts(self, request: messages.RateLimitRequest, snapshot: Snapshot) -> list[RequestPart]:
        domain, descriptors = request.domain, request.descriptors
        if not domain:
            raise InvalidCheck("domain: must not be empty")
        if not 1 <= len(descriptors) <= MAX_BATCH:
            raise InvalidCheck(f"descriptors: must be from 1 to {MAX_BATCH:,}, got {len(descriptors):,}")
        parts, hits, known = [], request.hits_addend or 1, snapshot.fact_names
        for place, descriptor in enumerate(descriptors):
            try:
                entries = descriptor.entries
                facts = self._descriptors.facts(domain, entries, known)
                plan = None
                if descriptor.HasField("limit"):
                    facts[DESCRIPTOR] = text_of_descriptor(domain, entries)
                    plan = plan_of_limit(descriptor.limit)
            except InvalidCheck as error:
                raise InvalidCheck(f"descriptors[{place}]: {error}") from None
            cost = descriptor.hits_addend.value if descriptor.HasField("hits_addend") else hits
            parts.append(RequestPart(facts, cost, plan))
        return parts


def _answer(parts: list[RequestPart], decided: DecidedTogether, snapshot: Snapshot) -> Answered:
    for decision in decided.parts:
        if not decision.allowed:
            require_decided(decision)
    return encode_response(decided, [cost for _, cost, _ in parts], snapshot), len(parts)
