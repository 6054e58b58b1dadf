"""Records that the memory store keeps beside states: reservations, refunds, answers to idempotency keys, and a ledger.

Callers hold the store's lock. Times are in microseconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from headgate.core.check import IDEMPOTENCY_US, Block, Charge, Idempotency, Outcome
from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.core.quota import BUCKETS, MAX_INT, Quota
from headgate.core.reading import Reading
from headgate.core.reservation import LATE_US, PENDING_US, Claim, ExpiredClaims, Status
from headgate.errors import IdempotencyConflict, StoreFull
from headgate.stores.protocol import LedgerPage, Swap

EXPIRED_AT_ONCE: Final = 100
MAX_REFUNDS: Final = 128  # remembered per key, at most


class ReservationTable:
    """Reservations by id, until they are settled or too old. At most `size` of them. Twin of redis/reservations.lua."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._records: dict[str, str] = {}
        self._open: dict[str, int] = {}  # by id, the time of expiry
        self._order: list[tuple[int, str]] = []  # a heap of the same; may still contain claimed reservations
        self._claims: OrderedDict[str, tuple[Claim, int]] = OrderedDict()  # by id, and the time of the claim's expiry
        self._late: OrderedDict[str, int] = OrderedDict()  # by id, the time of deletion

    def __len__(self) -> int:
        return len(self._records)

    def save_reservation(self, name: str, record: str, now: int, ttl: int) -> None:
        self._forget(now)
        if len(self._records) >= self._size:
            raise StoreFull(f"the memory store is full: it holds {self._size} reservations; raise max_keys")
        self._put(name, record, now + ttl)

    def renew(self, name: str, record: str, now: int, ttl: int) -> bool:
        is_open = name in self._open
        if is_open:
            self._put(name, record, now + ttl)
        return is_open

    def drop(self, name: str) -> None:
        """Remove an open reservation."""
        if self._open.pop(name, None) is not None:
            del self._records[name]

    def claim_reservation(self, name: str, cost: Cost, now: int) -> Claim | None:
        self._forget(now)
        record = self._records.get(name)
        if record is None:
            return None
        if name in self._claims:
            claim, _ = self._claims[name]
            return claim if claim.status is Status.EXPIRING else None
        due = self._open.pop(name, None)
        if due is None:
            del self._late[name]
            status = Status.LATE
        else:
            status = Status.OPEN if now < due else Status.OVERDUE
        return self._keep(Claim(record, status, name, cost), now)

    def claim_expired(self, now: int) -> ExpiredClaims:
        self._forget(now)
        claims: list[Claim] = []
        while (first := self._next()) is not None and first[0] <= now and len(claims) < EXPIRED_AT_ONCE:
            name = first[1]
            if self._open.pop(name, None) is None:
                claim, _ = self._claims.pop(name)
            else:
                claim = Claim(self._records[name], Status.EXPIRING, name, 0)
            claims.append(self._keep(claim, now))
        return ExpiredClaims(claims, None if first is None else max(0, first[0] - now))

    def settle(self, claim: Claim, now: int) -> bool:
        """Take out a reservation. Return False, and do nothing, if the claim does not stand."""
        name = claim.reservation_id
        if name not in self._claims or self._claims[name][0] != claim:
            return False
        del self._claims[name]
        if claim.status is Status.EXPIRING:  # only a late settlement follows
            self._late[name] = now + LATE_US
        else:
            del self._records[name]
        return True

    def clear(self) -> None:
        self._records.clear()
        self._open.clear()
        self._order.clear()
        self._claims.clear()
        self._late.clear()

    def _put(self, name: str, record: str, due: int) -> None:
        self._records[name] = record
        self._open[name] = due
        if len(self._order) > 2 * len(self._open) + 64:
            self._order = [(time, other) for other, time in self._open.items()]
            heapify(self._order)
        else:
            heappush(self._order, (due, name))

    def _keep(self, claim: Claim, now: int) -> Claim:
        """Keep a claim until it is settled, or expires."""
        self._claims[claim.reservation_id] = (claim, now + PENDING_US)
        return claim

    def _next(self) -> tuple[int, str] | None:
        """Return the time and the id of the reservation or claim that expires next."""
        order = self._order
        while order and self._open.get(order[0][1]) != order[0][0]:
            heappop(order)
        firsts = order[:1]
        for name in self._claims:
            firsts.append((self._claims[name][1], name))
            break
        return min(firsts, default=None)

    def _forget(self, now: int) -> None:
        while self._late:
            name, until = next(iter(self._late.items()))
            if until > now:
                return
            del self._late[name], self._records[name]


