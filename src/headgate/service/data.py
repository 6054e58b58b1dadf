"""The data plane: checks as the service makes them, whichever protocol they come by.

Knows facts and decisions; of HTTP, gRPC and protobuf, nothing. What is decided is counted, and what was refused is
recorded, here and nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from headgate.audit.recorder import Forgetful, Recorder
from headgate.core.decision import Decision
from headgate.http.identity import hashed_api_key
from headgate.http.identity.address import Trust
from headgate.limiter.aio import AsyncLimiter
from headgate.limiter.alike import Concluded, Likeness
from headgate.limiter.batch import Ask, Part
from headgate.telemetry.meter import Meter

__all__ = ["MAX_BATCH", "Ask", "Concluded", "DataPlane", "Part", "Shape"]

_WRITTEN: Final = ("api_key", "ip")  # facts that are written anew

MAX_BATCH: Final = 1_000  # checks in one call


class Shape(NamedTuple):
    """What is said of requests that differ in one fact alone."""

    facts: dict[str, str]  # all others
    fact: str
    likeness: Likeness  # what they have in common with others of other shapes, perhaps


class DataPlane:
    """Checks, peeks and resets for all protocols. Belongs to one event loop, as its limiter does.

    Facts are given as callers have said them: API keys are hashed here before anything else sees them, and addresses
    are written as the middleware writes them. The facts that were given are changed. A check that costs 0 is a peek.

    Every method raises `InvalidCheck` for what makes no sense; a store that fails is no exception, but for `reset`,
    which raises `StoreError`: there is no decision that could stand for it.
    """

    def __init__(
        self,
        limiter: AsyncLimiter,
        *,
        meter: Meter | None = None,
        recorder: Recorder | None = None,
        ipv6_prefix: int = 64,
    ) -> None:
        self.limiter = limiter
        self.meter = meter or Meter()
        self._recorder = recorder or Forgetful()
        self._addresses = Trust((), 1, ipv6_prefix)

    async def check(
        self, facts: dict[str, str], cost: int = 1, idempotency_key: str | None = None, *, ready: bool = False
    ) -> Decision:
        """Decide a request and charge it. `ready` facts are those of an `Identity`, and need not be written anew."""
        if not ready and ("api_key" in facts or "ip" in facts):
            self._write(facts)
        if cost == 0:
            return await self.limiter.check_facts(facts, cost=0, peek=True)
        decision = self.limiter.check_at_once(facts, cost=cost) if idempotency_key is None else None
        if decision is None:
            decision = await self.limiter.check_facts(facts, cost=cost, idempotency_key=idempotency_key)
        self._observe(facts, cost, decision)
        return decision

    async def check_many(self, asks: Sequence[Ask]) -> list[Decision]:
        """Decide several requests, in order, each by itself: one that is refused does not concern the others."""
        for facts, _, _ in asks:
            if "api_key" in facts or "ip" in facts:
                self._write(facts)
        decisions = await self.limiter.check_facts_many(asks)
        decided = self.meter.decided
        for (facts, cost, _), decision in zip(asks, decisions, strict=True):
            if cost:
                decided(decision)
                if not decision.allowed or decision.reason == "shadow":
                    self._recorder.record(facts, cost, decision)
        return decisions

    def shape(self, facts: dict[str, str], fact: str, cost: int) -> Shape | None:
        """What is said of requests that differ in this one fact alone, if they can be decided many at a time."""
        if cost == 0 or fact in _WRITTEN or "api_key" in facts or "ip" in facts:
            return None
        likeness = self.limiter.alike.likeness(facts, fact, cost)
        return None if likeness is None else Shape(facts, fact, likeness)

    def holds(self, shape: Shape) -> bool:
        """Whether that is still so."""
        return self.limiter.alike.holds(shape.likeness, shape.facts, shape.fact)

    def check_alike_at_once(self, shapes: Sequence[Shape], subjects: Sequence[str]) -> list[Concluded]:
        """Decide requests that have these shapes, all of one likeness, and these values of the fact that differs.

        For counters in memory, where nothing has to be awaited.
        """
        concluded = self.limiter.alike.at_once(shapes[0].likeness, subjects)
        self._observe_alike(shapes, subjects, concluded)
        return concluded

    async def check_alike(self, shapes: Sequence[Shape], subjects: Sequence[str]) -> list[Concluded]:
        """The same for counters elsewhere."""
        concluded = await self.limiter.alike.check(shapes[0].likeness, subjects)
        self._observe_alike(shapes, subjects, concluded)
        return concluded

    def _observe_alike(self, shapes: Sequence[Shape], subjects: Sequence[str], concluded: Sequence[Concluded]) -> None:
        start = 0
        for checks, _, size, unusual, orders in concluded:
            for place, decision in unusual.items():
                shape, subject = shapes[start + place], subjects[start + place]
                self._observe({**shape.facts, shape.fact: subject}, shape.likeness.cost, decision)
            if len(checks) == 1:
                self.meter.within(checks[0].rule, size - len(unusual))
            else:
                binding = Counter(order[0] for place, order in enumerate(orders) if place not in unusual)
                for at, count in binding.items():
                    self.meter.within(checks[at].rule, count)
            start += size

    async def check_together(self, parts: Sequence[Part]) -> list[Decision]:
        """Decide one request that is known in several ways: either every limit is charged, or none is.

        There is a decision on each part; the request may pass if all of them are allowed.
        """
        for facts, _, _ in parts:
            self._write(facts)
        decisions = await self.limiter.check_together(parts)
        for (facts, cost, _), decision in zip(parts, decisions, strict=True):
            if cost:
                self._observe(facts, cost, decision)
        return decisions

    async def peek(self, facts: dict[str, str], cost: int = 1) -> Decision:
        """What a check would say. Charges nothing, and leaves no trace."""
        self._write(facts)
        return await self.limiter.check_facts(facts, cost=cost, peek=True)

    async def reset(self, facts: dict[str, str]) -> None:
        """Forget what these facts have used, under every rule that applies to them."""
        self._write(facts)
        await self.limiter.reset(None, **facts)

    def _observe(self, facts: dict[str, str], cost: int, decision: Decision) -> None:
        self.meter.decided(decision)
        if not decision.allowed or decision.reason == "shadow":
            self._recorder.record(facts, cost, decision)

    def _write(self, facts: dict[str, str]) -> None:
        """Have facts look as they do in the middleware. What is no address is left as it is."""
        key = facts.get("api_key")
        if key is not None:
            facts["api_key"] = hashed_api_key(key)
        address = facts.get("ip")
        if address:
            facts |= self._addresses.see(address).facts
