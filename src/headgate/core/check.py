"""Checks: the questions that a store decides, and its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Self, TypeGuard

from headgate.core.cost import REQUESTS
from headgate.core.key import join_facts, key
from headgate.core.quota import MAX_REFILL_US, Quota
from headgate.errors import IdempotencyConflict, StoreError

NEVER: Final = -1  # the cost exceeds what the quota can ever hold, so waiting does not help

NOT_WAITING: Final = -1  # the request does not wait for a slot
TICKET_US: Final = 1_000_000  # how long a waiting request keeps its place in the queue unless it asks again


class Refusal(NamedTuple):
    """The fields of a rule that a decision shows. Stores do not read them."""

    status: int = 429  # HTTP status of a refusal
    message: str = ""  # empty: the HTTP and gRPC layers write their own
    max_delay_us: int = 0  # how long the request may be delayed and retried instead of refused
    unit: str = REQUESTS  # what the quota counts
    annotates: bool = False  # for a shadow limit: the decision shows that it is used up


REFUSAL: Final = Refusal()


class Check(NamedTuple):
    """One rule to check for one subject."""

    rule: str
    key_template: str  # the key with a placeholder for the subject: see headgate.core.key
    subject: str
    quota: Quota
    cost: int = 1  # 0 reads the state without charging it
    enforced: bool = True  # False: a shadow, which is evaluated and counted but never refuses
    refusal: Refusal = REFUSAL
    leased: bool = False  # nodes hold slices of it and return them often, so a refusal is soon out of date
    reservation: int = 0  # the number by which a bucket tracks this reservation; 0: none
    slot: str = ""  # for a concurrency quota: the id of the slot to take
    arrived_us: int = (
        NOT_WAITING  # if the request waits for the slot: when it first asked, by the store; 0: it asks now
    )

    @property
    def key(self) -> str:
        """The key as Redis stores it, without the store's prefix."""
        return key(self.key_template, self.subject)


class Idempotency(NamedTuple):
    """An idempotency key: makes a group safe to send twice. The store replays the first answer for five minutes.

    `fingerprint` is a hash of the request: reusing a key with another fingerprint is a conflict. Each `scope` has its
    own keys.
    """

    key: str
    fingerprint: str
    scope: str = ""
    is_receipt: bool = False  # for a reservation: on a cluster, each slot keeps its own part of the answer
    tag: str = ""  # the hash tag of the cluster slot that keeps it; empty: the hash tag of the name

    @property
    def name(self) -> str:
        """The key, qualified by its scope."""
        return join_facts((self.scope, self.key))


IDEMPOTENCY_US: Final = 300_000_000


class Client(NamedTuple):
    """The client that a penalty applies to: the fact that identifies it (`user`, `ip` …), and its value."""

    fact: str
    name: str


MAX_VIOLATIONS: Final = 1_000  # remembered per client
MAX_BLOCK_US: Final = MAX_REFILL_US


class Terms(NamedTuple):
    """The terms of penalties: when a client is blocked, and for how long.

    A refusal by an enforced check is a violation. From the `threshold`-th violation within `detection_us` on, each one
    blocks the client for the binding check's window times the next of `multipliers`. The last multiplier repeats.
    """

    detection_us: int
    threshold: int  # from 1 to MAX_VIOLATIONS
    multipliers: tuple[int, ...]

    def block_us(self, violations: int, window_us: int) -> int:
        """Return how long this many violations block a client; 0 if they do not."""
        step = violations - self.threshold
        if step < 0:
            return 0
        return min(window_us * self.multipliers[min(step, len(self.multipliers) - 1)], MAX_BLOCK_US)


class Penalty(NamedTuple):
    """A penalty on refusals: counts a group's refusal against its client, and refuses the group while it is blocked."""

    client: Client
    terms: Terms


