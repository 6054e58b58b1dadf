"""Reservations: how a limiter makes and settles them, and refunds those that have expired."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from headgate.core.check import Charge
from headgate.core.cost import Cost, cost_of_units
from headgate.core.decision import Decision
from headgate.core.reservation import (
    PENDING_US,
    Adjustments,
    Claim,
    ClaimedAdjustments,
    Record,
    Settlement,
    Settling,
    Status,
    new_id,
)
from headgate.errors import StoreError
from headgate.features.async_steps import run_async
from headgate.features.shards.async_sharded_store import AsyncShardedStore
from headgate.limiter.async_execution import decide_async
from headgate.limiter.engine import Engine
from headgate.limiter.prepared_check import PreparedCheck
from headgate.limiter.reservation_records import (
    MAX_ROUNDS,
    Due,
    ReservationState,
    correction,
    log_unanswered,
    log_uncorrected,
    log_unrenewed,
    log_unsettled,
    no_reservations,
    nothing_to_settle,
    record_of,
    reserving,
    settling,
    with_receipt,
)
from headgate.stores.protocol import AsyncAtomicReservingStore, AsyncReservingStore

if TYPE_CHECKING:
    from headgate.limiter.async_limiter import AsyncLimiter

T = TypeVar("T")  # async only


class AsyncReservation(ReservationState):
    """An estimate that was charged, until `settle` replaces it by the actual cost. Truthy when allowed.

    `decision` is the decision of the check. Any process on the same store can settle it by its `id`:
    `limiter.settle(id, cost)`. As a context manager, it settles with the estimate at the end of the block, and refunds
    it when an exception leaves the block, unless it was settled inside.
    """

    __slots__ = ("_limiter",)

    def __init__(
        self, limiter: AsyncLimiter, reservation_id: str, decision: Decision, cost: Cost, **others: Any
    ) -> None:
        super().__init__(reservation_id, decision, cost, **others)
        self._limiter = limiter

    async def extend(self, cost: Cost | None = None, /, **units: int) -> Decision:
        """Reserve more for the same request: `extend(500)`, or `extend(tokens=500)`; all or nothing.

        If this is refused, the earlier reservation stays. An extension expires separately, after the reservation's
        `ttl`. `settle` settles all of them.
        """
        more = cost_of_units(cost, units)
        return self._add_extension(await self._limiter.reserve(cost=more, ttl=self._ttl, **self._facts))

    async def settle(self, cost: Cost | None = None, /, **units: int) -> Settlement:
        """Charge the actual cost: refund the excess, or charge the rest.

        You can name units: `settle(tokens=3_200)`. A unit that is not named cost what was reserved. Only the first
        settlement has an effect. If the store cannot be reached, this logs a warning, and the settlement says so.
        """
        self._wanted = cost = cost_of_units(cost, units)
        shares = self._shares(cost)
        # sync: return self._settle(shares, cost)
        return await asyncio.shield(self._limiter._reservations.start(self._settle(shares, cost)))  # async only

    async def _settle(self, shares: list[tuple[Any, Cost]], cost: Cost) -> Settlement:
        """Settle it and all of its extensions."""
        settlements = []
        for one, share in shares:
            settlements.append(await self._limiter.settle(one.id, share) if one.recorded else nothing_to_settle(share))
        return self._note_settlements(settlements, cost)

    async def refund(self) -> Settlement:
        """Refund all of it: `settle(0)`."""
        return await self.settle(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cost = self._final(error)
        if cost is not None:
            await self.settle(cost)


class Reserved(NamedTuple):
    """A limiter's decision to reserve."""

    reservation_id: str
    decision: Decision
    recorded: bool  # whether there is anything to settle


