# Generated from async_slots.py by scripts/generate-sync: edit that file, and run `make generate`.
"""Slots: how a limiter takes them, waits for them, renews and releases them, for rules that limit concurrency."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from threading import Event
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self

from headgate.core.check import NOT_WAITING, Check, Extras
from headgate.core.clock import SystemClock
from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.core.plan import Plan
from headgate.core.slot import decode_slot, new_slot
from headgate.errors import StoreError
from headgate.limiter.engine import Engine
from headgate.limiter.execution import decide
from headgate.limiter.prepared_check import Planned, PreparedCheck
from headgate.limiter.renewal import Renewal
from headgate.limiter.slot_queue import Line, Lines, SlotWaiter
from headgate.limiter.slot_records import (
    SlotBook,
    SlotState,
    SlotStatus,
    SlotWait,
    is_held_by,
    keys_of,
    log_unreleased,
    no_slots,
    slot_checks,
)
from headgate.stores.protocol import SlotStore, Store

_new: Final[Any] = tuple.__new__  # makes a named tuple in half the time of calling its class

LOCAL: Final = "local_fallback"  # the reason for a slot that is held in this process


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

        If the slot is lost, this releases what other rules still hold of it. If the store cannot be reached, this logs
        a warning, and the slot expires after its ttl. It logs none for a slot that the store did not grant.
        """
        if self.is_released:
            return False
        self.is_released = True
        try:
            return self._slots.release(self)
        except StoreError as error:
            return False if self.is_without_store else log_unreleased(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


Acquiring = Slot  # what `acquire` returns


def wait_for_turn(waiter: SlotWaiter, seconds: float | None) -> None:
    """Wait until a request should ask the store again, for at most `seconds`."""
    waiter.turn.wait(seconds)


class Slots:
    """The slots of one limiter."""

    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._behind = store
        self._store = store if isinstance(store, SlotStore) else None  # checked once: it is slow
        self._book = SlotBook()
        self._lines = Lines()
        self._renewal = Renewal()

    @property
    def store(self) -> SlotStore:
        """The store, if it can limit concurrency. Raises `InvalidCheck` otherwise."""
        if self._store is None:
            raise no_slots(self._behind)
        return self._store

    def wait(self, facts: dict[str, str], planned: Planned, cost: Cost, wait: float, renew: bool) -> Decision:
        """Decide a request as `take` does, again and again for `wait` seconds while it lacks a slot."""
        waits = SlotWait(self._engine.clock, wait)
        waiter = SlotWaiter(Event())
        line = self._lines.of(keys_of(facts, planned[1]))
        try:
            while True:
                decision = self.take(facts, planned, cost, renew, waiter)
                if decision.allowed:
                    return decision
                seconds = waits.seconds(decision)
                waiter.note_refusal(decision, waits.is_for_slot)
                if seconds is None:
                    self._withdraw(waiter)
                    return decision
                if not waits.is_for_slot:
                    line.leave(waiter)
                    self._engine.clock.sleep(seconds)
                elif line.enter(waiter):
                    self._renew_tickets(line)
                    self._pause(waiter, seconds)
                else:
                    wait_for_turn(waiter, waits.left)
        except BaseException:
            self._withdraw(waiter)
            raise
        finally:
            line.leave(waiter)

    def _pause(self, waiter: SlotWaiter, seconds: float) -> None:
        """Sleep until the next attempt, or until this process releases a slot."""
        clock = self._engine.clock
        if isinstance(clock, SystemClock):
            wait_for_turn(waiter, seconds)
        else:  # a test's clock, which only its own sleep advances
            clock.sleep(seconds)

    def _renew_tickets(self, line: Line) -> None:
        """Renew the tickets of a line, if they are due. A request that has lost its ticket asks the store itself."""
        due = line.due(self._engine.clock.now_us())
        if not due:
            return
        checks = [(waiter, check) for waiter in due for check in waiter.checks]
        try:
            renewed: Sequence[bool] = self.store.renew_slots([check for _, check in checks])
        except StoreError:  # the next check reports it
            return
        for (waiter, _), is_live in zip(checks, renewed, strict=True):
            if not is_live:
                waiter.turn.set()

    def _withdraw(self, waiter: SlotWaiter) -> None:
        """Take a request that gives up out of the store's queues. If that fails, its tickets soon expire."""
        if not waiter.arrived_us:
            return
        checks, waiter.arrived_us = waiter.checks, 0
        if waiter.decision is not None and waiter.decision.reading.reason == LOCAL:
            self._engine.fallback.local.release_slots(checks)
        with suppress(StoreError):
            self.store.release_slots(checks)

    def take(
        self, facts: dict[str, str], planned: Planned, cost: Cost, renew: bool, waiter: SlotWaiter | None = None
    ) -> Decision:
        """Decide a request. If it is allowed and rules require a slot, the decision's `slot` has it.

        If it is refused and lacks only slots, a request of a `waiter` keeps its place in the store's queues.
        """
        engine, (snapshot, whole) = self._engine, planned
        plan, costs = whole.price(cost)  # without rules whose unit the cost does not name
        if not plan.slots or not (costs is plan.ones or any(costs[at] for at in plan.slots)):
            return decide(engine, engine.prepare(facts, planned, cost), exact=True)
        if self._store is None:
            raise no_slots(self._behind)
        subjects = plan.subjects(facts)
        if waiter is None:
            entry, arrived_us = new_slot(), NOT_WAITING
        else:
            entry, arrived_us, waiter.request = waiter.entry, waiter.arrived_us, (plan, subjects, costs)
        extras = _new(Extras, (None, None, 0, entry, arrived_us))
        program = engine.exact_programs[plan]
        try:
            if snapshot.terms is not None:  # clients may be blocked
                decision = decide(
                    engine, engine.prepare(facts, planned, cost, None, slot=entry, arrived_us=arrived_us), exact=True
                )
            else:
                decision = program(subjects, costs, False, extras)
                if engine.outage.lasts and decision.__class__ is Decision:
                    engine.note_answer(plan)
        except StoreError as error:
            decision = engine.fallback.decide(PreparedCheck(plan, subjects, costs, False, extras), error)
        except BaseException:  # an interrupted caller holds no slot
            held = slot_checks(plan, subjects, costs, entry, max(arrived_us, 0))
            self._undo(held)
            raise
        if decision.allowed:
            self.hold(decision, plan, subjects, costs, entry, renew)
        return decision

    def hold(
        self,
        decision: Decision,
        plan: Plan,
        subjects: tuple[str, ...] = (),
        costs: tuple[int, ...] = (),
        entry: str = "",
        renew: bool = False,
    ) -> Slot:
        """Return the slot of an allowed request, and record what it holds. Without an `entry`, it holds nothing."""
        slot = Slot()  # attribute by attribute: a constructor would take longer
        slot._slots, slot.decision, slot.entry, slot.renews = self, decision, entry, renew
        # If the store could not decide, the decision has a plan of its own.
        slot._held = None if decision.reading.plan is plan else slot_checks(plan, subjects, costs, entry)
        slot.expired, slot.is_lost, slot.is_released = (), False, entry == ""
        slot.since = slot.renewed = monotonic()
        if entry and not (plan.shadows and not slot.held):  # otherwise they were full, and nothing else applied
            decision.slot = slot
            self._book.add(slot)
            if renew:
                self._renewal.add(slot)
        return slot

    def _undo(self, held: tuple[Check, ...]) -> None:
        """Release a slot that may have been taken."""
        try:
            self.store.release_slots(held)
        except StoreError as error:
            log_unreleased(error)

    def release(self, slot: Slot | str) -> bool:
        """Release a slot, or the slot with this id. Returns whether it was held. Raises `StoreError`."""
        if not isinstance(slot, Slot):
            held = decode_slot(slot)
        else:
            held = slot.held
            slot.decision.slot = None  # breaks a reference cycle, which only the garbage collector would free
            if slot.renews:
                self._renewal.remove(slot)
            if slot.decision.reading.reason == LOCAL:
                self._engine.fallback.local.release_slots(held)
        were_held = self.store.release_slots(held)
        return self.note_released(held, were_held)

    def note_released(self, held: tuple[Check, ...], were_held: Sequence[bool]) -> bool:
        """Record that a slot was released, and wake the next request. Returns whether the slot was held."""
        self._book.note_gone(held, were_held, self._engine.holder.current)
        self._lines.wake(held)
        return is_held_by(held, were_held)

    def renew(self, slot: Slot | str) -> bool:
        """Extend a slot, or the slot with this id, to its ttl from now. Returns whether it was held."""
        held = slot.held if isinstance(slot, Slot) else decode_slot(slot)
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
