"""The data plane: checks as the service makes them, whichever protocol they come by.

Knows facts and decisions; of HTTP, gRPC and protobuf, nothing. What is decided is counted, and what was refused is
recorded, here and nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Final, NamedTuple

from headgate.audit.recorder import Forgetful, Recorder
from headgate.core.decision import Decision
from headgate.http.entrance import awaited
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
        decision = self.begin(facts, cost, idempotency_key, ready=ready)
        return decision if isinstance(decision, Decision) else await decision

    def begin(
        self, facts: dict[str, str], cost: int = 1, idempotency_key: str | None = None, *, ready: bool = False
    ) -> Decision | Awaitable[Decision]:
        """`check`, with the decision at once where nothing has to be waited for, as in memory."""
        if not ready and ("api_key" in facts or "ip" in facts):
            self._write(facts)
        if cost == 0:
            return self.limiter.decide(facts, cost=0, peek=True)
        decision = self.limiter.decide(facts, cost=cost, idempotency_key=idempotency_key)
        if decision.__class__ is not Decision:
            return self._await(facts, cost, decision)  # type: ignore[arg-type]
        self._observe(facts, cost, decision)
        return decision

    async def _await(self, facts: dict[str, str], cost: int, answer: Awaitable[Decision]) -> Decision:
        decision = await answer
        self._observe(facts, cost, decision)
        return decision

    async def check_many(self, asks: Sequence[Ask]) -> list[Decision]:
        """Decide several requests, in order, each by itself: one that is refused does not concern the others."""
        decisions = self.begin_many(asks)
        return decisions if isinstance(decisions, list) else await decisions

    def begin_many(self, asks: Sequence[Ask]) -> list[Decision] | Awaitable[list[Decision]]:
        """`check_many`, with the decisions at once where nothing has to be waited for, as in memory."""
        for facts, _, _ in asks:
            if "api_key" in facts or "ip" in facts:
                self._write(facts)
        decisions = self.limiter.decide_many(asks)
        if not isinstance(decisions, list):
            return self._await_many(asks, decisions)
        self._observe_many(asks, decisions)
        return decisions

    async def _await_many(self, asks: Sequence[Ask], answer: Awaitable[list[Decision]]) -> list[Decision]:
        decisions = await answer
        self._observe_many(asks, decisions)
        return decisions

    def _observe_many(self, asks: Sequence[Ask], decisions: Sequence[Decision]) -> None:
        for (facts, cost, _), decision in zip(asks, decisions, strict=True):
            if cost:
                self._observe(facts, cost, decision)

    def shape(self, facts: dict[str, str], fact: str, cost: int) -> Shape | None:
        """What is said of requests that differ in this one fact alone, if they can be decided many at a time."""
        if cost == 0 or fact in _WRITTEN or "api_key" in facts or "ip" in facts:
            return None
        likeness = self.limiter.alike.likeness(facts, fact, cost)
        return None if likeness is None else Shape(facts, fact, likeness)

    def holds(self, shape: Shape) -> bool:
        """Whether that is still so."""
        return self.limiter.alike.holds(shape.likeness, shape.facts, shape.fact)

    async def check_alike(self, shapes: Sequence[Shape], subjects: Sequence[str]) -> list[Concluded]:
        """Decide requests that have these shapes, all of one likeness, and these values of the fact that differs."""
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
        return await awaited(self.limiter.decide(facts, cost=cost, peek=True))

    async def reset(self, facts: dict[str, str]) -> None:
        """Forget what these facts have used, under every rule that applies to them."""
        self._write(facts)
        await self.limiter.reset(None, **facts)

    def _observe(self, facts: dict[str, str], cost: int, decision: Decision) -> None:
        self.meter.decided(decision)
        if not decision.allowed or (decision.plan.shadows and decision.reason == "shadow"):
            self._recorder.record(facts, cost, decision)

    def _write(self, facts: dict[str, str]) -> None:
        """Have facts look as they do in the middleware. What is no address is left as it is."""
        key = facts.get("api_key")
        if key is not None:
            facts["api_key"] = hashed_api_key(key)
        address = facts.get("ip")
        if address:
            facts |= self._addresses.see(address).facts
