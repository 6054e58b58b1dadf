"""headgate.v1.RateLimiter. proto/headgate/v1/rate_limiter.proto documents its methods."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Final, Literal

from headgate.core.decision import Decision
from headgate.core.quota import MICROSECONDS
from headgate.errors import InvalidCheck, StoreUnavailable
from headgate.service.data_plane import DataPlane
from headgate.service.protos import rate_limiter_pb2 as messages
from headgate.service.rpc.facts import cost_of, facts_of
from headgate.service.rpc.method import Answered, Method, method_of
from headgate.service.rpc.reader import Reader
from headgate.service.rpc.responses import encode, encode_batch, encode_figures

MAX_SKEW: Final = 5.0  # seconds by which a caller's clock may differ before it is counted


class RateLimiter:
    """The service's methods. Answers are encoded.

    All raise `InvalidCheck`, and `StoreError` if the store fails and a rule fails closed; except a batch, in which each
    answer has its own reason.
    """

    name: Final = "headgate.v1.RateLimiter"
    protocol: Final[Literal["grpc"]] = "grpc"

    def __init__(self, data: DataPlane) -> None:
        self._data = data
        self._reader = Reader()
        self.methods: Mapping[str, Method] = {
            "CheckRateLimit": Method(self.check),
            "CheckRateLimits": Method(self.check_many),
            "Acquire": method_of(messages.CheckRequest, self.acquire, "viewer"),
            "Release": method_of(messages.ReleaseRequest, self.release, "viewer"),
            "Renew": method_of(messages.RenewRequest, self.renew, "viewer"),
            "GetRemainingQuota": Method(self.quota),
            "ResetLimit": method_of(messages.ResetRequest, self.reset, "operator"),
        }

    def check(self, received: bytes) -> Answered | Awaitable[Answered]:
        facts, cost, key, timestamp = self._reader.check(received)
        decision = self._data.begin(facts, cost, key)
        if isinstance(decision, Decision):
            return self._answer(decision, timestamp)
        return self._await(decision, timestamp)

    async def _await(self, answer: Awaitable[Decision], timestamp: int) -> Answered:
        return self._answer(await answer, timestamp)

    def _answer(self, decision: Decision, timestamp: int) -> Answered:
        if not decision.allowed:
            require_decided(decision)
        if timestamp:
            self._compare(timestamp, decision)
        return encode(decision), 1

    def check_many(self, received: bytes) -> Answered | Awaitable[Answered]:
        asks, timestamps = self._reader.check_many(received)
        decisions = self._data.begin_many(asks)
        if not isinstance(decisions, list):
            return self._await_many(decisions, timestamps)
        return self._answer_many(decisions, timestamps)

    async def _await_many(self, answer: Awaitable[list[Decision]], timestamps: list[tuple[int, int]]) -> Answered:
        return self._answer_many(await answer, timestamps)

    def _answer_many(self, decisions: list[Decision], timestamps: list[tuple[int, int]]) -> Answered:
        for index, timestamp in timestamps:
            self._compare(timestamp, decisions[index])
        return encode_batch(decisions), len(decisions)

    async def acquire(self, request: messages.CheckRequest) -> messages.AcquireResponse:
        if request.idempotency_key:
            raise InvalidCheck("idempotency_key: not supported by Acquire, where every call takes a new slot")
        decision = await self._data.check(facts_of(request), cost_of(request), slots="lend")
        require_decided(decision)
        response = messages.AcquireResponse()
        response.decision.ParseFromString(encode(decision))
        slot = getattr(decision, "slot", None)
        if slot is not None:
            response.slot, response.ttl = slot.id, slot.ttl
        return response

    async def release(self, request: messages.ReleaseRequest) -> messages.ReleaseResponse:
        return messages.ReleaseResponse(released=await self._data.release(request.slot))

    async def renew(self, request: messages.RenewRequest) -> messages.RenewResponse:
        return messages.RenewResponse(renewed=await self._data.renew(request.slot))

    async def quota(self, received: bytes) -> Answered:
        request = messages.QuotaRequest.FromString(received)
        decision = await self._data.peek(facts_of(request), cost_of(request))
        require_decided(decision)
        return encode_figures(decision), 1

    async def reset(self, request: messages.ResetRequest) -> messages.ResetResponse:
        await self._data.reset(facts_of(request))
        return messages.ResetResponse()

    def _compare(self, timestamp: int, decision: Decision) -> None:
        """Count a caller's clock that differs too much from the store's."""
        skew = timestamp - decision.at_us / MICROSECONDS
        if abs(skew) > MAX_SKEW:
            self._data.meter.record_skew(skew)


def require_decided(decision: Decision) -> None:
    """Raise `StoreUnavailable` if the store failed, and a rule that applies fails closed."""
    if not decision.allowed and decision.reason == "fail_closed":
        raise StoreUnavailable(f"the store cannot decide now, and rule {decision.rule!r} fails closed: try again later")
