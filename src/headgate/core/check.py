"""What a store is asked, and what it answers."""

from __future__ import annotations

from typing import Final, NamedTuple

from headgate.core.key import key
from headgate.core.quota import Quota

NEVER: Final = -1  # a wait that no waiting ends: the cost is larger than the quota can ever hold


class Refusal(NamedTuple):
    """What a client that this rule refuses is told. Stores have no use for it: it is there for the decision."""

    status: int = 429  # of HTTP
    message: str = ""  # empty: whoever answers has one
    max_delay_us: int = 0  # how long the request may be held back and tried again, instead of being refused


REFUSAL: Final = Refusal()


class Check(NamedTuple):
    """One rule asked for one subject."""

    rule: str
    space: str  # headgate.core.key: all of the key but the subject
    subject: str
    quota: Quota
    cost: int = 1  # 0 looks and charges nothing
    enforced: bool = True  # False: a shadow; evaluated and counted, but never refuses
    refusal: Refusal = REFUSAL

    @property
    def key(self) -> str:
        """The text of the key, as Redis sees it."""
        return key(self.space, self.subject)


class Idempotency(NamedTuple):
    """Makes a group safe to send twice: the first answer to `key` is kept and given again for five minutes.

    `fingerprint` stands for what was asked: the same key with another fingerprint is a conflict.
    """

    key: str
    fingerprint: str


IDEMPOTENCY_US: Final = 300_000_000


class Group(NamedTuple):
    """The checks of one request, decided together: all of them are charged, or none is.

    Their keys differ from one another. A `peek` answers the same and charges nothing.
    """

    checks: tuple[Check, ...]
    peek: bool = False
    idempotency: Idempotency | None = None


class Outcome(NamedTuple):
    """The answer to one check, after the charge if there was one. All times are microseconds from now."""

    wait_us: int  # 0: it fits now; NEVER: it never will; else the time until it would
    remaining: int  # what still fits
    reset_us: int  # the time until the whole quota is available again


class Result(NamedTuple):
    """The answer to one group: an outcome per check, in order, and the store's time at which it was decided."""

    now_us: int
    outcomes: tuple[Outcome, ...]


class Charge(NamedTuple):
    """A check that was charged at `at_us`, to be undone. `reset_us` is what its outcome said then.

    Without it, the bucket is taken to have been empty before the charge: right for a refund at once, and else too
    little rather than too much.
    """

    check: Check
    at_us: int
    reset_us: int = 0
