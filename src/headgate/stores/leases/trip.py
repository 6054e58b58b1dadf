"""What is on its way between leases and store: groups, their parts, and slices."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue
from typing import NamedTuple

from headgate.core.check import Answer, Check, Group, Outcome
from headgate.errors import StoreError, StoreUnavailable
from headgate.stores.leases.lease import Lease, Taken


class Decided(NamedTuple):
    """The answers to several groups, in order; and whether the store was asked, and answered."""

    answers: list[Answer]
    answered: bool

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> Decided:
        """The answers of a store. One with several servers far apart may have an error among them."""
        return cls(list(answers), not any(isinstance(answer, StoreError) for answer in answers))


class Part(NamedTuple):
    """A check of a leased rule: what was taken for it, and what the store is asked for."""

    lease: Lease
    taken: Taken
    asked: int

    @property
    def paid(self) -> bool:
        """Whether what was taken is as much as was asked for."""
        return sum(count for _, count in self.taken) == self.asked


class Trip(NamedTuple):
    """A group on its way: what the store is asked, if it is, and the part of each check; None: it is not leased."""

    group: Group
    sent: Group | None
    parts: list[Part | None]


class Locked:
    """Holds a lock, which is a queue of one token."""

    __slots__ = ("_lock",)

    def __init__(self, lock: SimpleQueue[None]) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.get()

    def __exit__(self, *_: object) -> None:
        self._lock.put(None)


class Fetch(NamedTuple):
    """A slice that the store is asked for."""

    lease: Lease
    size: int

    @property
    def group(self) -> Group:
        return Group((self.lease.check._replace(cost=self.size),))


def may_have_done(error: BaseException | None) -> bool:
    """Whether the store was asked, by all that is known, and may have done what it was asked for."""
    return not isinstance(error, StoreUnavailable) or error.sent


def peeked(check: Check, part: Part | None, outcome: Outcome) -> Outcome:
    """What a peek says, with what is held here."""
    if part is None:
        return outcome
    held = part.lease.held
    remaining = min(outcome.remaining + held, check.quota.capacity)
    return Outcome(0 if held >= check.cost else outcome.wait_us, remaining, outcome.reset_us)
