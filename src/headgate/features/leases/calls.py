"""Calls from leases to the store: groups, their parts, and slices."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue
from secrets import token_urlsafe
from typing import NamedTuple

from headgate.core.check import Answer, Check, Group, Idempotency, Outcome
from headgate.errors import StoreError, StoreUnavailable
from headgate.features.leases.lease import Lease, Taken


class Decided(NamedTuple):
    """The answers to several groups, in order, and whether the store was called and answered."""

    answers: list[Answer]
    answered: bool

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> Decided:
        """Wrap the answers of a store. If a store has several servers, some answers may be errors."""
        return cls(list(answers), not any(isinstance(answer, StoreError) for answer in answers))


class LeasedCheck(NamedTuple):
    """A check of a leased rule: the tokens taken from its lease, and the part of its cost that they do not pay."""

    lease: Lease
    taken: Taken
    unpaid: int

    @classmethod
    def take(cls, lease: Lease, cost: int, at_us: int) -> LeasedCheck:
        """Take as much of a cost from its lease as there is."""
        taken = lease.take(cost, at_us)
        return cls(lease, taken, cost - sum(count for _, count in taken))


class LeasedGroup(NamedTuple):
    """A group in progress: the part sent to the store, if any, and the leased part of each check; None: not leased."""

    group: Group
    sent: Group | None
    parts: list[LeasedCheck | None]


class Locked:
    """Holds a lock, which is a queue with one token."""

    __slots__ = ("_lock",)

    def __init__(self, lock: SimpleQueue[None]) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.get()

    def __exit__(self, *_: object) -> None:
        self._lock.put(None)


class Fetch(NamedTuple):
    """A slice to fetch from the store. The store charges each key once, however often the call is repeated."""

    lease: Lease
    size: int
    key: str
    sent_us: int = 0  # time of the first call to the store, on the local clock; 0: none yet
    is_repeated: bool = False  # the answer to an earlier call was lost

    @classmethod
    def of(cls, lease: Lease, size: int) -> Fetch:
        """Return a new slice to fetch."""
        return cls(lease, size, token_urlsafe(12))

    @property
    def group(self) -> Group:
        """The check that charges it."""
        idempotency = Idempotency(self.key, "slice", "lease", is_receipt=True)
        return Group((self.lease.check._replace(cost=self.size),), idempotency=idempotency)


def may_have_done(error: BaseException | None) -> bool:
    """Return whether the store may have executed the call."""
    return not isinstance(error, StoreUnavailable) or error.sent


def add_held(check: Check, part: LeasedCheck | None, outcome: Outcome) -> Outcome:
    """Add the tokens that are held here to the outcome of a peek."""
    if part is None:
        return outcome
    held = part.lease.held
    remaining = min(outcome.remaining + held, check.quota.capacity)
    return Outcome(0 if held >= check.cost else outcome.wait_us, remaining, outcome.reset_us)
