"""Reservations: their records, and the changes to limits that settle them. Pure; no I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from secrets import token_urlsafe
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
from headgate.core.cost import REQUESTS, Cost, amount_of, amount_spent
from headgate.core.quota import BUCKETS, CONCURRENCY, MAX_INT, MICROSECONDS, Quota
from headgate.errors import InvalidCheck, StoreError

MIN_TTL_US: Final = 1_000
MAX_TTL_US: Final = 7 * 86_400 * MICROSECONDS
LATE_US: Final = 3_600 * MICROSECONDS  # how long after its expiry a reservation can still be settled
PENDING_US: Final = 10 * MICROSECONDS  # how long a charge may be in progress; shorter than idempotency keys are kept
MAX_ID: Final = 128  # characters

SettlementReason = Literal["settled", "late", "gone", "unrecorded", "store_error"]


class Status(Enum):
    """The status of a reservation when it is claimed from the store."""

    OPEN = 0
    OVERDUE = 1  # expired, but its charge was not refunded yet: the claimer must refund it
    LATE = 2  # expired and refunded
    EXPIRING = 3  # expired, and claimed to be refunded


class Claim(NamedTuple):
    """A reservation that one caller may settle. The store keeps it until it is settled, or the claim expires."""

    record: str
    status: Status
    reservation_id: str
    cost: Cost  # to settle it with
    text: str = ""  # the claim as the store keeps it, if it needs that


class ExpiredClaims(NamedTuple):
    """Reservations that expired, and claims that were not settled in time; and the time until the next one expires."""

    claims: Sequence[Claim]
    next_us: int | None  # None: no reservation is left


class ReservationAnswer(NamedTuple):
    """The answer of a store that charged a reservation and stored its record, if the request fits."""

    answer: Answer
    is_pending: bool = False  # the record was stored before all limits were charged: renew it, or settle it


class ReservedLimit(NamedTuple):
    """One limit's part in a reservation."""

    charge: Charge  # for the whole limit
    factor: int  # what 1 of its unit costs by its rule
    parts: tuple[Charge, ...] = ()  # for a rule with shards: the charge to each shard

    @property
    def unit(self) -> str:
        """The unit that the limit counts."""
        return self.charge.check.refusal.unit


class Adjustments(NamedTuple):
    """The changes that settle a reservation: charges to undo, and checks to charge even if they do not fit."""

    refunds: tuple[Charge, ...] = ()
    surcharges: tuple[Check, ...] = ()


class ClaimedAdjustments(NamedTuple):
    """The changes that settle a claimed reservation."""

    claim: Claim
    adjustments: Adjustments


@dataclass(frozen=True, slots=True)
class Settlement:
    """The result of settling a reservation. Truthy when this call settled it.

    The `reason` is one of these:

    - `settled`;
    - `late`: it had expired and its estimate was refunded, so the whole cost is charged now;
    - `gone`: it was settled before, expired more than an hour ago, or never existed;
    - `unrecorded`: nothing was charged, because it was refused, no rule applied, or the store was down;
    - `store_error`: the store could not be reached.
    """

    reason: SettlementReason
    cost: Cost  # the actual cost
    reserved: Cost = 0  # the amount charged in advance; 0 if unknown
    refunded: Cost = field(default=0, compare=False)  # the amount refunded: the least over all limits

    def __bool__(self) -> bool:
        return self.reason in ("settled", "late")

    @property
    def surcharged(self) -> Cost:
        """How much the actual cost exceeded the reserved amount; by unit, if it was reserved by unit."""
        if not self:
            return 0
        if isinstance(self.reserved, int):
            return max(0, amount_of(self.cost, REQUESTS) - self.reserved)
        return {
            unit: max(0, amount_spent(self.cost, unit, reserved) - reserved) for unit, reserved in self.reserved.items()
        }


