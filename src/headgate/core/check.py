"""Checks: the requests that a store decides, and its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Self, TypeGuard

from headgate.core.cost import REQUESTS
from headgate.core.key import joined, key
from headgate.core.quota import MAX_REFILL_US, Quota
from headgate.errors import IdempotencyConflict, StoreError

NEVER: Final = -1  # a wait that no waiting ends: the cost is larger than the quota can ever hold


class Refusal(NamedTuple):
    """The fields of a rule that a decision shows. Stores do not read them."""

    status: int = 429  # of HTTP
    message: str = ""  # empty: the HTTP and gRPC layers write their own
    max_delay_us: int = 0  # how long the request may be held back and tried again, instead of being refused
    unit: str = REQUESTS  # what the quota counts
    annotates: bool = False  # of a limit that is not enforced: whether the decision shows that it is used up


REFUSAL: Final = Refusal()


class Check(NamedTuple):
    """One rule to check for one subject."""

    rule: str
    space: str  # headgate.core.key: all of the key but the subject
    subject: str
    quota: Quota
    cost: int = 1  # 0 looks and charges nothing
    enforced: bool = True  # False: a shadow; evaluated and counted, but never refuses
    refusal: Refusal = REFUSAL
    leased: bool = False  # nodes hold slices of it, and give them back all the time: a refusal is soon out of date
    reservation: int = 0  # the mark of the reservation that it is part of, by which its bucket knows it; 0: none
    slot: str = ""  # the id of the slot that it takes, where the quota is of concurrency

    @property
    def key(self) -> str:
        """The text of the key, as Redis sees it behind the store's prefix."""
        return key(self.space, self.subject)


class Idempotency(NamedTuple):
    """Makes a group safe to send twice: the first answer to `key` is kept and given again for five minutes.

    `fingerprint` is a hash of the request: the same key with another fingerprint is a conflict. A `scope` has keys of
    its own.
    """

    key: str
    fingerprint: str
    scope: str = ""
    is_receipt: bool = False  # of a reservation: on a cluster, each slot keeps its own part of the answer
    tag: str = ""  # the hash tag of the slot that keeps it; empty: the name's own

    @property
    def name(self) -> str:
        """The key in its scope."""
        return joined((self.scope, self.key))


IDEMPOTENCY_US: Final = 300_000_000


class Client(NamedTuple):
    """The client that a penalty applies to: the fact that identifies it (`user`, `ip` …), and its value."""

    fact: str
    name: str


MAX_VIOLATIONS: Final = 1_000  # remembered of one client
MAX_BLOCK_US: Final = MAX_REFILL_US


class Terms(NamedTuple):
    """When clients are blocked, and for how long.

    A refusal by an enforced check is a violation. From the `threshold`-th within `detection_us` on, each one blocks
    the client for the window of the binding check times the next of `multipliers`, the last of which repeats.
    """

    detection_us: int
    threshold: int  # from 1 to MAX_VIOLATIONS
    multipliers: tuple[int, ...]

    def block_us(self, violations: int, window_us: int) -> int:
        """How long a client is blocked at this many violations; 0 when it is not."""
        step = violations - self.threshold
        if step < 0:
            return 0
        return min(window_us * self.multipliers[min(step, len(self.multipliers) - 1)], MAX_BLOCK_US)


class Penalty(NamedTuple):
    """Has a group's refusal count against its client, and refuses the group while that client is blocked."""

    client: Client
    terms: Terms


class Extras(NamedTuple):
    """Optional parts of a request besides its limits."""

    idempotency: Idempotency | None = None
    penalty: Penalty | None = None
    reservation: int = 0  # the mark of a reservation: see `Check`
    slot: str = ""  # the id of the slot to take, where limits are of concurrency


