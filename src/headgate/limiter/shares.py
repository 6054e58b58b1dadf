"""Shares for failure mode `local`: this node's share of a limit, and what it spent during an outage of the store.

No I/O: `headgate.limiter.heartbeat` does it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from secrets import token_hex
from threading import Lock
from typing import Final, NamedTuple

from headgate.core.check import Check, Group, Outcome, Result
from headgate.core.fork import renew_in_children
from headgate.core.quota import CONCURRENCY, Quota
from headgate.core.share import ALONE, Standing, share
from headgate.stores.memory import MemoryStore

BEAT_SECONDS: Final = 2.0  # between two heartbeats
LIVES_SECONDS: Final = 10.0  # how long after its last heartbeat a node counts as alive
OWED: Final = 16_384  # keys whose spending is remembered

Key = tuple[str, str]  # key template and subject


class _Spent(NamedTuple):
    check: Check  # with the whole quota; its cost is all that was spent
    part: Quota  # the share by which it was counted here


class LocalShares:
    """The shares of one limiter. `merges`: whether the store is later charged for what was spent here."""

    def __init__(self, *, merges: bool = False) -> None:
        self.merges = merges
        self.standing = ALONE
        self._fewer_since: float | None = None  # seconds; since when the store has counted fewer nodes than `standing`
        self._id = token_hex(8)
        self._spent: dict[Key, _Spent] = {}
        self._lock = Lock()
        renew_in_children(self)

    def reset_after_fork(self) -> None:
        """Reset in a forked child: the parent reports its own spending."""
        self._lock, self._spent = Lock(), {}

    @property
    def node(self) -> str:
        """The id of this node. A forked process is another node."""
        return f"{self._id}-{os.getpid()}"

    def set_standing(self, standing: Standing, now: float) -> None:
        """Record the store's count of nodes, at a time in seconds.

        A higher count applies at once. A lower one applies only after `LIVES_SECONDS`, in which missing nodes can send
        their heartbeats: a store that comes back may have lost all of them.
        """
        if standing.nodes < self.standing.nodes:
            if self._fewer_since is None:
                self._fewer_since = now
            if now - self._fewer_since < LIVES_SECONDS:
                return
        self._fewer_since = None
        self.standing = standing

    def of(self, quota: Quota) -> Quota | None:
        """Return this node's share of a quota; None if there is nothing for it."""
        return share(quota, self.standing)

    def spent(self, checks: Sequence[Check], parts: Sequence[Check], outcomes: Sequence[Outcome]) -> None:
        """Record an admitted request: `checks` have the whole quotas, `parts` this node's shares of them."""
        with self._lock:
            for check, part, outcome in zip(checks, parts, outcomes, strict=True):
                if check.quota.algorithm == CONCURRENCY:
                    continue  # a slot held in this process is released in this process
                if outcome.wait_us == 0 and check.cost:  # a shadow that did not fit was not charged
                    self._owe(check, part.quota)

    def take_owed(self, local: MemoryStore) -> list[Check]:
        """Return, once, the checks that charge the store for what was spent here: one check per key.

        Each costs what `local` still counts: units that left the window, or leaked out of the bucket, no longer matter.
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

    def keep_owed(self, checks: Sequence[Check]) -> None:
        """Keep checks from `take_owed` that could not be charged yet."""
        with self._lock:
            for check in checks:
                self._owe(check, self.of(check.quota) or check.quota)

    def forget(self, checks: Sequence[Check]) -> None:
        """Drop what was spent on these checks: the store has reset them."""
        with self._lock:
            for check in checks:
                self._spent.pop((check.key_template, check.subject), None)

    def forget_all(self) -> None:
        """Drop everything that was spent: the store was cleared."""
        with self._lock:
            self._spent.clear()

    def _owe(self, check: Check, part: Quota) -> None:
        key = (check.key_template, check.subject)
        known = self._spent.get(key)
        if known is not None:
            check = check._replace(cost=check.cost + known.check.cost)
        elif len(self._spent) >= OWED:
            return
        self._spent[key] = _Spent(check, part)