class Record(NamedTuple):
    """The record of a reservation that a store keeps as text.

    A `pending` record was written before the charge, so it does not say whether or when the charge was made. It
    contains the id of the reservation, which is the charge's idempotency key, and the charge's penalty, if any. A store
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
        """The group of a pending record. Sent again, it gets the first answer, or is decided now if there is none."""
        checks = tuple(one.charge.check for one in self.reserved)
        return Group(checks, idempotency=receipt_of(self.pending), penalty=self.penalty)

    @property
    def charge(self) -> Group:
        """The group of a pending record, for a store that charges it and writes the record in one step."""
        return Group(tuple(one.charge.check for one in self.reserved), penalty=self.penalty)

    def complete(self, answer: Answer) -> Record:
        """Complete a pending record with the answer to its group. Raises the answer if it is a fault."""
        if isinstance(answer, StoreError):
            raise answer
        if not isinstance(answer, Result) or not self.is_admitted_by(answer):
            return Record(self.cost, ())
        checks = tuple(one.charge.check for one in self.reserved)
        if isinstance(answer, SharedResult):
            checks = answer.applied_to(checks)
        factors = [one.factor for one in self.reserved]
        return Record(self.cost, charges_of(checks, answer.outcomes, factors, answer.now_us))

    def is_admitted_by(self, answer: Answer) -> bool:
        """Return whether an answer to the group of a pending record admits it. Shadow limits may not be charged."""
        return (
            isinstance(answer, Result)
            and bool(answer.outcomes)
            and not any(
                one.charge.check.enforced and outcome.wait_us
                for one, outcome in zip(self.reserved, answer.outcomes, strict=True)
            )
        )

    def encode(self) -> str:
        rows = []
        for (check, at_us, reset_us), factor, parts in self.reserved:
            row = (
                check.rule,
                check.key_template,
                check.subject,
                _figures(check),
                check.enforced,
                factor,
                at_us,
                reset_us,
            )
            shards = [(part.key_template, _figures(part), part.cost, part_at, reset) for part, part_at, reset in parts]
            more: tuple[Any, ...] = (shards, check.reservation) if shards or check.reservation else ()
            if check.refusal.unit != REQUESTS:
                more = (shards, check.reservation, check.refusal.unit)
            rows.append((*row, *more))
        fields: tuple[Any, ...] = (self.cost if isinstance(self.cost, int) else dict(self.cost), rows)
        if self.pending:
            fields += (self.pending, self.penalty)
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Record:
        text, _, answer = text.partition("\n")
        fields: tuple[Any, ...] = tuple(json.loads(text))
        cost, rows, *others = fields
        pending, penalty = others or ("", None)
        if penalty is not None:
            client, (detection_us, threshold, multipliers) = penalty
            penalty = Penalty(Client(*client), Terms(detection_us, threshold, tuple(multipliers)))
        reserved = []
        for rule, key_template, subject, figures, enforced, factor, at_us, reset_us, *more in rows:
            defaults: tuple[Any, ...] = ((), 0, REQUESTS)
            shards, reservation, unit = tuple(more) + defaults[len(more) :]
            refusal = REFUSAL if unit == REQUESTS else Refusal(unit=unit)
            total = factor * amount_of(cost, unit)
            check = Check(
                rule, key_template, subject, _quota(figures), total, enforced, refusal, reservation=reservation
            )
            parts = tuple(
                Charge(check._replace(key_template=own, quota=_quota(part), cost=charged), part_at, reset)
                for own, part, charged, part_at, reset in shards
            )
            reserved.append(ReservedLimit(Charge(check, at_us, reset_us), factor, parts))
        record = cls(cost, tuple(reserved), pending, penalty)
        return record.complete(_answer(answer)) if answer else record

    def adjustments_at(self, cost: Cost, status: Status = Status.OPEN) -> Adjustments:
        """Return the changes that settle it at `cost`. A unit that `cost` does not name cost its reserved amount.

        An overcharge is refunded where it was charged, and a shortfall is charged now. If the reservation has expired,
        its whole estimate is refunded, and the whole cost is charged now.
        """
        refunds, surcharges = [], []
        for one in self.reserved:
            charge, factor, parts = one
            check = charge.check
            actual = min(MAX_INT, factor * amount_spent(cost, one.unit, amount_of(self.cost, one.unit)))
            back, more = max(0, check.cost - actual), max(0, actual - check.cost)
            if status is not Status.OPEN:
                back, more = 0 if status is Status.LATE else check.cost, actual
            closes = status is not Status.LATE and check.reservation and check.quota.algorithm in BUCKETS
            for part in parts or (charge,):
                refund = min(back, part.check.cost)
                if refund or closes:  # the bucket no longer needs to track the reservation
                    refunds.append(part._replace(check=part.check._replace(cost=refund)))
                    back -= refund
            if more:
                surcharges.append(check._replace(cost=more))
        return Adjustments(tuple(refunds), tuple(surcharges))


class Settling(NamedTuple):
    """A settlement that the store has not applied yet."""

    settlement: Settlement
    adjustments: Adjustments
    factors: Mapping[str, int] = MappingProxyType({})  # what 1 of its unit costs by each rule

    def conclude(self, refunded: Sequence[int]) -> Settlement:
        """Return the settlement after the store refunded these amounts, by refund."""
        settlement, (refunds, _), factors = self
        by_rule: dict[tuple[str, str], int] = {}
        for charge, back in zip(refunds, refunded, strict=True):
            key = (charge.check.refusal.unit, charge.check.rule)
            by_rule[key] = by_rule.get(key, 0) + back
        least: dict[str, int] = {}
        for (unit, rule), back in by_rule.items():
            least[unit] = min(least.get(unit, MAX_INT), back // factors[rule])
        if settlement.reason == "late":  # the whole cost was charged again
            for unit, back in least.items():
                least[unit] = max(0, back - amount_spent(settlement.cost, unit, amount_of(settlement.reserved, unit)))
        if isinstance(settlement.reserved, int):
            return replace(settlement, refunded=least.get(REQUESTS, 0))
        return replace(settlement, refunded={unit: least.get(unit, 0) for unit in settlement.reserved})


def _figures(check: Check) -> tuple[int, int, int, str]:
    quota = check.quota
    return quota.limit, quota.window_us, quota.burst, quota.algorithm


def _answer(text: str) -> Result:
    """Parse the answer that follows a pending record."""
    now_us, *figures = map(int, text.split())
    return Result(now_us, tuple(Outcome(*figures[at : at + 3]) for at in range(0, len(figures), 3)))


def _quota(figures: Sequence[Any]) -> Quota:
    limit, window_us, burst, algorithm = figures
    return Quota(limit, timedelta(microseconds=window_us), burst=burst, algorithm=algorithm)


def new_id() -> str:
    """Return the id of a new reservation. It cannot be guessed."""
    return token_urlsafe(18)


def receipt_of(reservation_id: str) -> Idempotency:
    """Return the idempotency key of a reservation's charge."""
    return Idempotency(reservation_id, "reserve", "reservation", is_receipt=True)


