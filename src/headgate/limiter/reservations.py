# Generated from async_reservations.py by scripts/generate-sync: edit that file, and run `make generate`.
"""Reservations: how a limiter makes and settles them, and refunds those that have expired."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

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
from headgate.features.shards.sharded_store import ShardedStore
from headgate.features.steps import run
from headgate.limiter.engine import Engine
from headgate.limiter.execution import decide
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
from headgate.stores.protocol import AtomicReservingStore, ReservingStore

if TYPE_CHECKING:
    from headgate.limiter.limiter import Limiter


class Reservation(ReservationState):
    """An estimate that was charged, until `settle` replaces it by the actual cost. Truthy when allowed.

    `decision` is the decision of the check. Any process on the same store can settle it by its `id`:
    `limiter.settle(id, cost)`. As a context manager, it settles with the estimate at the end of the block, and refunds
    it when an exception leaves the block, unless it was settled inside.
    """

    __slots__ = ("_limiter",)

    def __init__(self, limiter: Limiter, reservation_id: str, decision: Decision, cost: Cost, **others: Any) -> None:
        super().__init__(reservation_id, decision, cost, **others)
        self._limiter = limiter

    def extend(self, cost: Cost | None = None, /, **units: int) -> Decision:
        """Reserve more for the same request: `extend(500)`, or `extend(tokens=500)`; all or nothing.

        If this is refused, the earlier reservation stays. An extension expires separately, after the reservation's
        `ttl`. `settle` settles all of them.
        """
        more = cost_of_units(cost, units)
        return self._add_extension(self._limiter.reserve(cost=more, ttl=self._ttl, **self._facts))

    def settle(self, cost: Cost | None = None, /, **units: int) -> Settlement:
        """Charge the actual cost: refund the excess, or charge the rest.

        You can name units: `settle(tokens=3_200)`. A unit that is not named cost what was reserved. Only the first
        settlement has an effect. If the store cannot be reached, this logs a warning, and the settlement says so.
        """
        self._wanted = cost = cost_of_units(cost, units)
        shares = self._shares(cost)
        return self._settle(shares, cost)

    def _settle(self, shares: list[tuple[Any, Cost]], cost: Cost) -> Settlement:
        """Settle it and all of its extensions."""
        settlements = []
        for one, share in shares:
            settlements.append(self._limiter.settle(one.id, share) if one.recorded else nothing_to_settle(share))
        return self._note_settlements(settlements, cost)

    def refund(self) -> Settlement:
        """Refund all of it: `settle(0)`."""
        return self.settle(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cost = self._final(error)
        if cost is not None:
            self.settle(cost)


class Reserved(NamedTuple):
    """A limiter's decision to reserve."""

    reservation_id: str
    decision: Decision
    recorded: bool  # whether there is anything to settle