class Extras(NamedTuple):
    """Optional parts of a request besides its limits."""

    idempotency: Idempotency | None = None
    penalty: Penalty | None = None
    reservation: int = 0  # the number of a reservation: see `Check`
    slot: str = ""  # for concurrency limits: the id of the slot to take
    arrived_us: int = NOT_WAITING  # when the request began to wait for the slot: see `Check`


class Group(NamedTuple):
    """The checks of one request, decided together: the store charges all of them or none.

    Each check has a different key. A `peek` gets the same answer but charges nothing. With a `penalty`, the store also
    reads the client's block, records a violation and starts a block in the same atomic step.
    """

    checks: tuple[Check, ...]
    peek: bool = False
    idempotency: Idempotency | None = None
    penalty: Penalty | None = None


class Outcome(NamedTuple):
    """The answer to one check, after any charge. All times are microseconds from now."""

    wait_us: int  # 0: it fits now; NEVER: it never fits; else the time until it fits
    remaining: int  # how much still fits
    reset_us: int  # the time until the whole quota is available again


class OutcomeAt(Outcome):
    """An outcome with its own time, from a server whose clock differs from the other servers'."""

    at_us: int

    @classmethod
    def of(cls, outcome: Outcome, at_us: int) -> OutcomeAt:
        timed = cls(*outcome)
        timed.at_us = at_us
        return timed


class Block(NamedTuple):
    """A block: every request of a client is refused until it ends."""

    left_us: int  # time until it ends; always above 0
    rule: str  # the rule whose refusal started the block


class Result(NamedTuple):
    """The answer to one group: one outcome per check, in order, and the store's time of the decision.

    `block` is set when the group's client is blocked. If it was blocked before, the checks were not evaluated and there
    are no outcomes. If there are outcomes, this group's refusal started the block.
    """

    now_us: int
    outcomes: tuple[Outcome, ...]
    block: Block | None = None


class SharedResult(Result):
    """An answer for other quotas than those of the checks: this region's shares of them."""

    quotas: tuple[Quota | None, ...] = ()  # by check; None: the check's own quota

    @classmethod
    def of(cls, result: Result, quotas: tuple[Quota | None, ...]) -> Self:
        shared = cls(*result)
        shared.quotas = quotas
        return shared

    def applied_to(self, checks: tuple[Check, ...]) -> tuple[Check, ...]:
        """Return the checks with the quotas that this result is based on."""
        quotas = self.quotas or (None,) * len(checks)
        return tuple(
            check if quota is None else check._replace(quota=quota) for check, quota in zip(checks, quotas, strict=True)
        )


class RepeatedResult(SharedResult):
    """The first answer to an idempotency key, replayed. The repetition itself charged nothing."""


Answer = Result | IdempotencyConflict | StoreError  # the answer to a group


def are_faults(answers: Sequence[Answer]) -> TypeGuard[Sequence[StoreError]]:
    """Return whether every answer is a fault. False if there are none."""
    return bool(answers) and all(isinstance(answer, StoreError) for answer in answers)


def require_any_answer(answers: list[Answer]) -> list[Answer]:
    """Return the answers to several groups. Raises the first fault if all of them are faults."""
    if are_faults(answers):
        raise answers[0]
    return answers


def binding(checks: tuple[Check, ...], outcomes: tuple[Outcome, ...]) -> Check | None:
    """Return the enforced check with the longest wait, which binds the `Decision`. None if no check waits.

    Checks of cost 0 are ignored: they only read the state.
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
    """A check that was charged at `at_us`, to be undone. `reset_us` is the reset time that its outcome reported.

    Without `reset_us`, the refund assumes that the bucket was empty before the charge. This is exact for an immediate
    refund; later, it returns too little rather than too much.
    """

    check: Check
    at_us: int
    reset_us: int = 0


class OutcomeOf(Outcome):
    """The answer to a check whose state is in several places, with the charge made to each of them."""

    charges: tuple[Charge, ...] = ()

    @classmethod
    def of(cls, outcome: Outcome, charges: tuple[Charge, ...]) -> OutcomeOf:
        whole = cls(*outcome)
        whole.charges = charges
        return whole
