"""Reservations: what is recorded of them, and what settling one means for the limits that it charged. Pure; no I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from headgate.core.check import (
    REFUSAL,
    Answer,
    Charge,
    Check,
    Client,
    Group,
    Idempotency,
    Outcome,
    OutcomeAt,
    OutcomeOf,
    Penalty,
    Refusal,
    Result,
    SharedResult,
    Terms,
)
from headgate.core.cost import REQUESTS, Cost, amount_of, spent
from headgate.core.quota import BUCKETS, CONCURRENCY, MAX_INT, MICROSECONDS, Quota
from headgate.errors import InvalidCheck, StoreError

MIN_TTL_US: Final = 1_000
MAX_TTL_US: Final = 7 * 86_400 * MICROSECONDS
LATE_US: Final = 3_600 * MICROSECONDS  # for how long after its expiry a reservation can still be settled
PENDING_US: Final = 10 * MICROSECONDS  # for how long a charge may be under way; less than idempotency keys are kept
MAX_ID: Final = 128  # characters

SettlementReason = Literal["settled", "late", "gone", "unrecorded", "store_error"]


class Status(Enum):
    """How a store finds a reservation that is claimed."""

    OPEN = 0
    OVERDUE = 1  # it has expired, and its charge was not given back yet: the caller that claims it must do that
    LATE = 2  # it has expired, and was given back


class Claim(NamedTuple):
    """A reservation that was taken out of a store, which happens once."""

    record: str
    status: Status


class Expired(NamedTuple):
    """Reservations that expired, taken out of a store to be given back, and the time until the next one does."""

    records: tuple[str, ...]
    next_us: int | None  # None: there is none


class ReservedLimit(NamedTuple):
    """One limit's part in a reservation."""

    charge: Charge  # of the whole
    factor: int  # what 1 of its unit costs by its rule
    parts: tuple[Charge, ...] = ()  # of a rule with shards: what was charged to which

    @property
    def unit(self) -> str:
        """What the limit counts."""
        return self.charge.check.refusal.unit


class Adjustments(NamedTuple):
    """The changes that settle a reservation: charges to undo, and checks to charge whether they fit or not."""

    refunds: tuple[Charge, ...] = ()
    surcharges: tuple[Check, ...] = ()


@dataclass(frozen=True, slots=True)
class Settlement:
    """The result of settling a reservation. Truthy when this call settled it.

    The `reason` is one of these:

    - `settled`;
    - `late`: it had expired, so its estimate was given back, and all of the cost is charged now;
    - `gone`: it was settled before, or expired more than an hour ago, or never existed;
    - `unrecorded`: nothing was charged, because it was refused, no rule applied, or the store was down;
    - `store_error`: the store could not be reached.
    """

    reason: SettlementReason
    cost: Cost  # what it really cost
    reserved: Cost = 0  # what had been charged; 0 when that is not known
    refunded: Cost = field(default=0, compare=False)  # what was given back; of several limits, where it was least

    def __bool__(self) -> bool:
        return self.reason in ("settled", "late")

    @property
    def surcharged(self) -> Cost:
        """How much more it cost than was reserved; by unit, if it was reserved by unit."""
        if not self:
            return 0
        if isinstance(self.reserved, int):
            return max(0, amount_of(self.cost, REQUESTS) - self.reserved)
        return {unit: max(0, spent(self.cost, unit, reserved) - reserved) for unit, reserved in self.reserved.items()}