def charges_of(
    checks: Sequence[Check], outcomes: Sequence[Outcome], factors: Sequence[int], now_us: int
) -> tuple[ReservedLimit, ...]:
    """Return the charges that an allowed group made, except to shadow limits that did not fit and to slots."""
    reserved = []
    for check, outcome, factor in zip(checks, outcomes, factors, strict=True):
        if outcome.wait_us == 0 and check.quota.algorithm != CONCURRENCY:
            at_us = outcome.at_us if isinstance(outcome, OutcomeAt) else now_us
            parts = outcome.charges if isinstance(outcome, OutcomeOf) else ()
            reserved.append(ReservedLimit(Charge(check, at_us, outcome.reset_us), factor, parts))
    return tuple(reserved)


def ttl_us(seconds: float) -> int:
    """Return a time to live in microseconds. Raises `InvalidCheck`."""
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        us = seconds * MICROSECONDS
        if MIN_TTL_US <= us <= MAX_TTL_US:
            return round(us)
    raise InvalidCheck(f"ttl: must be from 0.001 to 604800 seconds (7 days), got {seconds!r}")


def checked_id(text: str) -> str:
    """Return `text` if it is a valid reservation id. Raises `InvalidCheck` otherwise."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_ID or not text.isascii():
        raise InvalidCheck(f"reservation_id: must be the id of a Reservation, got {text!r}")
    return text
