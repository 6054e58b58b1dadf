# Generated from async_slots.py by scripts/generate-sync: edit that file, and run `make generate`.
"""Slots: how a limiter takes them, waits for them, renews and releases them, for rules that limit concurrency."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from headgate.core.check import Check, Extras
from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.core.plan import Plan
from headgate.core.slot import decode_slot, new_slot
from headgate.errors import RateLimited, StoreError
from headgate.limiter.engine import Engine
from headgate.limiter.execution import decide
from headgate.limiter.prepared_check import Planned, PreparedCheck
from headgate.limiter.renewal import Renewal
from headgate.limiter.slot_queue import Queues
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
from headgate.stores.protocol import SlotStore, Store

_new: Final[Any] = tuple.__new__  # makes a named tuple in half the time of calling its class

LOCAL: Final = "local_fallback"  # the reason for a slot that is held in this process

_Request = tuple[Plan, tuple[str, ...], tuple[int, ...], str]  # plan, subjects, costs, and the slot's random id


class Slot(SlotState):
    """A concurrency slot, held until it is released or expires.

    `decision` is the decision of the check. Any process on the same store can release or renew it by its `id`. As a
    context manager, it is released at the end of the block, even after an exception.
    """

    __slots__ = ()

    _slots: Slots

    def renew(self) -> bool:
        """Extend the slot to its `ttl` from now. Returns whether it is still held.

        Raises `StoreError`; the slot then keeps its expiry.
        """
        return self.is_held and self._note_renewal(self._slots.renew(self))

    def release(self) -> bool:
        """Release the slot. Returns whether it was still held. A second call does nothing.

        If the store cannot be reached, this logs a warning, and the slot expires after its ttl.
        """
        if not self.is_held:
            return False
        self.is_held = False
        try:
            return self._slots.release(self)
        except StoreError as error:
            return log_unreleased(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


Acquiring = Slot  # what `acquire` returns


class Slots:
    """The slots of one limiter."""

    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._behind = store
        self._store = store if isinstance(store, SlotStore) else None  # checked once: it is slow
        self._book = SlotBook()
        self._queues = Queues()
        self._renewal = Renewal()

    @property
    def store(self) -> SlotStore:
        """The store, if it can limit concurrency. Raises `InvalidCheck` otherwise."""
        if self._store is None:
            raise no_slots(self._behind)
        return self._store

    def acquire(self, facts: dict[str, str], planned: Planned, cost: Cost, wait: float, renew: bool) -> Slot:
        """Take the slot of a request, waiting for it if necessary. Raises `RateLimited`."""
        if wait == 0 and wait is not False:
            decision = self.take(facts, planned, cost, renew)
            return getattr(decision, "slot", None) or self._slot_of(decision, renew)
        waits = SlotWait(self._engine.clock, wait)
        queue = self._queues.of(keys_of(facts, planned[1]))
        if not queue.enter(waits.left):
            return self._slot_of(self._take(facts, planned, cost, renew), renew)
        try:
            while True:
                decision = self._take(facts, planned, cost, renew)
                seconds = None if decision.allowed else waits.seconds(decision)
                if seconds is None:
                    return self._slot_of(decision, renew)
                self._engine.clock.sleep(seconds)
        finally:
            queue.leave()

    def _take(self, facts: dict[str, str], planned: Planned, cost: Cost, renew: bool) -> Decision:
        return self.take(facts, planned, cost, renew)

    def take(self, facts: dict[str, str], planned: Planned, cost: Cost, renew: bool) -> Decision:
        """Decide a request. If it is allowed and rules require a slot, the decision's `slot` has it."""
        engine, (snapshot, whole) = self._engine, planned
        plan, costs = whole.price(cost)  # without rules whose unit the cost does not name
        if not plan.slots or not (costs is plan.ones or any(costs[at] for at in plan.slots)):
            return decide(engine, engine.prepare(facts, planned, cost), exact=True)
        if self._store is None:
            raise no_slots(self._behind)
        entry, subjects = new_slot(), plan.subjects(facts)
        extras = _new(Extras, (None, None, 0, entry))
        program = engine.exact_programs.get(plan) or engine.program(plan, exact=True)
        try:
            if snapshot.terms is not None:  # clients may be blocked
                decision = decide(engine, engine.prepare(facts, planned, cost, slot=entry), exact=True)
            else:
                decision = program(subjects, costs, False, extras)
                if engine.outage.lasts and decision.__class__ is Decision:
                    engine.note_answer(plan)
        except StoreError as error:
            decision = engine.decide_without_store(PreparedCheck(plan, subjects, costs, False, extras), error)
        except BaseException:  # an interrupted caller holds no slot
            held = slot_checks(plan, subjects, costs, entry)
            self._undo(held)
            raise
        request = (plan, subjects, costs, entry)
        return self._hold(request, decision, renew)

    def _hold(self, request: _Request, decision: Decision, renew: bool) -> Decision:
        """Record what an allowed decision holds."""
        if decision.allowed:
            is_of_store = decision.reading.plan is request[0]  # else the store could not decide
            held = None if is_of_store else slot_checks(*request)
            decision.slot = slot = Slot(self, decision, renew, request[3], held)
            self._book.add(slot)
            if renew:
                self._renewal.add(slot)
        return decision

    def _slot_of(self, decision: Decision, renew: bool) -> Slot:
        """Return the slot that a decision has taken. Raises `RateLimited`."""
        if not decision.allowed:
            raise RateLimited(decision)
        slot: Slot | None = getattr(decision, "slot", None)
        return Slot(self, decision, renew) if slot is None else slot

    def _undo(self, held: tuple[Check, ...]) -> None:
        """Release a slot that may have been taken."""
        try:
            self.store.release_slots(held)
        except StoreError as error:
            log_unreleased(error)

    def release(self, slot: Slot | str) -> bool:
        """Release a slot, or the slot with this id. Returns whether it was held. Raises `StoreError`."""
        if isinstance(slot, str):
            held = decode_slot(slot)
        else:
            held = slot.held
            slot.decision.slot = None  # breaks a reference cycle, which only the garbage collector would free
            if slot.renews:
                self._renewal.remove(slot)
            if slot.decision.reading.reason == LOCAL:
                self._engine.fallback.local.release_slots(held)
        were_held = self.store.release_slots(held)
        self._book.note_gone(held, were_held)
        return all(were_held)

    def renew(self, slot: Slot | str) -> bool:
        """Extend a slot, or the slot with this id, to its ttl from now. Returns whether it was held."""
        held = decode_slot(slot) if isinstance(slot, str) else slot.held
        renewed: Sequence[bool]
        if isinstance(slot, Slot) and slot.decision.reading.reason == LOCAL:
            renewed = self._engine.fallback.local.renew_slots(held)
        else:
            renewed = self.store.renew_slots(held)
        return self._book.note_renewed(held, renewed)

    def status(self) -> SlotStatus:
        """Return figures about the slots that this limiter has taken."""
        return self._book.status()

    def close(self) -> None:
        """Stop renewing slots, and wait for releases in progress."""
        self._renewal.close()
