"""Reservations as the caller holds them, and when a limiter looks for such as have expired. No I/O of its own."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from secrets import randbits, token_urlsafe
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from headgate.core.check import Answer, Charge, Extras, Group
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
    charged,
    given_back,
    receipt_of,
)
from headgate.errors import InvalidCheck, StoreError
from headgate.limiter.prepared import PreparedCheck

if TYPE_CHECKING:
    from headgate.limiter.aio import AsyncLimiter
    from headgate.limiter.sync import Limiter

T = TypeVar("T")
Finding = Generator[list[Group], Sequence[Answer], T]

EVERY_US: Final = MICROSECONDS  # how often, at most, a limiter looks for what others have left behind
LEAST_US: Final = 1_000  # … and for what it knows to be there
AT_MOST: Final = 10  # rounds of that at a time: nobody's request waits for long

log = logging.getLogger("headgate")


class _Reservation:
    """What both kinds have in common."""

    __slots__ = ("_settled", "_wanted", "cost", "decision", "id", "recorded")

    def __init__(self, reservation_id: str, decision: Decision, cost: int, *, recorded: bool) -> None:
        self.id = reservation_id  # whoever knows it can settle
        self.decision = decision
        decision.settled = True  # `settle` is how to give it back
        self.cost = cost  # the estimate
        self.recorded = recorded  # whether there is anything to settle
        self._settled = False
        self._wanted: int | None = None  # what it was to be settled with

    @property
    def allowed(self) -> bool:
        """Whether the request may go on."""
        return self.decision.allowed

    def __bool__(self) -> bool:
        return self.decision.allowed

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, cost={self.cost!r}, decision={self.decision!r})"

    def _noted(self, settlement: Settlement) -> Settlement:
        self._settled = settlement.reason != "store_error"
        return settlement

    def _final(self, error: BaseException | None) -> int | None:
        """What a `with` block that ends settles with: None when it was settled within."""
        if self._settled or not self.recorded:
            return None
        if self._wanted is not None:  # the store was away then, and may be back
            return self._wanted
        return self.cost if error is None else 0


class Reservation(_Reservation):
    """An estimate that was charged, until `settle` says what it really cost. Truthy when allowed.

    `decision` is that of the check. `id` is a text by which any process on the same store can settle:
    `limiter.settle(id, cost)`. As a context manager it settles with the estimate at the end, and gives it back when
    an exception leaves the block; unless it was settled within.
    """

    __slots__ = ("_limiter",)

    def __init__(self, limiter: Limiter, reservation_id: str, decision: Decision, cost: int, *, recorded: bool) -> None:
        super().__init__(reservation_id, decision, cost, recorded=recorded)
        self._limiter = limiter

    def settle(self, cost: int) -> Settlement:
        """See `Limiter.settle`."""
        if not self.recorded:
            return unrecorded(cost)
        self._wanted = cost
        return self._noted(self._limiter.settle(self.id, cost))

    def refund(self) -> Settlement:
        """Give back all of it: `settle(0)`."""
        return self.settle(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cost = self._final(error)
        if cost is not None:
            self.settle(cost)


class AsyncReservation(_Reservation):
    """`Reservation`, awaited."""

    __slots__ = ("_limiter",)

    def __init__(
        self, limiter: AsyncLimiter, reservation_id: str, decision: Decision, cost: int, *, recorded: bool
    ) -> None:
        super().__init__(reservation_id, decision, cost, recorded=recorded)
        self._limiter = limiter

    async def settle(self, cost: int) -> Settlement:
        """See `Limiter.settle`."""
        if not self.recorded:
            return unrecorded(cost)
        self._wanted = cost
        return self._noted(await self._limiter.settle(self.id, cost))

    async def refund(self) -> Settlement:
        """Give back all of it: `settle(0)`."""
        return await self.settle(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cost = self._final(error)
        if cost is not None:
            await self.settle(cost)


class Due:
    """When to look for reservations that have expired: by the limiter's clock, the store decides by its own."""

    __slots__ = ("_looked_us", "at_us")

    def __init__(self) -> None:
        self._looked_us = -EVERY_US
        self.at_us = 0  # the next one that is known of expires then, or before; 0: none is

    def is_due(self, now_us: int) -> bool:
        """Whether one that is known of has expired."""
        return 0 < self.at_us <= now_us

    def is_time(self, now_us: int) -> bool:
        """The same, or it is time to see whether others have left any behind."""
        return self.is_due(now_us) or not 0 <= now_us - self._looked_us < EVERY_US

    def looking(self, now_us: int) -> None:
        """The store is being asked: others need not."""
        self._looked_us = now_us
        self.at_us = 0

    def expires(self, now_us: int, left_us: int | None) -> None:
        """One expires in so many microseconds; None: none does."""
        if left_us is not None:
            at_us = now_us + max(LEAST_US, left_us)
            if not 0 < self.at_us <= at_us:
                self.at_us = at_us

    def failed(self, now_us: int, error: StoreError) -> None:
        """The store could not be asked, or could not give back what it had handed out."""
        log.warning("reservations that expired were not looked for, or not all given back (%s)", error)
        self.expires(now_us, EVERY_US)


