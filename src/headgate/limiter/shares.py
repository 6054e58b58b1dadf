"""What failure mode `local` goes by: this node's share of a limit, and what it spent that the store does not know of.

No I/O: `headgate.limiter.pulse` does it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from secrets import token_hex
from threading import Lock
from typing import Final, NamedTuple

from headgate.core.check import NEVER, Check, Group, Outcome, Result
from headgate.core.fork import renew_in_children
from headgate.core.quota import Quota
from headgate.core.share import ALONE, Standing, share
from headgate.stores.memory import MemoryStore

BEAT_SECONDS: Final = 2.0  # between two beats
LIVES_SECONDS: Final = 10.0  # how long after its last one a node is taken to be alive
OWED: Final = 16_384  # keys of which it is remembered what was spent

Key = tuple[str, str]  # space and subject


class _Spent(NamedTuple):
    check: Check  # by the whole quota; its cost is all that was spent
    part: Quota  # by which it was counted here


class Shares:
    """Of one limiter. `merges`: there is a store to be told what was spent."""

    def __init__(self, *, merges: bool = False) -> None:
        self.merges = merges
        self.standing = ALONE
        self._fewer_since: float | None = None  # seconds; since when fewer nodes are heard of than are gone by
        self._id = token_hex(8)
        self._spent: dict[Key, _Spent] = {}
        self._lock = Lock()
        renew_in_children(self)

    def forked(self) -> None:
        """In a forked child: what was spent is the parent's to tell."""
        self._lock, self._spent = Lock(), {}

    @property
    def node(self) -> str:
        """The id of this node: a forked process is another."""
        return f"{self._id}-{os.getpid()}"

    def told(self, standing: Standing, now: float) -> None:
        """The store has counted the nodes, at a time in seconds.

        More are believed at once, and fewer once those who are missing had time to be heard of: a store that comes
        back may have forgotten everybody.
        """
        if standing.nodes < self.standing.nodes:
            if self._fewer_since is None:
                self._fewer_since = now
            if now - self._fewer_since < LIVES_SECONDS:
                return
        self._fewer_since = None
        self.standing = standing

    def of(self, quota: Quota) -> Quota | None:
        """This node's share of a quota; None when there is nothing for it."""
        return share(quota, self.standing)

    def spent(self, checks: Sequence[Check], parts: Sequence[Check], outcomes: Sequence[Outcome]) -> None:
        """A request was admitted here: `checks` by whole quotas, `parts` the same by this node's share."""
        with self._lock:
            for check, part, outcome in zip(checks, parts, outcomes, strict=True):
                if outcome.wait_us == 0 and check.cost:  # a shadow that did not fit was not charged
                    self._owe(check, part.quota)

    def owed(self, local: MemoryStore) -> list[Check]:
        """What the store is still to be charged, now, for what was spent here; once. One check for each key.

        It is what `local` still counts of that: what has left the window, or leaked out of the bucket, is over.
        """
        with self._lock:
            spent, self._spent = self._spent, {}
        owed = []
        for check, part in spent.values():
            (result,) = local.check([Group((check._replace(quota=part, cost=0),), peek=True)])
            assert isinstance(result, Result)
            cost = min(check.cost, part.capacity - result.outcomes[0].remaining)
            if cost > 0:
                owed.append(check._replace(cost=cost))
        return owed

    def unpaid(self, checks: Sequence[Check]) -> None:
        """These could not be charged yet, of what `owed` has told."""
        with self._lock:
            for check in checks:
                self._owe(check, self.of(check.quota) or check.quota)

    def forget(self, checks: Sequence[Check]) -> None:
        """The store was told to forget these."""
        with self._lock:
            for check in checks:
                self._spent.pop((check.space, check.subject), None)

    def _owe(self, check: Check, part: Quota) -> None:
        key = (check.space, check.subject)
        known = self._spent.get(key)
        if known is not None:
            check = check._replace(cost=check.cost + known.check.cost)
        elif len(self._spent) >= OWED:
            return
        self._spent[key] = _Spent(check, part)


def hopeful(checks: Sequence[Check], outcomes: Sequence[Outcome], retry_us: int) -> tuple[Outcome, ...]:
    """The outcomes by shares: what is too large for a share, but not for the whole, may pass when the store is back."""
    return tuple(
        outcome._replace(wait_us=retry_us)
        if outcome.wait_us == NEVER and check.cost <= check.quota.capacity
        else outcome
        for check, outcome in zip(checks, outcomes, strict=True)
    )
