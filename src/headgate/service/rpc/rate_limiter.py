"""headgate.v1.RateLimiter: proto/headgate/v1/rate_limiter.proto says what its methods mean."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Final, Literal

from headgate.core.decision import Decision
from headgate.core.quota import MICROSECONDS
from headgate.errors import InvalidCheck, StoreUnavailable
from headgate.service.data_plane import MAX_BATCH, Ask, DataPlane
from headgate.service.protos import rate_limiter_pb2 as messages
from headgate.service.rpc.facts import cost_of, facts_of
from headgate.service.rpc.method import Method, Quick
from headgate.service.rpc.reader import Reader
from headgate.service.rpc.responses import written, written_batch, written_figures

MAX_SKEW: Final = 5.0  # seconds: a caller's clock that is further off is counted


class RateLimiter:
    """The methods. Answers have the form that they have on the wire.

    All raise `InvalidCheck`; and `StoreError` when the store cannot decide and a rule fails closed, but for a batch,
    in which each answer has a reason of its own.
    """

    name: Final = "headgate.v1.RateLimiter"
    protocol: Final[Literal["grpc"]] = "grpc"

    def __init__(self, data: DataPlane) -> None:
        self._data = data
        self._reader = Reader()
        self.methods: Mapping[str, Method] = {
            "CheckRateLimit": Method(messages.CheckRequest, self.check, quickly=self.check_quickly),
            "CheckRateLimits": Method(
                messages.CheckBatchRequest,
                self.check_many,
                size=lambda request: len(request.checks),
                quickly=self.check_many_quickly,
            ),
            "Acquire": Method(messages.CheckRequest, self.acquire),
            "Release": Method(messages.ReleaseRequest, self.release),
            "Renew": Method(messages.RenewRequest, self.renew),
            "GetRemainingQuota": Method(messages.QuotaRequest, self.quota),
            "ResetLimit": Method(messages.ResetRequest, self.reset, "operator"),
        }

    async def check(self, request: messages.CheckRequest) -> bytes:
        decision = await self._data.check(facts_of(request), cost_of(request), request.idempotency_key or None)
        require_decided(decision)
        if request.timestamp:
            self._compare(request.timestamp, decision)
        return written(decision)

    async def acquire(self, request: messages.CheckRequest) -> messages.AcquireResponse:
        if request.idempotency_key:
            raise InvalidCheck("idempotency_key: is not for Acquire: each slot is one of its own")
        decision = await self._data.check(facts_of(request), cost_of(request), slots="lend")
        require_decided(decision)
        response = messages.AcquireResponse()
        response.decision.ParseFromString(written(decision))
        slot = getattr(decision, "slot", None)
        if slot is not None:
            response.slot, response.ttl = slot.id, slot.ttl
        return response

    async def release(self, request: messages.ReleaseRequest) -> messages.ReleaseResponse:
        return messages.ReleaseResponse(released=await self._data.release(request.slot))

    async def renew(self, request: messages.RenewRequest) -> messages.RenewResponse:
        return messages.RenewResponse(renewed=await self._data.renew(request.slot))

    def check_quickly(self, received: bytes) -> Quick:
        read = self._reader.check(received)
        if read is None:
            return None
        decision = self._data.begin(*read)
        if not isinstance(decision, Decision):
            return partial(self._check_later, decision)
        require_decided(decision)
        return written(decision), 1

    async def _check_later(self, answer: Awaitable[Decision]) -> tuple[bytes, int]:
        decision = await answer
        require_decided(decision)
        return written(decision), 1

    def check_many_quickly(self, received: bytes) -> Quick:
        asks = self._reader.check_many(received)
        if asks is None:
            return None
        decisions = self._data.begin_many(asks)
        if not isinstance(decisions, list):
            return partial(self._check_many_later, decisions)
        return written_batch(decisions), len(decisions)

    async def _check_many_later(self, answer: Awaitable[list[Decision]]) -> tuple[bytes, int]:
        decisions = await answer
        return written_batch(decisions), len(decisions)

    async def check_many(self, request: messages.CheckBatchRequest) -> bytes:
        checks = request.checks
        if len(checks) > MAX_BATCH:
            raise InvalidCheck(f"checks: at most {MAX_BATCH:,} in one call, got {len(checks):,}")
        asks = []
        timestamps = []
        for place, check in enumerate(checks):
            try:
                cost = cost_of(check)
                asks.append(Ask(facts_of(check), cost, check.idempotency_key or None if cost else None))
            except InvalidCheck as error:
                raise InvalidCheck(f"checks[{place}]: {error}") from None
            if check.timestamp:
                timestamps.append((place, check.timestamp))
        decisions = await self._data.check_many(asks)
        for place, timestamp in timestamps:
            self._compare(timestamp, decisions[place])
        return written_batch(decisions)

    async def quota(self, request: messages.QuotaRequest) -> bytes:
        decision = await self._data.peek(facts_of(request), cost_of(request))
        require_decided(decision)
        return written_figures(decision)

    async def reset(self, request: messages.ResetRequest) -> messages.ResetResponse:
        await self._data.reset(facts_of(request))
        return messages.ResetResponse()

    def _compare(self, timestamp: int, decision: Decision) -> None:
        """Have it counted if the caller's clock is far from the store's."""
        skew = timestamp - decision.at_us / MICROSECONDS
        if abs(skew) > MAX_SKEW:
            self._data.meter.skewed(skew)


def require_decided(decision: Decision) -> None:
    """Raises `StoreUnavailable` if the store could not decide, and a rule that applies fails closed."""
    if not decision.allowed and decision.reason == "fail_closed":
        raise StoreUnavailable(f"the store cannot decide now, and rule {decision.rule!r} fails closed: try again later")
