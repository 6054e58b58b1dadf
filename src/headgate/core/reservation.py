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
    Result,
    SharedResult,
    Terms,
)
from headgate.core.quota import BUCKETS, MAX_INT, MICROSECONDS, Quota
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
    OVERDUE = 1  # it has expired, and nobody has given it back yet: whoever claims it has to
    LATE = 2  # it has expired, and was given back


class Claim(NamedTuple):
    """A reservation that was taken out of a store, which happens once."""

    record: str
    status: Status


class Expired(NamedTuple):
    """Reservations that expired, taken out of a store to be given back, and the time until the next one does."""

    records: tuple[str, ...]
    next_us: int | None  # None: there is none


class Reserved(NamedTuple):
    """One limit's part in a reservation."""

    charge: Charge  # of the whole
    unit: int  # what a request of cost 1 costs by its rule
    parts: tuple[Charge, ...] = ()  # of a rule with shards: what was charged to which


class Adjustments(NamedTuple):
    """What a store has to do to settle: charges to undo, and checks to charge whether they fit or not."""

    refunds: tuple[Charge, ...] = ()
    surcharges: tuple[Check, ...] = ()


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of a reservation. Truthy when this call settled it.

    `reason` is `settled`; `late` when it had expired: then its estimate was given back, and all of the cost charged
    now; `gone` when it was settled before, or expired more than an hour ago, or never was; `unrecorded` when nothing
    was charged (refused, no rule applied, or the store was away); `store_error` when the store could not be reached.
    """

    reason: SettlementReason
    cost: int  # what it really cost
    reserved: int = 0  # what had been charged; 0 when that is not known
    refunded: int = field(default=0, compare=False)  # what was given back; of several limits, where it was least

    def __bool__(self) -> bool:
        return self.reason in ("settled", "late")

    @property
    def surcharged(self) -> int:
        """How much more it cost than was reserved."""
        return max(0, self.cost - self.reserved) if self else 0


class Record(NamedTuple):
    """What a store keeps of a reservation, as text.

    One that is `pending` was written before the charge: nobody knows yet whether that was made, and when. It has the
    id of the reservation, which is the charge's idempotency key, and the penalty that the charge had, if it had one.
    """

    cost: int
    reserved: tuple[Reserved, ...]
    pending: str = ""
    penalty: Penalty | None = None

    @classmethod
    def before(cls, group: Group, units: Sequence[int], cost: int, reservation_id: str) -> Record:
        """Return the record of a group that is about to be charged. `units` are what a cost of 1 costs each check."""
        reserved = [Reserved(Charge(check, 0), unit) for check, unit in zip(group.checks, units, strict=True)]
        return cls(cost, tuple(reserved), reservation_id, group.penalty)

    @property
    def group(self) -> Group:
        """The group that a pending record is about. Asked again, it gets the first answer, or is decided now."""
        checks = tuple(one.charge.check for one in self.reserved)
        return Group(checks, idempotency=receipt_of(self.pending), penalty=self.penalty)

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
        units = [one.unit for one in self.reserved]
        return Record(self.cost, charged(checks, answer.outcomes, units, answer.now_us))

    def encode(self) -> str:
        rows = []
        for (check, at_us, reset_us), unit, parts in self.reserved:
            row = (check.rule, check.space, check.subject, _figures(check), check.enforced, unit, at_us, reset_us)
            shards = [(part.space, _figures(part), part.cost, part_at, reset) for part, part_at, reset in parts]
            rows.append((*row, shards, check.reservation) if shards or check.reservation else row)
        told: tuple[Any, ...] = (self.cost, rows)
        if self.pending:
            told += (self.pending, self.penalty)
        return json.dumps(told, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Record:
        cost, rows, *others = json.loads(text)
        pending, penalty = others or ("", None)
        if penalty is not None:
            client, (detection_us, threshold, multipliers) = penalty
            penalty = Penalty(Client(*client), Terms(detection_us, threshold, tuple(multipliers)))
        reserved = []
        for rule, space, subject, figures, enforced, unit, at_us, reset_us, *more in rows:
            shards, mark = (*more, 0)[:2] if more else ((), 0)
            check = Check(rule, space, subject, _quota(figures), unit * cost, enforced, reservation=mark)
            parts = tuple(
                Charge(check._replace(space=own, quota=_quota(part), cost=charged), part_at, reset)
                for own, part, charged, part_at, reset in shards
            )
            reserved.append(Reserved(Charge(check, at_us, reset_us), unit, parts))
        return cls(cost, tuple(reserved), pending, penalty)

    def settled(self, cost: int, status: Status = Status.OPEN) -> Adjustments:
        """What is to be done when it really cost so much.

        What is too much is given back where it was charged; what is more is charged now. Of one that has expired,
        the estimate is given back as ever, and all of the cost charged now.
        """
        refunds, surcharges = [], []
        for charge, unit, parts in self.reserved:
            check = charge.check
            actual = min(MAX_INT, unit * cost)
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
    units: Mapping[str, int] = MappingProxyType({})  # what a request of cost 1 costs by each rule

    def settled(self, given: Sequence[int] | None) -> Settlement:
        """Return the settlement, now that so much of each refund was given back. None: all, as far as is known."""
        settlement, (refunds, _), units = self
        if given is None:
            given = [charge.check.cost for charge in refunds]
        by_rule: dict[str, int] = {}
        for charge, back in zip(refunds, given, strict=True):
            by_rule[charge.check.rule] = by_rule.get(charge.check.rule, 0) + back
        least = min((back // units[rule] for rule, back in by_rule.items()), default=0)
        charged = settlement.cost if settlement.reason == "late" else 0
        return replace(settlement, refunded=max(0, least - charged))


def _figures(check: Check) -> tuple[int, int, int, str]:
    quota = check.quota
    return quota.limit, quota.window_us, quota.burst, quota.algorithm


def _quota(figures: Sequence[Any]) -> Quota:
    limit, window_us, burst, algorithm = figures
    return Quota(limit, timedelta(microseconds=window_us), burst=burst, algorithm=algorithm)


def receipt_of(reservation_id: str) -> Idempotency:
    """Return the idempotency key of a reservation's charge."""
    return Idempotency(reservation_id, "reserve", "reservation", is_receipt=True)


def charged(
    checks: Sequence[Check], outcomes: Sequence[Outcome], units: Sequence[int], now_us: int
) -> tuple[Reserved, ...]:
    """Return what an allowed group has charged. A shadow that did not fit was not charged."""
    reserved = []
    for check, outcome, unit in zip(checks, outcomes, units, strict=True):
        if outcome.wait_us == 0:
            at_us = outcome.at_us if isinstance(outcome, OutcomeAt) else now_us
            parts = outcome.charges if isinstance(outcome, OutcomeOf) else ()
            reserved.append(Reserved(Charge(check, at_us, outcome.reset_us), unit, parts))
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


def whole_cost(cost: int) -> int:
    """What something really cost. Raises `InvalidCheck`."""
    if isinstance(cost, bool) or not isinstance(cost, int) or not 0 <= cost <= MAX_INT:
        raise InvalidCheck(f"cost: must be a whole number from 0 to 2^53-1, got {cost!r}")
    return cost


def checked_id(text: str) -> str:
    """The id of a reservation, as somebody gave it. Raises `InvalidCheck`."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_ID or not text.isascii():
        raise InvalidCheck(f"reservation_id: must be the id of a Reservation, got {text!r}")
    return text