class Refunds:
    """The recent refunds of each bucket, so that overlapping charges do not refund the same units twice.

    A charge's `reset` includes everything that was in the bucket before, including earlier charges. When an earlier
    charge is refunded, the `reset` of each later one is too long by that amount. Twin of redis/adjust.lua.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: OrderedDict[tuple[str, str], tuple[int, list[tuple[int, int]]]] = OrderedDict()

    def add(self, charge: Charge, now: int) -> int:
        """Record a refund. Return the corrected reset to refund with."""
        check, charged_at, reset = charge
        quota = check.quota
        if quota.algorithm not in BUCKETS:
            return reset
        known = self._known
        key = (check.key_template, check.subject)
        refill = _time(quota.burst, quota)
        refunds = [refund for refund in known.pop(key, (0, []))[1] if refund[0] > now - refill]
        refunded = min(MAX_INT, sum(units for time, units in refunds if time >= charged_at))
        refunds.append((now, check.cost))
        if len(refunds) > MAX_REFUNDS:
            (_, first), (time, second) = refunds[:2]
            refunds[:2] = [(time, min(MAX_INT, first + second))]
        known[key] = (now + refill, refunds)
        for other in list(zip(range(2), known, strict=False)):  # two per call: more than are added
            if known[other[1]][0] <= now:
                del known[other[1]]
        if len(known) > self._size:
            known.popitem(last=False)
        return max(0, reset - _time(refunded, quota))

    def clear(self) -> None:
        self._known.clear()


def _time(units: int, quota: Quota) -> int:
    """Return the time in which a bucket refills this many units, rounded up."""
    return -(units * quota.window_us // -quota.limit)


class RememberedAnswer(NamedTuple):
    """The stored answer to an idempotency key."""

    at_us: int
    allowed: bool
    outcomes: tuple[Outcome, ...]  # empty if the client was blocked before
    block: Block | None

    def decision(self, reading: Reading, subjects: tuple[str, ...], costs: tuple[int, ...]) -> Decision:
        decision = Decision.of(
            self.allowed, self.at_us, reading.plan, self.outcomes, costs=costs, subjects=subjects, states=reading.states
        )
        if self.block is not None:
            decision.block = self.block
        return decision


class RememberedAnswers:
    """Answers by idempotency key, until they are too old. At most `size` of them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: OrderedDict[str, tuple[str, RememberedAnswer]] = OrderedDict()  # with the request's fingerprint

    def find(self, idempotency: Idempotency, now: int) -> RememberedAnswer | None:
        """Return the answer to a key, if there is one. Raises `IdempotencyConflict`."""
        self._forget(now)
        fingerprint, answer = self._known.get(idempotency.name, ("", None))
        if answer is None or now - answer.at_us >= IDEMPOTENCY_US:
            return None
        if fingerprint != idempotency.fingerprint:
            raise IdempotencyConflict.of(idempotency.key)
        return answer

    def put(self, idempotency: Idempotency, answer: RememberedAnswer) -> None:
        self._known[idempotency.name] = (idempotency.fingerprint, answer)
        self._known.move_to_end(idempotency.name)

    def clear(self) -> None:
        self._known.clear()

    def _forget(self, now: int) -> None:
        known = self._known
        while known:
            name, (_, oldest) = next(iter(known.items()))
            if now - oldest.at_us < IDEMPOTENCY_US and len(known) < self._size:
                break
            del known[name]


class Ledger:
    """Pages by name, until they expire. Writing a page also drops expired ones. Twin of redis/ledger.lua."""

    def __init__(self) -> None:
        self._pages: dict[str, tuple[str, int]] = {}

    def read(self, names: Sequence[str], now_us: int) -> list[LedgerPage]:
        return [LedgerPage(now_us, self._text(name, now_us)) for name in names]

    def swap(self, swaps: Sequence[Swap], now_us: int) -> list[bool]:
        written = []
        for swap in swaps:
            same = self._text(swap.name, now_us) == swap.before
            if same:
                self._pages.pop(swap.name, None)
                self._pages[swap.name] = (swap.after, now_us + swap.ttl_us)
                self._forget(now_us)
            written.append(same)
        return written

    def clear(self) -> None:
        self._pages.clear()

    def _text(self, name: str, now_us: int) -> str | None:
        text, until_us = self._pages.get(name, (None, 0))
        return text if until_us > now_us else None

    def _forget(self, now_us: int) -> None:
        for name, (_, until_us) in list(zip(self._pages, self._pages.values(), strict=True))[:2]:
            if until_us <= now_us:
                del self._pages[name]
