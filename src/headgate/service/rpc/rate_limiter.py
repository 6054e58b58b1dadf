"""headgate.v1.RateLimiter: proto/headgate/v1/rate_limiter.proto says what its methods mean."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, Literal

from headgate.core.decision import Decision
from headgate.core.quota import MICROSECONDS
from headgate.errors import InvalidCheck, StoreUnavailable
from headgate.service.data import MAX_BATCH, Ask, Concluded, DataPlane
from headgate.service.protos import rate_limiter_pb2 as messages
from headgate.service.rpc.alike import Reader, Some
from headgate.service.rpc.answers import written, written_alike, written_batch, written_usual
from headgate.service.rpc.facts import cost_of, facts_of
from headgate.service.rpc.method import Method, Quick

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
        self._reader = Reader(data)
        self.methods: Mapping[str, Method] = {
            "CheckRateLimit": Method(messages.CheckRequest, self.check, quickly=self.check_quickly),
            "CheckRateLimits": Method(
                messages.CheckBatchRequest,
                self.check_many,
                size=lambda request: len(request.checks),
                quickly=self.check_many_quickly,
            ),
            "GetRemainingQuota": Method(messages.QuotaRequest, self.quota),
            "ResetLimit": Method(messages.ResetRequest, self.reset, "operator"),
        }

    async def check(self, request: messages.CheckRequest) -> bytes:
        decision = await self._data.check(facts_of(request), cost_of(request), request.idempotency_key or None)
        require_decided(decision)
        if request.timestamp:
            self._compare(request.timestamp, decision)
        return written(decision)

    def check_quickly(self, received: bytes) -> Quick:
        some = self._reader.check(received)
        if some is None:
            return None
        if not self._data.limiter.in_memory:
            return partial(self._check_elsewhere, some)
        (concluded,) = self._data.check_alike_at_once(*some)
        return _written_only(concluded), 1

    async def _check_elsewhere(self, some: Some) -> tuple[bytes, int]:
        (concluded,) = await self._data.check_alike(*some)
        return _written_only(concluded), 1

    def check_many_quickly(self, received: bytes) -> Quick:
        some = self._reader.check_many(received)
        if some is None:
            return None
        if not self._data.limiter.in_memory:
            return partial(self._check_many_elsewhere, some)
        return written_alike(self._data.check_alike_at_once(*some)), len(some.subjects)

    async def _check_many_elsewhere(self, some: Some) -> tuple[bytes, int]:
        return written_alike(await self._data.check_alike(*some)), len(some.subjects)

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
        return written(decision)

    async def reset(self, request: messages.ResetRequest) -> messages.ResetResponse:
        await self._data.reset(facts_of(request))
        return messages.ResetResponse()

    def _compare(self, timestamp: int, decision: Decision) -> None:
        """Have it counted if the caller's clock is far from the store's."""
        skew = timestamp - decision.at_us / MICROSECONDS
        if abs(skew) > MAX_SKEW:
            self._data.meter.skewed(skew)


def _written_only(concluded: Concluded) -> bytes:
    """The decision on the only request. Raises `StoreUnavailable`."""
    decision = concluded.unusual.get(0)
    if decision is None:
        return written_usual(concluded)[0]
    require_decided(decision)
    return written(decision)


def require_decided(decision: Decision) -> None:
    """Raises `StoreUnavailable` if the store could not decide, and a rule that applies fails closed."""
    if not decision.allowed and decision.reason == "fail_closed":
        raise StoreUnavailable(f"the store cannot decide now, and rule {decision.rule!r} fails closed: try again later")