class AsyncReservations:
    """The reservations of one limiter."""

    def __init__(self, store: AsyncShardedStore, engine: Engine) -> None:
        self._sharding = store
        self._reserving = store if isinstance(store, AsyncReservingStore) else None
        self._atomic = store if isinstance(store, AsyncAtomicReservingStore) else None
        self._engine = engine
        self._unanswered: dict[str, int] = {}  # reservations that may have been made, and when to refund them
        self._under_way: set[asyncio.Task[Any]] = set()  # async only

    @property
    def store(self) -> AsyncReservingStore:
        """The store, if it keeps reservations. Raises `InvalidCheck` otherwise."""
        if self._reserving is None:
            raise no_reservations(self._sharding.store)
        return self._reserving

    async def reserve(self, prepared: PreparedCheck, cost: Cost, lives_us: int) -> Reserved:
        """Charge a prepared request and keep a record of it.

        With asyncio, a caller that is cancelled is not charged: any charge is refunded.
        """
        due = await self.look()
        await self.attend(due)
        # sync: return self._reserve(prepared, cost, lives_us, due)
        task = self.start(self._reserve(prepared, cost, lives_us, due))  # async only
        try:  # async only
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self.start(self._refund(task))
            raise

    async def _reserve(self, prepared: PreparedCheck, cost: Cost, lives_us: int, due: Due) -> Reserved:
        engine, store = self._engine, self._atomic
        if not prepared.sent:
            return Reserved(new_id(), engine.decide_unsent(prepared), False)
        name = None if store is None else store.new_reservation_id(prepared.group)
        if store is None or name is None:
            return await self._write_ahead(self.store, prepared, cost, lives_us, due)
        prepared, pending = reserving(prepared, cost, name)
        try:
            answer, is_pending = await store.reserve(name, pending, lives_us)
        except StoreError as error:
            if log_unanswered(error, name):
                at_us = engine.clock.now_us()
                self._unanswered[name] = at_us + PENDING_US
                due.expires(at_us, PENDING_US)
            return Reserved(name, engine.fallback.decide(prepared, error), False)
        (decision,) = engine.conclude([prepared], [answer])
        if is_pending:
            due.expires(engine.clock.now_us(), PENDING_US)
            return self._complete_record(store, name, prepared, decision, lives_us, due)
        is_recorded = record_of(decision) is not None
        if is_recorded:
            due.expires(engine.clock.now_us(), lives_us)
        return Reserved(name, decision, is_recorded)

    async def _write_ahead(
        self, store: AsyncReservingStore, prepared: PreparedCheck, cost: Cost, lives_us: int, due: Due
    ) -> Reserved:
        """Write the pending record, charge under its id as key, and write the record with the charges.

        For limits that the store cannot charge in a step that also writes the record.
        """
        engine, name = self._engine, new_id()
        prepared, pending = reserving(prepared, cost, name)
        prepared = with_receipt(prepared, name)
        try:
            await store.save_reservation(name, pending.encode(), PENDING_US)
        except StoreError as error:
            return Reserved(name, engine.fallback.decide(prepared, error), False)
        due.expires(engine.clock.now_us(), PENDING_US)
        decision = decide_async(engine, prepared, exact=True)
        if not isinstance(decision, Decision):  # async only
            decision = await decision
        return self._complete_record(store, name, prepared, decision, lives_us, due)

    def _complete_record(
        self,
        store: AsyncReservingStore,
        name: str,
        prepared: PreparedCheck,
        decision: Decision,
        lives_us: int,
        due: Due,
    ) -> Reserved:
        """Replace a pending record by the record of what a decision charged.

        If this is interrupted, the pending record tells how to find out what was charged. So with asyncio, the caller
        does not wait for it.
        """
        assert prepared.extras is not None
        record = record_of(decision, prepared.extras.reservation)
        # sync: self._write_charged(store, name, decision, record, lives_us, due)
        self.start(self._write_charged(store, name, decision, record, lives_us, due))  # async only
        return Reserved(name, decision, record is not None)

    async def _write_charged(
        self, store: AsyncReservingStore, name: str, decision: Decision, record: Record | None, lives_us: int, due: Due
    ) -> None:
        """Replace a pending record by one with the charges. If nothing was charged, remove the record."""
        try:
            if record is not None:
                await store.renew(name, record.encode(), lives_us)
                due.expires(self._engine.clock.now_us(), lives_us)
            elif decision.reason in ("over_limit", "penalty"):
                claim = await store.claim_reservation(name, 0)
                if claim is not None:
                    await store.settle([ClaimedAdjustments(claim, Adjustments())])
        except StoreError as error:
            log_unrenewed(error, name)

    async def settle(self, reservation_id: str, cost: Cost) -> Settlement:
        """Settle a reservation of this or another process.

        With asyncio, it completes even if the caller is cancelled.
        """
        store = self.store
        # sync: return self._settle(store, reservation_id, cost)
        return await asyncio.shield(self.start(self._settle(store, reservation_id, cost)))  # async only

    async def _settle(self, store: AsyncReservingStore, reservation_id: str, cost: Cost) -> Settlement:
        due = await self.look()
        try:
            claim = await self._claim(store, reservation_id, cost)
            if claim is None:
                return Settlement("gone", cost)
            (settlement,) = await self._apply(store, [claim])
        except StoreError as error:
            due.expires(self._engine.clock.now_us(), PENDING_US)  # if it was claimed, the claim expires then
            return log_unsettled(error, reservation_id, cost)
        return settlement

    async def _claim(self, store: AsyncReservingStore, reservation_id: str, cost: Cost) -> Claim | None:
        """Claim a reservation, to settle it at `cost`. One that is expiring expires first."""
        claim = await store.claim_reservation(reservation_id, cost)
        if claim is not None and claim.status is Status.EXPIRING:
            await self._apply(store, [claim])
            claim = await store.claim_reservation(reservation_id, cost)
        return claim

    async def _apply(self, store: AsyncReservingStore, claims: Sequence[Claim]) -> list[Settlement]:
        """Settle what was claimed."""
        found: list[Settling] = await run_async(settling(claims), store.check)
        refunded = await store.settle(
            [ClaimedAdjustments(claim, one.adjustments) for claim, one in zip(claims, found, strict=True)]
        )
        return [one.conclude(back) for one, back in zip(found, refunded, strict=True)]

    async def give_back(self, decision: Decision) -> None:
        """Refund what a decision charged, and release the slot that it holds.

        With asyncio, it completes even if the caller is cancelled.
        """
        slot = getattr(decision, "slot", None)
        refunds = correction(decision, 0).refunds
        if slot is not None or refunds:
            # sync: self._give_back_charges(slot, refunds)
            await asyncio.shield(self.start(self._give_back_charges(slot, refunds)))  # async only

    async def _give_back_charges(self, slot: Any, refunds: Sequence[Charge]) -> None:
        if refunds:
            try:
                await self._sharding.refund(refunds)
            except StoreError as error:
                log_uncorrected(error)
        if slot is not None:
            await slot.release()

    async def correct(self, decision: Decision, cost: Cost) -> None:
        """Change what a decision charged to the actual cost.

        With asyncio, it completes even if the caller is cancelled.
        """
        adjustments = correction(decision, cost)
        if any(adjustments):
            # sync: self._adjust(adjustments)
            await asyncio.shield(self.start(self._adjust(adjustments)))  # async only

    async def _adjust(self, adjustments: Adjustments) -> None:
        try:
            await self.store.adjust(*adjustments)
        except StoreError as error:
            log_uncorrected(error)

    async def look(self) -> Due:
        """Refund expired reservations, if it is time to look for them."""
        due = self._engine.due
        if due is None:
            due = self._engine.due = Due()
        if due.is_time(self._engine.clock.now_us()):
            # sync: self._give_back(due)
            await asyncio.shield(self.start(self._give_back(due)))  # async only
        return due

    async def attend(self, due: Due) -> None:
        """Before a check, refund reservations that are known to have expired."""
        if due.is_due(self._engine.clock.now_us()):
            # sync: self._give_back(due)
            await asyncio.shield(self.start(self._give_back(due)))  # async only

    async def _give_back(self, due: Due) -> None:
        """Refund expired reservations, and complete settlements that were cut off.

        With asyncio, it completes even if the caller is cancelled: no other limiter does it before these claims expire.
        """
        now_us, store = self._engine.clock.now_us(), self.store
        due.looking(now_us)
        try:
            for _ in range(MAX_ROUNDS):
                claims, next_us = await store.claim_expired()
                if claims:
                    await self._apply(store, claims)
                if next_us != 0:
                    break
            for name in [name for name, at_us in self._unanswered.items() if at_us <= now_us]:
                claim = await self._claim(store, name, 0)
                if claim is not None:
                    await self._apply(store, [claim])
                self._unanswered.pop(name, None)
        except StoreError as error:
            due.note_failure(now_us, error)
        else:
            due.expires(now_us, next_us)
        for at_us in self._unanswered.copy().values():
            due.expires(now_us, at_us - now_us)

    async def finish(self) -> None:  # async only
        """Wait for reservations and settlements in progress."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:  # async only
        """Run a coroutine to its end, even if its caller is cancelled. `finish` waits for it."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _refund(self, task: asyncio.Task[Reserved]) -> None:  # async only
        """Refund a reservation whose caller was cancelled."""
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None and task.result().recorded:
            await self.settle(task.result().reservation_id, 0)