def record_of(decision: Decision, mark: int = 0) -> Record | None:
    """Return what a decision has charged; None when it is nothing."""
    limits = decision.plan.limits
    if not decision.allowed or not limits or decision.reason not in ("within_limit", "shadow"):
        return None
    checks = [
        limit._replace(subject=subject, cost=cost, reservation=mark)
        for limit, subject, cost in zip(limits, decision.subjects, decision.costs, strict=True)
    ]
    units = [limit.cost for limit in limits]
    reserved = charged(checks, decision.outcomes, units, decision.at_us)
    return Record(decision.costs[0] // limits[0].cost, reserved)


def reserving(prepared: PreparedCheck, cost: int, reservation_id: str) -> tuple[PreparedCheck, int, str]:
    """Return a request as it is reserved, its mark, and the record to write before it is charged.

    It has an idempotency key, and the mark by which buckets keep track of what it can give back.
    """
    mark = randbits(52) or 1
    prepared = prepared._replace(extras=Extras(receipt_of(reservation_id), prepared.penalty, mark))
    units = [limit.cost for limit in prepared.plan.limits]
    return prepared, mark, Record.before(prepared.group, units, cost, reservation_id).encode()


class _Turnstile:
    """Lets each decision through once, of all threads that come with it."""

    def __init__(self) -> None:
        self.forked()
        renew_in_children(self)

    def forked(self) -> None:
        """Make a lock that no thread of the parent holds."""
        self._lock = Lock()

    def passes(self, decision: Decision) -> bool:
        """Whether the decision comes for the first time, and charged something."""
        with self._lock:
            if getattr(decision, "settled", False):
                return False
            decision.settled = True
            return True


_turnstile: Final = _Turnstile()


def correction(decision: Decision, cost: int) -> Adjustments:
    """Return what the store has to do when a request cost something else in the end than what `decision` charged.

    Nothing for a peek, a repetition, a copy, or a decision that was given back or corrected before.
    """
    record = record_of(decision)
    if record is None or not _turnstile.passes(decision):
        return Adjustments()
    return record.settled(cost)


def settling(claim: Claim | None, cost: int) -> Finding[Settling]:
    """Return what a claim means, and what the store has to do."""
    if claim is None:
        return Settling(Settlement("gone", cost), Adjustments())
    record = Record.decode(claim.record)
    if claim.status is not Status.LATE:
        (record,) = yield from _found([record])
    reason: Any = "settled" if claim.status is Status.OPEN else "late"
    units = {reserved.charge.check.rule: reserved.unit for reserved in record.reserved}
    return Settling(Settlement(reason, cost, record.cost), record.settled(cost, claim.status), units)


def expiring(records: Sequence[str]) -> Finding[tuple[Charge, ...]]:
    """Return what to undo of reservations that expired."""
    return given_back((yield from _found([Record.decode(text) for text in records])))


def _found(records: list[Record]) -> Finding[list[Record]]:
    """Find out what pending records stand for. Yields groups for the store, and is sent its answers."""
    pending = [record for record in records if record.pending]
    if not pending:
        return records
    answers = iter((yield [record.group for record in pending]))
    return [record.found(next(answers)) if record.pending else record for record in records]


def unsettled(error: StoreError, reservation_id: str, cost: int) -> Settlement:
    """The store was away: the caller's work is done, and nobody is helped by an exception."""
    log.warning("reservation %s… was not settled with cost %s (%s)", reservation_id[:6], cost, error)
    return Settlement("store_error", cost)


def uncorrected(error: StoreError) -> None:
    """The store was away: a charge stands that should not."""
    log.warning("what was charged for a request was not corrected (%s)", error)


def unrenewed(error: StoreError, reservation_id: str) -> None:
    """Log that the record of a reservation may still be the one from before the charge, which expires soon."""
    log.warning(
        "reservation %s… may expire after %d s instead of its ttl (%s)",
        reservation_id[:6],
        PENDING_US // MICROSECONDS,
        error,
    )


def unrecorded(cost: int) -> Settlement:
    """There is nothing to settle."""
    return Settlement("unrecorded", cost)


def new_id() -> str:
    """Return the id of a new reservation. It cannot be guessed."""
    return token_urlsafe(18)


def no_reservations(store: object) -> InvalidCheck:
    """What a store that cannot keep them gives."""
    return InvalidCheck(
        f"{type(store).__name__} keeps no reservations: it lacks hold, renew, claim, expire or adjust "
        "(see headgate.stores.protocol.ReservingStore)"
    )
