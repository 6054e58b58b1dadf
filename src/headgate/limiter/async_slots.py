"""Slots: how a limiter takes them, waits for them, renews and releases them, for rules that limit concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from headgate.core.check import Check, Extras
from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.core.plan import Plan
from headgate.core.slot import decode_slot, new_slot
from headgate.errors import RateLimited, StoreError
from headgate.limiter.async_execution import await_decision, decide_async
from headgate.limiter.engine import Engine
from headgate.limiter.prepared_check import Planned, PreparedCheck
from headgate.limiter.renewal import AsyncRenewal
from headgate.limiter.slot_queue import AsyncQueues
from headgate.limiter.slot_records import (
    SlotBook,
    SlotState,
    SlotStatus,
    SlotWait,
    keys_of,
    log_unreleased,
    no_slots,
    slot_checks,
)
from headgate.stores.memory import AsyncMemoryStore
from headgate.stores.protocol import AsyncSlotStore, AsyncStore

_new: Final[Any] = tuple.__new__  # makes a named tuple in half the time of calling its class

UNDO_PAUSE_SECONDS: Final = (0.02, 0.2)  # async only
LOCAL: Final = "local_fallback"  # the reason for a slot that is held in this process

_Request = tuple[Plan, tuple[str, ...], tuple[int, ...], str]  # plan, subjects, costs, and the slot's random id

T = TypeVar("T")  # async only


class AsyncSlot(SlotState):
    """A concurrency slot, held until it is released or expires.

    `decision` is the decision of the check. Any process on the same store can release or renew it by its `id`. As a
    context manager, it is released at the end of the block, even after an exception.
    """

    __slots__ = ()

    _slots: AsyncSlots

    async def renew(self) -> bool:
        """Extend the slot to its `ttl` from now. Returns whether it is still held.

        Raises `StoreError`; the slot then keeps its expiry.
        """
        return self.is_held and self._note_renewal(await self._slots.renew(self))

    async def release(self) -> bool:
        """Release the slot. Returns whether it was still held. A second call does nothing.

        If the store cannot be reached, this logs a warning, and the slot expires after its ttl.

        With asyncio, the slot is released even if the caller is cancelled.
        """
        if not self.is_held:
            return False
        self.is_held = False
        try:
            return await self._slots.release(self)
        except StoreError as error:
            return log_unreleased(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()


# sync: Acquiring = Slot  # what `acquire` returns


class Acquiring(Awaitable[AsyncSlot]):  # async only
    """The result of `acquire`: await it for a slot, or use it in `async with`, which also releases the slot."""

    __slots__ = ("_slot", "_work")

    def __init__(self, work: Coroutine[Any, Any, AsyncSlot]) -> None:
        self._work = work
        self._slot: AsyncSlot | None = None

    def __await__(self) -> Generator[Any, Any, AsyncSlot]:
        return self._work.__await__()

    async def __aenter__(self) -> AsyncSlot:
        self._slot = await self._work
        return self._slot

    async def __aexit__(self, *exc: object) -> None:
        assert self._slot is not None
        await self._slot.release()


class _Releases:  # async only
    """The releases of one tick of the event loop, which go to the store in one call."""

    def __init__(self, slots: AsyncSlots) -> None:
        self._slots = slots
        self._waiting: list[tuple[tuple[Check, ...], asyncio.Future[Sequence[bool]]]] = []

    def add(self, held: tuple[Check, ...]) -> asyncio.Future[Sequence[bool]]:
        """Release a slot. The release completes even if its caller is cancelled."""
        future: asyncio.Future[Sequence[bool]] = asyncio.get_running_loop().create_future()
        self._waiting.append((held, future))
        if len(self._waiting) == 1:
            self._slots.start(self._send())
        return future

    async def _send(self) -> None:
        """Send the waiting releases. A task starts when the tick that created it is over."""
        waiting, self._waiting = self._waiting, []
        try:
            were_held = await self._slots.store.release_slots([check for held, _ in waiting for check in held])
        except StoreError as error:
            for _, future in waiting:
                future.set_exception(error)
            return
        except BaseException:  # the event loop is about to end
            for _, future in waiting:
                future.cancel()
            raise
        at = 0
        for held, future in waiting:
            future.set_result(were_held[at : at + len(held)])
            at += len(held)


class AsyncSlots:
    """The slots of one limiter."""

    def __init__(self, engine: Engine, store: AsyncStore) -> None:
        self._engine = engine
        self._behind = store
        self._store = store if isinstance(store, AsyncSlotStore) else None  # checked once: it is slow
        self._book = SlotBook()
        self._queues = AsyncQueues()
        self._renewal = AsyncRenewal()
        self._under_way: set[asyncio.Task[Any]] = set()  # async only
        self._releases = _Releases(self)  # async only

    @property
    def store(self) -> AsyncSlotStore:
        """The store, if it can limit concurrency. Raises `InvalidCheck` otherwise."""
        if self._store is None:
            raise no_slots(self._behind)
        return self._store

    async def acquire(self, facts: dict[str, str], planned: Planned, cost: Cost, wait: float, renew: bool) -> AsyncSlot:
        """Take the slot of a request, waiting for it if necessary. Raises `RateLimited`."""
        if wait == 0 and wait is not False:
            decision = self.take(facts, planned, cost, renew)
            if not isinstance(decision, Decision):  # async only
                decision = await decision
            return getattr(decision, "slot", None) or self._slot_of(decision, renew)
        waits = SlotWait(self._engine.clock, wait)
        queue = self._queues.of(keys_of(facts, planned[1]))
        if not await queue.enter(waits.left):
            return self._slot_of(await self._take(facts, planned, cost, renew), renew)
        try:
            while True:
                decision = await self._take(facts, planned, cost, renew)
                seconds = None if decision.allowed else waits.seconds(decision)
                if seconds is None:
                    return self._slot_of(decision, renew)
                await self._engine.clock.sleep_async(seconds)
        finally:
            queue.leave()

    async def _take(self, facts: dict[str, str], planned: Planned, cost: Cost, renew: bool) -> Decision:
        # sync: return self.take(facts, planned, cost, renew)
        decision = self.take(facts, planned, cost, renew)  # async only
        return decision if isinstance(decision, Decision) else await decision  # async only

    def take(self, facts: dict[str, str], planned: Planned, cost: Cost, renew: bool) -> Decision | Awaitable[Decision]:
        """Decide a request. If it is allowed and rules require a slot, the decision's `slot` has it.

        With asyncio, it returns the decision directly if nothing has to be awaited, as in memory.
        """
        engine, (snapshot, whole) = self._engine, planned
        plan, costs = whole.price(cost)  # without rules whose unit the cost does not name
        if not plan.slots or not (costs is plan.ones or any(costs[at] for at in plan.slots)):
            return decide_async(engine, engine.prepare(facts, planned, cost), exact=True)
        if self._store is None:
            raise no_slots(self._behind)
        entry, subjects = new_slot(), plan.subjects(facts)
        extras = _new(Extras, (None, None, 0, entry))
        program = engine.exact_programs.get(plan) or engine.program(plan, exact=True)
        try:
            if snapshot.terms is not None:  # clients may be blocked
                decision = decide_async(engine, engine.prepare(facts, planned, cost, slot=entry), exact=True)
            else:
                decision = program(subjects, costs, False, extras)
                if decision.__class__ is not Decision:  # async only
                    decision = await_decision(engine, decision, PreparedCheck(plan, subjects, costs, False, extras))
                if engine.outage.lasts and decision.__class__ is Decision:
                    engine.note_answer(plan)
        except StoreError as error:
            decision = engine.decide_without_store(PreparedCheck(plan, subjects, costs, False, extras), error)
        except BaseException:  # an interrupted caller holds no slot
            held = slot_checks(plan, subjects, costs, entry)
            self.start(self._undo(held))  # sync: self._undo(held)
            raise
        request = (plan, subjects, costs, entry)
        if not isinstance(decision, Decision):  # async only
            return self._await(request, decision, renew)
        return self._hold(request, decision, renew)

    async def _await(self, request: _Request, answer: Awaitable[Decision], renew: bool) -> Decision:  # async only
        try:
            decision = await answer
        except asyncio.CancelledError:  # the command may have been executed
            self.start(self._undo(slot_checks(*request)))
            raise
        return self._hold(request, decision, renew)

    def _hold(self, request: _Request, decision: Decision, renew: bool) -> Decision:
        """Record what an allowed decision holds."""
        if decision.allowed:
            is_of_store = decision.reading.plan is request[0]  # else the store could not decide
            held = None if is_of_store else slot_checks(*request)
            decision.slot = slot = AsyncSlot(self, decision, renew, request[3], held)
            self._book.add(slot)
            if renew:
                self._renewal.add(slot)
        return decision

    def _slot_of(self, decision: Decision, renew: bool) -> AsyncSlot:
        """Return the slot that a decision has taken. Raises `RateLimited`."""
        if not decision.allowed:
            raise RateLimited(decision)
        slot: AsyncSlot | None = getattr(decision, "slot", None)
        return AsyncSlot(self, decision, renew) if slot is None else slot

    async def _undo(self, held: tuple[Check, ...]) -> None:
        """Release a slot that may have been taken.

        With asyncio, the check may still be on its way, on another connection. So the release is repeated if the slot
        was not held.
        """
        try:
            # sync: self.store.release_slots(held)
            were_held = await self.store.release_slots(held)  # async only
            for seconds in UNDO_PAUSE_SECONDS:  # async only
                if all(were_held):
                    break
                await asyncio.sleep(seconds)
                were_held = await self.store.release_slots(held)
        except StoreError as error:
            log_unreleased(error)

    async def release(self, slot: AsyncSlot | str) -> bool:
        """Release a slot, or the slot with this id. Returns whether it was held. Raises `StoreError`.

        With asyncio, it completes even if the caller is cancelled.
        """
        if isinstance(slot, str):
            held = decode_slot(slot)
        else:
            held = slot.held
            slot.decision.slot = None  # breaks a reference cycle, which only the garbage collector would free
            if slot.renews:
                self._renewal.remove(slot)
            if slot.decision.reading.reason == LOCAL:
                self._engine.fallback.local.release_slots(held)
        # sync: were_held = self.store.release_slots(held)
        store = self.store  # async only
        if isinstance(store, AsyncMemoryStore):  # async only
            were_held: Sequence[bool] = store.store.release_slots(held)
        else:
            were_held = await asyncio.shield(self._releases.add(held))
        self._book.note_gone(held, were_held)
        return all(were_held)

    async def renew(self, slot: AsyncSlot | str) -> bool:
        """Extend a slot, or the slot with this id, to its ttl from now. Returns whether it was held."""
        held = decode_slot(slot) if isinstance(slot, str) else slot.held
        renewed: Sequence[bool]
        if isinstance(slot, AsyncSlot) and slot.decision.reading.reason == LOCAL:
            renewed = self._engine.fallback.local.renew_slots(held)
        else:
            renewed = await self.store.renew_slots(held)
        return self._book.note_renewed(held, renewed)

    def status(self) -> SlotStatus:
        """Return figures about the slots that this limiter has taken."""
        return self._book.status()

    async def close(self) -> None:
        """Stop renewing slots, and wait for releases in progress."""
        await self._renewal.close()
        while self._under_way:  # async only
            await asyncio.wait(self._under_way)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:  # async only
        """Run a coroutine to its end, even if its caller is cancelled. `close` waits for it."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task