class Reservations:
    """The reservations of one limiter."""

    def __init__(self, store: ShardedStore, engine: Engine) -> None:
        self._sharding = store
        self._reserving = store if isinstance(store, ReservingStore) else None
        self._atomic = store if isinstance(store, AtomicReservingStore) else None
        self._engine = engine
        self._unanswered: dict[str, int] = {}  # reservations that may have been made, and when to refund them

    @property
    def store(self) -> ReservingStore:
        """The store, if it keeps reservations. Raises `InvalidCheck` otherwise."""
        if self._reserving is None:
            raise no_reservations(self._sharding.store)
        return self._reserving

    def reserve(self, prepared: PreparedCheck, cost: Cost, lives_us: int) -> Reserved:
        """Charge a prepared request and keep a record of it."""
        due = self.look()
        self.attend(due)
        return self._reserve(prepared, cost, lives_us, due)

    def _reserve(self, prepared: PreparedCheck, cost: Cost, lives_us: int, due: Due) -> Reserved:
        engine, store = self._engine, self._atomic
        if not prepared.sent:
            return Reserved(new_id(), engine.decide_unsent(prepared), False)
        name = None if store is None else store.new_reservation_id(prepared.group)
        if store is None or name is None:
            return self._write_ahead(self.store, prepared, cost, lives_us, due)
        prepared, pending = reserving(prepared, cost, name)
        try:
            answer, is_pending = store.reserve(name, pending, lives_us)
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

    def _write_ahead(
        self, store: ReservingStore, prepared: PreparedCheck, cost: Cost, lives_us: int, due: Due
    ) -> Reserved:
        """Write the pending record, charge under its id as key, and write the record with the charges.

        For limits that the store cannot charge in a step that also writes the record.
        """
        engine, name = self._engine, new_id()
        prepared, pending = reserving(prepared, cost, name)
        prepared = with_receipt(prepared, name)
        try:
            store.save_reservation(name, pending.encode(), PENDING_US)
        except StoreError as error:
            return Reserved(name, engine.fallback.decide(prepared, error), False)
        due.expires(engine.clock.now_us(), PENDING_US)
        decision = decide(engine, prepared, exact=True)
        return self._complete_record(store, name, prepared, decision, lives_us, due)

    def _complete_record(
        self,
        store: ReservingStore,
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
        self._write_charged(store, name, decision, record, lives_us, due)
        return Reserved(name, decision, record is not None)

    def _write_charged(
        self, store: ReservingStore, name: str, decision: Decision, record: Record | None, lives_us: int, due: Due
    ) -> None:
        """Replace a pending record by one with the charges. If nothing was charged, remove the record."""
        try:
            if record is not None:
                store.renew(name, record.encode(), lives_us)
                due.expires(self._engine.clock.now_us(), lives_us)
            elif decision.reason in ("over_limit", "penalty"):
                claim = store.claim_reservation(name, 0)
                if claim is not None:
                    store.settle([ClaimedAdjustments(claim, Adjustments())])
        except StoreError as error:
            log_unrenewed(error, name)

    def settle(self, reservation_id: str, cost: Cost) -> Settlement:
        """Settle a reservation of this or another process."""
        store = self.store
        return self._settle(store, reservation_id, cost)

    def _settle(self, store: ReservingStore, reservation_id: str, cost: Cost) -> Settlement:
        due = self.look()
        try:
            claim = self._claim(store, reservation_id, cost)
            if claim is None:
                return Settlement("gone", cost)
            (settlement,) = self._apply(store, [claim])
        except StoreError as error:
            due.expires(self._engine.clock.now_us(), PENDING_US)  # if it was claimed, the claim expires then
            return log_unsettled(error, reservation_id, cost)
        return settlement

    def _claim(self, store: ReservingStore, reservation_id: str, cost: Cost) -> Claim | None:
        """Claim a reservation, to settle it at `cost`. One that is expiring expires first."""
        claim = store.claim_reservation(reservation_id, cost)
        if claim is not None and claim.status is Status.EXPIRING:
            self._apply(store, [claim])
            claim = store.claim_reservation(reservation_id, cost)
        return claim

    def _apply(self, store: ReservingStore, claims: Sequence[Claim]) -> list[Settlement]:
        """Settle what was claimed."""
        found: list[Settling] = run(settling(claims), store.check)
        refunded = store.settle(
            [ClaimedAdjustments(claim, one.adjustments) for claim, one in zip(claims, found, strict=True)]
        )
        return [one.conclude(back) for one, back in zip(found, refunded, strict=True)]

    def give_back(self, decision: Decision) -> None:
        """Refund what a decision charged, and release the slot that it holds."""
        slot = getattr(decision, "slot", None)
        refunds = correction(decision, 0).refunds
        if slot is not None or refunds:
            self._give_back_charges(slot, refunds)

    def _give_back_charges(self, slot: Any, refunds: Sequence[Charge]) -> None:
        if refunds:
            try:
                self._sharding.refund(refunds)
            except StoreError as error:
                log_uncorrected(error)
        if slot is not None:
            slot.release()

    def correct(self, decision: Decision, cost: Cost) -> None:
        """Change what a decision charged to the actual cost."""
        adjustments = correction(decision, cost)
        if any(adjustments):
            self._adjust(adjustments)

    def _adjust(self, adjustments: Adjustments) -> None:
        try:
            self.store.adjust(*adjustments)
        except StoreError as error:
            log_uncorrected(error)

    def look(self) -> Due:
        """Refund expired reservations, if it is time to look for them."""
        due = self._engine.due
        if due is None:
            due = self._engine.due = Due()
        if due.is_time(self._engine.clock.now_us()):
            self._give_back(due)
        return due

    def attend(self, due: Due) -> None:
        """Before a check, refund reservations that are known to have expired."""
        if due.is_due(self._engine.clock.now_us()):
            self._give_back(due)

    def _give_back(self, due: Due) -> None:
        """Refund expired reservations, and complete settlements that were cut off."""
        now_us, store = self._engine.clock.now_us(), self.store
        due.looking(now_us)
        try:
            for _ in range(MAX_ROUNDS):
                claims, next_us = store.claim_expired()
                if claims:
                    self._apply(store, claims)
                if next_us != 0:
                    break
            for name in [name for name, at_us in self._unanswered.items() if at_us <= now_us]:
                claim = self._claim(store, name, 0)
                if claim is not None:
                    self._apply(store, [claim])
                self._unanswered.pop(name, None)
        except StoreError as error:
            due.note_failure(now_us, error)
        else:
            due.expires(now_us, next_us)
        for at_us in self._unanswered.copy().values():
            due.expires(now_us, at_us - now_us)
