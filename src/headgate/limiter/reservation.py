"""Reservations as the caller holds them, and when a limiter looks for such as have expired. No I/O of its own."""

from __future__ import annotations

import logging
from secrets import randbits, token_urlsafe
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from headgate.core.check import Charge, Extras, OutcomeAt, OutcomeOf
from headgate.core.decision import Decision
from headgate.core.quota import MICROSECONDS
from headgate.core.reservation import Adjustments, Claim, Record, Reserved, Settlement, Settling, Status
from headgate.errors import InvalidCheck, StoreError
from headgate.limiter.prepared import PreparedCheck

if TYPE_CHECKING:
    from headgate.limiter.aio import AsyncLimiter
    from headgate.limiter.sync import Limiter

EVERY_US: Final = MICROSECONDS  # how often, at most, a limiter looks for what others have left behind
LEAST_US: Final = 1_000  # … and for what it knows to be there
AT_MOST: Final = 10  # rounds of that at a time: nobody's request waits for long

log = logging.getLogger("headgate")


class _Reservation:
    """What both kinds have in common."""

    __slots__ = ("_settled", "_wanted", "cost", "decision", "id", "recorded")

    def __init__(self, decision: Decision, cost: int, *, recorded: bool) -> None:
        self.decision = decision
        self.cost = cost  # the estimate
        self.id = token_urlsafe(18)  # whoever knows it can settle: it cannot be guessed
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

    def __init__(self, limiter: Limiter, decision: Decision, cost: int, *, recorded: bool) -> None:
        super().__init__(decision, cost, recorded=recorded)
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

    def __init__(self, limiter: AsyncLimiter, decision: Decision, cost: int, *, recorded: bool) -> None:
        super().__init__(decision, cost, recorded=recorded)
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


def marked(prepared: PreparedCheck) -> tuple[PreparedCheck, int]:
    """Return a check as that of a reservation, and the mark by which its buckets know it."""
    mark = randbits(52) or 1
    return prepared._replace(extras=(prepared.extras or Extras())._replace(reservation=mark)), mark


def record_of(decision: Decision, mark: int = 0) -> Record | None:
    """What a decision has charged; None when it is nothing."""
    limits = decision.plan.limits
    if not decision.allowed or not limits or decision.reason not in ("within_limit", "shadow"):
        return None
    reserved = []
    for limit, subject, cost, outcome in zip(limits, decision.subjects, decision.costs, decision.outcomes, strict=True):
        if outcome.wait_us == 0:  # a shadow that did not fit was not charged
            check = limit._replace(subject=subject, cost=cost, reservation=mark)
            at_us = outcome.at_us if isinstance(outcome, OutcomeAt) else decision.at_us
            parts = outcome.charges if isinstance(outcome, OutcomeOf) else ()
            reserved.append(Reserved(Charge(check, at_us, outcome.reset_us), limit.cost, parts))
    return Record(decision.costs[0] // limits[0].cost, tuple(reserved))


def correction(decision: Decision, cost: int) -> Adjustments:
    """What the store has to do when a request cost something else in the end than what `decision` charged."""
    record = record_of(decision)
    return Adjustments() if record is None else record.settled(cost)


def settling(claim: Claim | None, cost: int) -> Settling:
    """What a claim means, and what the store has to do."""
    if claim is None:
        return Settling(Settlement("gone", cost), Adjustments())
    record = Record.decode(claim.record)
    reason: Any = "settled" if claim.status is Status.OPEN else "late"
    units = {reserved.charge.check.rule: reserved.unit for reserved in record.reserved}
    return Settling(Settlement(reason, cost, record.cost), record.settled(cost, claim.status), units)


def unsettled(error: StoreError, reservation_id: str, cost: int) -> Settlement:
    """The store was away: the caller's work is done, and nobody is helped by an exception."""
    log.warning("reservation %s… was not settled with cost %s (%s)", reservation_id[:6], cost, error)
    return Settlement("store_error", cost)


def uncorrected(error: StoreError) -> None:
    """The store was away: a charge stands that should not."""
    log.warning("what was charged for a request was not corrected (%s)", error)


def unheld(error: StoreError, reservation_id: str) -> None:
    """It was charged, but perhaps not recorded: then the estimate stands."""
    log.warning("reservation %s… may not have been recorded: then its estimate stands (%s)", reservation_id[:6], error)


def unrecorded(cost: int) -> Settlement:
    """There is nothing to settle."""
    return Settlement("unrecorded", cost)


def no_reservations(store: object) -> InvalidCheck:
    """What a store that cannot keep them gives."""
    return InvalidCheck(
        f"{type(store).__name__} keeps no reservations: it lacks hold, claim, expire or adjust "
        "(see headgate.stores.protocol.ReservingStore)"
    )
