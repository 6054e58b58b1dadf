"""The data plane: the service's checks, for all protocols.

It knows facts and decisions, but not HTTP, gRPC or protobuf. It alone counts decisions and records refusals.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from time import perf_counter
from typing import Final

from headgate.audit.recorder import Forgetful, Recorder
from headgate.audit.usage import UsageCounter
from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.http.identity import hashed_api_key
from headgate.http.identity.address import Trust
from headgate.http.request_limiter import resolve
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.limiter.batch import BatchedRequest, DecidedTogether, RequestPart
from headgate.limiter.slot_records import SlotUse
from headgate.telemetry.meter import Meter

__all__ = ["MAX_BATCH", "BatchedRequest", "DataPlane", "RequestPart"]

MAX_BATCH: Final = 1_000  # checks in one call


class DataPlane:
    """Checks, peeks and resets for all protocols. Belongs to one event loop, as its limiter does.

    Pass facts as callers send them: API keys are hashed here before other code sees them, and addresses are normalized
    as the middleware does it. This changes the dictionary that is passed. A check of cost 0 is a peek.

    Every method raises `InvalidCheck` for invalid requests. When the store fails, a failure mode decides, and no method
    raises, except `reset`, which raises `StoreError`.
    """

    def __init__(
        self,
        limiter: AsyncLimiter,
        *,
        meter: Meter | None = None,
        recorder: Recorder | None = None,
        usage: UsageCounter | None = None,
        ipv6_prefix: int = 64,
    ) -> None:
        self.limiter = limiter
        self.meter = meter or Meter()
        self._usage = usage or UsageCounter()
        self._recorder = recorder or Forgetful()
        self._addresses = Trust((), 1, ipv6_prefix)

    async def check(
        self,
        facts: dict[str, str],
        cost: Cost = 1,
        idempotency_key: str | None = None,
        *,
        ready: bool = False,
        slots: SlotUse = "refuse",
    ) -> Decision:
        """Decide a request and charge it. `ready` facts are those of an `Identity`, and need no conversion.

        `slots` selects what to do for rules that limit concurrency: see `AsyncLimiter.decide`.
        """
        decision = self.begin(facts, cost, idempotency_key, ready=ready, slots=slots)
        return decision if isinstance(decision, Decision) else await decision

    async def release(self, slot_id: str) -> bool:
        """Release a slot that any node took. Returns whether it was held. Raises `StoreError`."""
        return await self.limiter.release(slot_id)

    async def renew(self, slot_id: str) -> bool:
        """Extend a slot by its ttl from now. Returns whether it was held. Raises `StoreError`."""
        return await self.limiter.renew(slot_id)

    def begin(
        self,
        facts: dict[str, str],
        cost: Cost = 1,
        idempotency_key: str | None = None,
        *,
        ready: bool = False,
        slots: SlotUse = "refuse",
    ) -> Decision | Awaitable[Decision]:
        """Start a `check`. Returns the decision itself if nothing has to be awaited, as with the memory store."""
        if not ready and ("api_key" in facts or "ip" in facts):
            self._write(facts)
        if cost == 0:
            return self.limiter.decide(facts, cost=0, peek=True)
        usage = self._usage
        usage.untimed -= 1
        began = perf_counter() if usage.untimed <= 0 else 0.0
        decision = self.limiter.decide(facts, cost=cost, idempotency_key=idempotency_key, slots=slots)
        if decision.__class__ is not Decision:
            return self._await(facts, cost, decision, began)  # type: ignore[arg-type]
        if began:
            usage.add_time(decision.plan, perf_counter() - began)
        self._observe(facts, cost, decision)
        return decision

    async def _await(self, facts: dict[str, str], cost: Cost, answer: Awaitable[Decision], began: float) -> Decision:
        decision = await answer
        if began:
            self._usage.add_time(decision.plan, perf_counter() - began)
        self._observe(facts, cost, decision)
        return decision

    async def check_many(self, asks: Sequence[BatchedRequest]) -> list[Decision]:
        """Decide several requests in order, each independently of the others."""
        decisions = self.begin_many(asks)
        return decisions if isinstance(decisions, list) else await decisions

    def begin_many(self, asks: Sequence[BatchedRequest]) -> list[Decision] | Awaitable[list[Decision]]:
        """Start a `check_many`. Returns the decisions themselves if nothing has to be awaited, as with the memory
        store."""
        rewrites = False
        for facts, _, _, varying in asks:
            if varying is None:  # otherwise its facts have the names of those before
                rewrites = "api_key" in facts or "ip" in facts
            if rewrites:
                self._write(facts)
        began = perf_counter()
        decisions = self.limiter.decide_many(asks)
        if not isinstance(decisions, list):
            return self._await_many(asks, decisions, began)
        self._observe_many(asks, decisions, began)
        return decisions

    async def _await_many(
        self, asks: Sequence[BatchedRequest], answer: Awaitable[list[Decision]], began: float
    ) -> list[Decision]:
        decisions = await answer
        self._observe_many(asks, decisions, began)
        return decisions

    def _observe_many(self, asks: Sequence[BatchedRequest], decisions: Sequence[Decision], began: float) -> None:
        if decisions:  # all took the same time
            self._usage.add_time(decisions[0].plan, perf_counter() - began)
        self._observe_all(asks, decisions)

    def begin_together(self, parts: Sequence[RequestPart]) -> DecidedTogether | Awaitable[DecidedTogether]:
        """Decide one request that several sets of facts describe: either every limit is charged, or none is.

        Each part has a decision; the request is allowed if all of them are. Returns the result itself if nothing has to
        be awaited, as with the memory store.
        """
        for facts, _, _ in parts:
            if "api_key" in facts or "ip" in facts:
                self._write(facts)
        decided = self.limiter.decide_together(parts)
        if decided.__class__ is DecidedTogether:
            self._observe_all(parts, decided[0])
            return decided
        return self._await_together(parts, decided)  # type: ignore[arg-type]

    async def _await_together(
        self, parts: Sequence[RequestPart], answer: Awaitable[DecidedTogether]
    ) -> DecidedTogether:
        decided = await answer
        self._observe_all(parts, decided.parts)
        return decided

    async def peek(self, facts: dict[str, str], cost: Cost = 1) -> Decision:
        """Return what a check would decide. Charges and records nothing."""
        self._write(facts)
        return await resolve(self.limiter.decide(facts, cost=cost, peek=True))

    async def reset(self, facts: dict[str, str]) -> None:
        """Reset the counts of these facts, for every rule that applies to them."""
        self._write(facts)
        await self.limiter.reset(**facts)

    def _observe(self, facts: dict[str, str], cost: Cost, decision: Decision) -> None:
        self.meter.record_decision(decision)
        self._usage.add(cost, decision)
        if not decision.allowed or (decision.reading.plan.shadows and decision.reason == "shadow"):
            self._recorder.record(facts, cost, decision)

    def _observe_all(self, requests: Sequence[BatchedRequest | RequestPart], decisions: Sequence[Decision]) -> None:
        observe = self._observe
        for request, decision in zip(requests, decisions):  # noqa: B905 - strict takes as long as the loop
            cost = request[1]
            if cost:
                observe(request[0], cost, decision)

    def _write(self, facts: dict[str, str]) -> None:
        """Hash the API key, and normalize the address as the middleware does. Anything else stays as it is."""
        key = facts.get("api_key")
        if key is not None:
            facts["api_key"] = hashed_api_key(key)
        address = facts.get("ip")
        if address:
            facts.update((self._addresses.recent.get(address) or self._addresses.see(address)).facts)
