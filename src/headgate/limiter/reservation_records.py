"""Records and settlements of reservations, and when to look for expired ones. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from secrets import randbits
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, TypeVar

from headgate.core.check import Answer, Extras, Group
from headgate.core.cost import REQUESTS, Cost, cost_text, divide_cost, total_of
from headgate.core.decision import Decision
from headgate.core.fork import renew_in_children
from headgate.core.quota import MICROSECONDS
from headgate.core.reservation import (
    PENDING_US,
    Adjustments,
    Claim,
    Record,
    Settlement,
    Settling,
    Status,
    charges_of,
    receipt_of,
)
from headgate.errors import InvalidCheck, StoreError, StoreUnavailable
from headgate.limiter.prepared_check import PreparedCheck

T = TypeVar("T")
Finding = Generator[list[Group], Sequence[Answer], T]

EVERY_US: Final = MICROSECONDS  # the shortest interval between looks for reservations that other processes left behind
LEAST_US: Final = 1_000  # … and for reservations that this limiter knows
MAX_ROUNDS: Final = 10  # of refunds at a time, so that no request waits for long

log = logging.getLogger("headgate")


class ReservationState:
    """Everything that `Reservation` and `AsyncReservation` share, which is all but the I/O."""

    __slots__ = ("_extensions", "_facts", "_settled", "_ttl", "_wanted", "cost", "decision", "id", "recorded")

    def __init__(
        self,
        reservation_id: str,
        decision: Decision,
        cost: Cost,
        *,
        recorded: bool,
        facts: Mapping[str, str] = MappingProxyType({}),
        ttl: float = 60.0,
    ) -> None:
        self.id = reservation_id  # any process that has it can settle
        self.decision = decision
        decision.settled = True  # only `settle` refunds it
        self.cost = cost  # the estimate, without extensions
        self.recorded = recorded  # whether there is anything to settle
        self._facts = facts
        self._ttl = ttl
        self._extensions: list[Any] = []  # each is a reservation too
        self._settled = False
        self._wanted: Cost | None = None  # the cost of a settlement that failed

    @property
    def allowed(self) -> bool:
        """Whether the request may proceed."""
        return self.decision.allowed

    @property
    def reserved(self) -> Cost:
        """The whole estimate, including all extensions."""
        return total_of([one.cost for one in (self, *self._extensions)])

    def __bool__(self) -> bool:
        return self.decision.allowed

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, cost={self.cost!r}, decision={self.decision!r})"

    def _add_extension(self, extension: Any) -> Decision:
        decision: Decision = extension.decision
        if decision.allowed:
            self._extensions.append(extension)
        return decision

    def _shares(self, cost: Cost) -> list[tuple[Any, Cost]]:
        """Divide a cost among the reservation and its extensions. Raises `InvalidCheck`.

        They are used up in order; the last one with a unit bears what exceeds the reservation.
        """
        reserved = self.reserved
        for unit in () if cost == 0 else (REQUESTS,) if isinstance(cost, int) else cost:
            if unit not in ((REQUESTS,) if isinstance(reserved, int) else reserved):
                raise InvalidCheck(f"cost: {unit} was not reserved, only {cost_text(reserved)}")
        return divide_cost(cost, [(one, one.cost) for one in (self, *self._extensions)])

    def _note_settlements(self, settlements: list[Settlement], cost: Cost) -> Settlement:
        """Combine the settlements of it and its extensions into one."""
        first = settlements[0]
        reason = "store_error" if any(one.reason == "store_error" for one in settlements) else first.reason
        self._settled = reason != "store_error"
        if len(settlements) == 1:
            return first
        reserved, refunded = ([getattr(one, name) for one in settlements] for name in ("reserved", "refunded"))
        return Settlement(reason, cost, total_of(reserved), total_of(refunded))

    def _final(self, error: BaseException | None) -> Cost | None:
        """Return the cost with which the end of a `with` block settles; None if it was settled inside."""
        if self._settled or not any(one.recorded for one in (self, *self._extensions)):
            return None
        if self._wanted is not None:  # the store could not be reached then, and may be back
            return self._wanted
        return self.reserved if error is None else 0


class Due:
    """The time to look for expired reservations, by the limiter's clock. The store decides by its own clock."""

    __slots__ = ("_looked_us", "at_us")

    def __init__(self) -> None:
        self._looked_us = -EVERY_US
        self.at_us = 0  # the next known reservation expires at this time at the latest; 0: none is known

    def is_due(self, now_us: int) -> bool:
        """Return whether a known reservation has expired."""
        return 0 < self.at_us <= now_us

    def is_time(self, now_us: int) -> bool:
        """Return whether a known one has expired, or it is time to look for those that other processes left behind."""
        return self.is_due(now_us) or not 0 <= now_us - self._looked_us < EVERY_US

    def looking(self, now_us: int) -> None:
        """Record that a call to the store is in progress, so that no other starts."""
        self._looked_us = now_us
        self.at_us = 0

    def expires(self, now_us: int, left_us: int | None) -> None:
        """Record that a reservation expires in `left_us`; None: none does."""
        if left_us is not None:
            at_us = now_us + max(LEAST_US, left_us)
            if not 0 < self.at_us <= at_us:
                self.at_us = at_us

    def note_failure(self, now_us: int, error: StoreError) -> None:
        """Record that the store could not be reached, or could not refund expired reservations."""
        log.warning("could not refund all expired reservations (%s)", error)
        self.expires(now_us, EVERY_US)