class Group(NamedTuple):
    """The checks of one request, decided together: all of them are charged, or none is.

    Their keys differ from one another. A `peek` answers the same and charges nothing. With a `penalty`, looking at
    the client's block, recording a violation and beginning a block are part of the same atomic step.
    """

    checks: tuple[Check, ...]
    peek: bool = False
    idempotency: Idempotency | None = None
    penalty: Penalty | None = None


class Outcome(NamedTuple):
    """The answer to one check, after the charge if there was one. All times are microseconds from now."""

    wait_us: int  # 0: it fits now; NEVER: it never will; else the time until it would
    remaining: int  # what still fits
    reset_us: int  # the time until the whole quota is available again


class OutcomeAt(Outcome):
    """The answer to a check that was decided at a time of its own, by a server whose clock is not the others'."""

    at_us: int

    @classmethod
    def of(cls, outcome: Outcome, at_us: int) -> OutcomeAt:
        timed = cls(*outcome)
        timed.at_us = at_us
        return timed


class Block(NamedTuple):
    """A client is refused everything for a while."""

    left_us: int  # until it ends; always above 0
    rule: str  # whose refusal began it


class Result(NamedTuple):
    """The answer to one group: an outcome per check, in order, and the store's time at which it was decided.

    `block` is there when the group's client is blocked. If it was blocked before, the checks were not looked at,
    and there are no outcomes; if there are, this group's refusal began the block.
    """

    now_us: int
    outcomes: tuple[Outcome, ...]
    block: Block | None = None


class SharedResult(Result):
    """An answer by other quotas than those of the checks: this region's shares of them."""

    quotas: tuple[Quota | None, ...] = ()  # by check; None: its own

    @classmethod
    def of(cls, result: Result, quotas: tuple[Quota | None, ...]) -> Self:
        shared = cls(*result)
        shared.quotas = quotas
        return shared

    def applied_to(self, checks: tuple[Check, ...]) -> tuple[Check, ...]:
        """The checks that this is the answer to."""
        quotas = self.quotas or (None,) * len(checks)
        return tuple(
            check if quota is None else check._replace(quota=quota) for check, quota in zip(checks, quotas, strict=True)
        )


class RepeatedResult(SharedResult):
    """The first answer to an idempotency key, given again: the repetition itself charged nothing."""


Answer = Result | IdempotencyConflict | StoreError  # to a group


def are_faults(answers: Sequence[Answer]) -> TypeGuard[Sequence[StoreError]]:
    """Whether these are nothing but faults."""
    return bool(answers) and all(isinstance(answer, StoreError) for answer in answers)


def answered(answers: list[Answer]) -> list[Answer]:
    """The answers to several groups. Raises the first fault when there is nothing but faults."""
    if are_faults(answers):
        raise answers[0]
    return answers


def binding(checks: tuple[Check, ...], outcomes: tuple[Outcome, ...]) -> Check | None:
    """The enforced check that makes a request wait longest: that of the `Decision`. None when none does.

    A check of cost 0 only looked, and is passed over.
    """
    found: tuple[float, int, int] | None = None
    binds = None
    for check, (wait_us, remaining, reset_us) in zip(checks, outcomes, strict=True):
        if wait_us and check.enforced and check.cost:
            rank = (float("inf") if wait_us == NEVER else wait_us, -remaining, reset_us)
            if found is None or rank > found:
                found, binds = rank, check
    return binds


class Charge(NamedTuple):
    """A check that was charged at `at_us`, to be undone. `reset_us` is what its outcome said then.

    Without it, the bucket is taken to have been empty before the charge: right for a refund at once, and else too
    little rather than too much.
    """

    check: Check
    at_us: int
    reset_us: int = 0


class OutcomeOf(Outcome):
    """The answer to a check whose state is in several places: what was charged in which of them."""

    charges: tuple[Charge, ...] = ()

    @classmethod
    def of(cls, outcome: Outcome, charges: tuple[Charge, ...]) -> OutcomeOf:
        whole = cls(*outcome)
        whole.charges = charges
        return whole
