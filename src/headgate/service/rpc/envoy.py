"""envoy.service.ratelimit.v3.RateLimitService: Envoy asks whether to allow a request.

Every descriptor is a separate check with its own status. All of them describe one request, so they are decided
together: either every limit is charged, or none is. A limit that several descriptors match is charged once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Final, Literal

from headgate.errors import InvalidCheck
from headgate.limiter.batch import DecidedTogether
from headgate.rules.snapshot import Snapshot
from headgate.service.data_plane import DataPlane, RequestPart
from headgate.service.rpc.descriptors import (
    DESCRIPTOR,
    DescriptorFacts,
    EnvoyRequest,
    plan_of_limit,
    read_request,
    text_of_descriptor,
)
from headgate.service.rpc.envoy_responses import encode_response
from headgate.service.rpc.method import Answered, Method
from headgate.service.rpc.rate_limiter import require_decided

_new: Final[Any] = tuple.__new__  # makes a named tuple in half the time of calling its class


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
        parts = self._parts(read_request(received), snapshot)
        decided = self._data.begin_together(parts)
        if decided.__class__ is DecidedTogether:
            return _answer(parts, decided, snapshot)
        return self._await(parts, decided, snapshot)  # type: ignore[arg-type]

    async def _await(
        self, parts: list[RequestPart], answer: Awaitable[DecidedTogether], snapshot: Snapshot
    ) -> Answered:
        return _answer(parts, await answer, snapshot)

    def _parts(self, request: EnvoyRequest, snapshot: Snapshot) -> list[RequestPart]:
        domain, descriptors, hits = request
        facts_of, known = self._descriptors.facts, snapshot.fact_names
        parts: list[RequestPart] = []
        try:
            for descriptor in descriptors:
                facts = facts_of(domain, descriptor, known)
                _, _, limit, own_hits = descriptor
                plan = None
                if limit is not None:
                    facts[DESCRIPTOR] = text_of_descriptor(domain, descriptor)
                    plan = plan_of_limit(limit)
                parts.append(_new(RequestPart, (facts, hits if own_hits is None else own_hits, plan)))
        except InvalidCheck as error:
            raise InvalidCheck(f"descriptors[{len(parts)}]: {error}") from None
        return parts


def _answer(parts: list[RequestPart], decided: DecidedTogether, snapshot: Snapshot) -> Answered:
    for decision in decided.parts:
        if not decision.allowed:
            require_decided(decision)
    return encode_response(decided, [cost for _, cost, _ in parts], snapshot), len(parts)