class Record(NamedTuple):
    """What a store keeps of a reservation, as text.

    A `pending` record was written before the charge, so it does not say whether or when the charge was made. It has the
    id of the reservation, which is the charge's idempotency key, and the charge's penalty, if there is one. A store
    that charges and writes in one step writes the pending record and, on the next line, the answer: the time, and the
    wait, remaining and reset of each check.
    """

    cost: Cost
    reserved: tuple[ReservedLimit, ...]
    pending: str = ""
    penalty: Penalty | None = None

    @classmethod
    def before(cls, group: Group, factors: Sequence[int], cost: Cost, reservation_id: str) -> Record:
        """Return the record of a group that is about to be charged. `factors`: what 1 of its unit costs each check."""
        reserved = [
            ReservedLimit(Charge(check, 0), factor) for check, factor in zip(group.checks, factors, strict=True)
        ]
        return cls(cost, tuple(reserved), reservation_id, group.penalty)

    @property
    def group(self) -> Group:
        """The group that a pending record is about. Asked again, it gets the first answer, or is decided now."""
        checks = tuple(one.charge.check for one in self.reserved)
        return Group(checks, idempotency=receipt_of(self.pending), penalty=self.penalty)

    @property
    def charge(self) -> Group:
        """The group that a pending record is about, for a store that charges it and writes the record in one step."""
        return Group(tuple(one.charge.check for one in self.reserved), penalty=self.penalty)

    def found(self, answer: Answer) -> Record:
        """Return what a pending record stands for, by the answer to its group. Raises it, if it is a fault."""
        if isinstance(answer, StoreError):
            raise answer
        if not isinstance(answer, Result) or not answer.outcomes:
            return Record(self.cost, ())
        if isinstance(answer, SharedResult):
            checks = answer.applied_to(tuple(one.charge.check for one in self.reserved))
        else:
            checks = tuple(one.charge.check for one in self.reserved)
        pairs = list(zip(checks, answer.outcomes, strict=True))
        if any(check.enforced and outcome.wait_us for check, outcome in pairs):
            return Record(self.cost, ())
        factors = [one.factor for one in self.reserved]
        return Record(self.cost, charged(checks, answer.outcomes, factors, answer.now_us))

    def encode(self) -> str:
        rows = []
        for (check, at_us, reset_us), factor, parts in self.reserved:
            row = (check.rule, check.space, check.subject, _figures(check), check.enforced, factor, at_us, reset_us)
            shards = [(part.space, _figures(part), part.cost, part_at, reset) for part, part_at, reset in parts]
            more: tuple[Any, ...] = (shards, check.reservation) if shards or check.reservation else ()
            if check.refusal.unit != REQUESTS:
                more = (shards, check.reservation, check.refusal.unit)
            rows.append((*row, *more))
        told: tuple[Any, ...] = (self.cost if isinstance(self.cost, int) else dict(self.cost), rows)
        if self.pending:
            told += (self.pending, self.penalty)
        return json.dumps(told, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Record:
        text, _, answer = text.partition("\n")
        told: tuple[Any, ...] = tuple(json.loads(text))
        cost, rows, *others = told
        pending, penalty = others or ("", None)
        if penalty is not None:
            client, (detection_us, threshold, multipliers) = penalty
            penalty = Penalty(Client(*client), Terms(detection_us, threshold, tuple(multipliers)))
        reserved = []
        for rule, space, subject, figures, enforced, factor, at_us, reset_us, *more in rows:
            defaults: tuple[Any, ...] = ((), 0, REQUESTS)
            shards, mark, unit = tuple(more) + defaults[len(more) :]
            refusal = REFUSAL if unit == REQUESTS else Refusal(unit=unit)
            total = factor * amount_of(cost, unit)
            check = Check(rule, space, subject, _quota(figures), total, enforced, refusal, reservation=mark)
            parts = tuple(
                Charge(check._replace(space=own, quota=_quota(part), cost=charged), part_at, reset)
                for own, part, charged, part_at, reset in shards
            )
            reserved.append(ReservedLimit(Charge(check, at_us, reset_us), factor, parts))
        record = cls(cost, tuple(reserved), pending, penalty)
        return record.found(_answer(answer)) if answer else record

    def settled(self, cost: Cost, status: Status = Status.OPEN) -> Adjustments:
        """Return the changes that settle it with `cost`. A unit that `cost` does not name cost what was reserved.

        What was reserved too much is given back where it was charged; what is missing is charged now. If the
        reservation has expired, its whole estimate is given back, and all of the cost is charged now.
        """
        refunds, surcharges = [], []
        for one in self.reserved:
            charge, factor, parts = one
            check = charge.check
            actual = min(MAX_INT, factor * spent(cost, one.unit, amount_of(self.cost, one.unit)))
            back, more = max(0, check.cost - actual), max(0, actual - check.cost)
            if status is not Status.OPEN:
                back, more = check.cost if status is Status.OVERDUE else 0, actual
            closes = status is not Status.LATE and check.reservation and check.quota.algorithm in BUCKETS
            for part in parts or (charge,):
                given = min(back, part.check.cost)
                if given or closes:  # its bucket need not keep track of it any longer
                    refunds.append(part._replace(check=part.check._replace(cost=given)))
                    back -= given
            if more:
                surcharges.append(check._replace(cost=more))
        return Adjustments(tuple(refunds), tuple(surcharges))


class Settling(NamedTuple):
    """A settlement before the store has done its part."""

    settlement: Settlement
    adjustments: Adjustments
    factors: Mapping[str, int] = MappingProxyType({})  # what 1 of its unit costs by each rule

    def settled(self, given: Sequence[int] | None) -> Settlement:
        """Return the settlement, now that so much of each refund was given back. None: all, as far as is known."""
        settlement, (refunds, _), factors = self
        if given is None:
            given = [charge.check.cost for charge in refunds]
        by_rule: dict[tuple[str, str], int] = {}
        for charge, back in zip(refunds, given, strict=True):
            key = (charge.check.refusal.unit, charge.check.rule)
            by_rule[key] = by_rule.get(key, 0) + back
        least: dict[str, int] = {}
        for (unit, rule), back in by_rule.items():
            least[unit] = min(least.get(unit, MAX_INT), back // factors[rule])
        if settlement.reason == "late":  # all of the cost was charged anew
            for unit, back in least.items():
                least[unit] = max(0, back - spent(settlement.cost, unit, amount_of(settlement.reserved, unit)))
        if isinstance(settlement.reserved, int):
            return replace(settlement, refunded=least.get(REQUESTS, 0))
        return replace(settlement, refunded={unit: least.get(unit, 0) for unit in settlement.reserved})


def _figures(check: Check) -> tuple[int, int, int, str]:
    quota = check.quota
    return quota.limit, quota.window_us, quota.burst, quota.algorithm


def _answer(text: str) -> Result:
    """The answer behind a pending record."""
    now_us, *figures = map(int, text.split())
    return Result(now_us, tuple(Outcome(*figures[at : at + 3]) for at in range(0, len(figures), 3)))


def _quota(figures: Sequence[Any]) -> Quota:
    limit, window_us, burst, algorithm = figures
    return Quota(limit, timedelta(microseconds=window_us), burst=burst, algorithm=algorithm)


def receipt_of(reservation_id: str) -> Idempotency:
    """Return the idempotency key of a reservation's charge."""
    return Idempotency(reservation_id, "reserve", "reservation", is_receipt=True)


def charged(
    checks: Sequence[Check], outcomes: Sequence[Outcome], factors: Sequence[int], now_us: int
) -> tuple[ReservedLimit, ...]:
    """Return what an allowed group has charged. A shadow that did not fit was not charged, and slots are released."""
    reserved = []
    for check, outcome, factor in zip(checks, outcomes, factors, strict=True):
        if outcome.wait_us == 0 and check.quota.algorithm != CONCURRENCY:
            at_us = outcome.at_us if isinstance(outcome, OutcomeAt) else now_us
            parts = outcome.charges if isinstance(outcome, OutcomeOf) else ()
            reserved.append(ReservedLimit(Charge(check, at_us, outcome.reset_us), factor, parts))
    return tuple(reserved)


def given_back(records: Iterable[Record]) -> tuple[Charge, ...]:
    """Return what to undo of reservations that expired."""
    return tuple(charge for record in records for charge in record.settled(0).refunds)


def ttl_us(seconds: float) -> int:
    """A time to live, in microseconds. Raises `InvalidCheck`."""
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        us = seconds * MICROSECONDS
        if MIN_TTL_US <= us <= MAX_TTL_US:
            return round(us)
    raise InvalidCheck(f"ttl: must be from 0.001 to 604800 seconds (7 days), got {seconds!r}")


def checked_id(text: str) -> str:
    """Return `text` if it can be the id of a reservation. Raises `InvalidCheck` otherwise."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_ID or not text.isascii():
        raise InvalidCheck(f"reservation_id: must be the id of a Reservation, got {text!r}")
    return text
