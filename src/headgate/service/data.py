"""The data plane: checks as the service makes them, whichever protocol they come by.

Knows facts and decisions; of HTTP, gRPC and protobuf, nothing. What is decided is counted, and what was refused is
recorded, here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headgate.audit.recorder import Forgetful, Recorder
from headgate.core.decision import Decision
from headgate.http.identity import hashed_api_key
from headgate.limiter.aio import AsyncLimiter
from headgate.telemetry.meter import Meter

MAX_BATCH = 1_000  # checks in one call


class Ask(NamedTuple):
    """One check of a batch."""

    facts: dict[str, str]
    cost: int = 1
    idempotency_key: str | None = None


class DataPlane:
    """Checks, peeks and resets for all protocols. Belongs to one event loop, as its limiter does.

    Every method raises `InvalidCheck` for what makes no sense; a store that fails is no exception, but for `reset`,
    which raises `StoreError`: there is no decision that could stand for it.
    """

    def __init__(self, limiter: AsyncLimiter, *, meter: Meter | None = None, recorder: Recorder | None = None) -> None:
        self.limiter = limiter
        self.meter = meter or Meter()
        self._recorder = recorder or Forgetful()

    async def check(self, facts: dict[str, str], cost: int = 1, idempotency_key: str | None = None) -> Decision:
        """Decide a request and charge it."""
        _hide_key(facts)
        limiter = self.limiter
        if idempotency_key is not None:
            decision = await limiter.check(None, cost=cost, idempotency_key=idempotency_key, **facts)
        else:
            decision = limiter.check_at_once(facts, cost=cost) or await limiter.check_facts(facts, cost=cost)
        self._observe(facts, cost, decision)
        return decision

    async def check_identified(self, facts: dict[str, str], cost: int = 1) -> Decision:
        """The same for facts that an `Identity` made: their API keys are hashed already."""
        limiter = self.limiter
        decision = limiter.check_at_once(facts, cost=cost) or await limiter.check_facts(facts, cost=cost)
        self._observe(facts, cost, decision)
        return decision

    async def check_many(self, asks: Sequence[Ask]) -> list[Decision]:
        """Decide several requests, in order, each by itself: one that is refused does not concern the others."""
        requests: list[Mapping[str, Any]] = []
        for facts, cost, idempotency_key in asks:
            _hide_key(facts)
            requests.append({**facts, "cost": cost, "idempotency_key": idempotency_key})
        decisions = await self.limiter.check_many(requests)
        for (facts, cost, _), decision in zip(asks, decisions, strict=True):
            self._observe(facts, cost, decision)
        return decisions

    async def peek(self, facts: dict[str, str], cost: int = 1) -> Decision:
        """What a check would say. Charges nothing, and leaves no trace."""
        _hide_key(facts)
        return await self.limiter.peek(None, cost=cost, **facts)

    async def reset(self, facts: dict[str, str]) -> None:
        """Forget what these facts have used, under every rule that applies to them."""
        _hide_key(facts)
        await self.limiter.reset(None, **facts)

    def _observe(self, facts: dict[str, str], cost: int, decision: Decision) -> None:
        self.meter.decided(decision)
        if not decision.allowed or decision.reason == "shadow":
            self._recorder.record(facts, cost, decision)


def _hide_key(facts: dict[str, str]) -> None:
    """API keys are hashed before anything else sees them, as the middleware does."""
    key = facts.get("api_key")
    if key is not None:
        facts["api_key"] = hashed_api_key(key)