def record_of(decision: Decision, reservation: int = 0) -> Record | None:
    """Return the record of what a decision charged; None if it charged nothing."""
    limits = decision.plan.limits
    if not decision.allowed or not limits or decision.reason not in ("within_limit", "shadow"):
        return None
    checks = [
        limit._replace(subject=subject, cost=cost, reservation=reservation)
        for limit, subject, cost in zip(limits, decision.subjects, decision.costs, strict=True)
    ]
    factors, units = decision.plan.ones, decision.plan.units
    reserved = charges_of(checks, decision.outcomes, factors, decision.at_us)
    amounts = [total // factor for total, factor in zip(decision.costs, factors, strict=True)]
    return Record(amounts[0] if units is None else dict(zip(units, amounts, strict=True)), reserved)


def reserving(prepared: PreparedCheck, cost: Cost, reservation_id: str) -> tuple[PreparedCheck, Record]:
    """Return the request to charge for a reservation, and its pending record.

    The request has a number by which buckets track how much it can refund.
    """
    prepared = prepared._replace(extras=Extras(None, prepared.penalty, randbits(52) or 1))
    return prepared, Record.before(prepared.group, prepared.plan.ones, cost, reservation_id)


def with_receipt(prepared: PreparedCheck, reservation_id: str) -> PreparedCheck:
    """Return a request to charge after its pending record was written, with the reservation's id as idempotency key."""
    assert prepared.extras is not None
    return prepared._replace(extras=prepared.extras._replace(idempotency=receipt_of(reservation_id)))


class _Turnstile:
    """Lets each decision through once, across all threads."""

    def __init__(self) -> None:
        self.reset_after_fork()
        renew_in_children(self)

    def reset_after_fork(self) -> None:
        """Create a lock that no thread of the parent holds."""
        self._lock = Lock()

    def passes(self, decision: Decision) -> bool:
        """Return whether this is the first call for the decision and it charged something."""
        with self._lock:
            if getattr(decision, "settled", False):
                return False
            decision.settled = True
            return True


_turnstile: Final = _Turnstile()


def correction(decision: Decision, cost: Cost) -> Adjustments:
    """Return the changes for the store if a request's actual cost differs from what `decision` charged.

    There are none for a peek, a repetition, a copy, or a decision that was refunded or corrected before.
    """
    record = record_of(decision)
    if record is None or not _turnstile.passes(decision):
        return Adjustments()
    return record.adjustments_at(cost)


def settling(claims: Sequence[Claim]) -> Finding[list[Settling]]:
    """Turn claims into settlements, with the changes for the store."""
    records = yield from _complete_records(claims)
    return [_settling(claim, record) for claim, record in zip(claims, records, strict=True)]


def _settling(claim: Claim, record: Record) -> Settling:
    status, cost = claim.status, claim.cost
    reason: Any = "settled" if status is Status.OPEN else "late"
    factors = {reserved.charge.check.rule: reserved.factor for reserved in record.reserved}
    return Settling(Settlement(reason, cost, record.cost), record.adjustments_at(cost, status), factors)


def _complete_records(claims: Sequence[Claim]) -> Finding[list[Record]]:
    """Find out what pending records charged. Yields groups for the store, and receives its answers.

    What late ones charged was refunded, so it does not matter.
    """
    records = [Record.decode(claim.record) for claim in claims]
    unknown = [
        bool(record.pending) and claim.status is not Status.LATE for claim, record in zip(claims, records, strict=True)
    ]
    if not any(unknown):
        return records
    groups = [record.group for record, is_unknown in zip(records, unknown, strict=True) if is_unknown]
    answers = iter((yield groups))
    return [
        record.complete(next(answers)) if is_unknown else record
        for record, is_unknown in zip(records, unknown, strict=True)
    ]


def log_unsettled(error: StoreError, reservation_id: str, cost: Cost) -> Settlement:
    """Log that the store could not be reached. Does not raise, because the caller's work is already done."""
    log.warning("could not settle reservation %s… with cost %s (%s)", reservation_id[:6], cost, error)
    return Settlement("store_error", cost)


def log_uncorrected(error: StoreError) -> None:
    """Log that the store could not be reached, so that a wrong charge stays."""
    log.warning("could not correct the charge of a request (%s)", error)


def log_unanswered(error: StoreError, reservation_id: str) -> bool:
    """Log that a reservation may or may not have been charged. Returns whether it may have been."""
    if isinstance(error, StoreUnavailable) and not error.sent:
        return False
    log.warning("reservation %s… may have been charged without an answer; refunding it (%s)", reservation_id[:6], error)
    return True


def log_unrenewed(error: StoreError, reservation_id: str) -> None:
    """Log that the record of a reservation may still be the one from before the charge, which expires soon."""
    log.warning(
        "reservation %s… may expire after %d s instead of its ttl (%s)",
        reservation_id[:6],
        PENDING_US // MICROSECONDS,
        error,
    )


def nothing_to_settle(cost: Cost) -> Settlement:
    """Return the settlement of a reservation that has nothing to settle."""
    return Settlement("unrecorded", cost)


def no_reservations(store: object) -> InvalidCheck:
    """Return the error for a store that cannot keep reservations."""
    return InvalidCheck(
        f"{type(store).__name__} keeps no reservations: it lacks save_reservation, renew, claim_reservation, "
        "claim_expired, settle or adjust (see headgate.stores.protocol.ReservingStore)"
    )
