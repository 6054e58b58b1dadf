"""The memory store: exact within one process, thread-safe, bounded, and without a background thread.

Each space has a table from subject to state. A ring of all subjects is swept a little with every new key: what
no longer matters is dropped. When `max_keys` is reached, a new key takes the place of the least used of a few
that the sweep meets; never of one that is limiting its subject right now, so that a flood of new keys cannot
free anybody. If there is no other, the store is full and says so.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from time import time_ns
from typing import Any, Final

from headgate.algorithms import ALGORITHMS
from headgate.core.check import IDEMPOTENCY_US, Charge, Check, Group, Outcome, Result
from headgate.core.clock import Clock
from headgate.core.decision import Decision
from headgate.core.quota import Quota
from headgate.errors import IdempotencyConflict, StoreFull
from headgate.stores.protocol import AsyncSingle, Single

SWEEP: Final = 2  # keys looked at for each new one: faster than they come
SAMPLE: Final = 8  # keys among which the least used is forgotten
SEARCH: Final = 64  # keys looked at, at most, for one that may be forgotten


class _Table:
    """The states of one space."""

    __slots__ = ("algorithm", "cost", "hand", "quota", "ring", "states")

    def __init__(self, quota: Quota) -> None:
        self.algorithm = ALGORITHMS[quota.algorithm]
        self.quota = quota  # the one last asked with
        self.cost = 1  # the largest asked with
        self.states: dict[str, Any] = {}  # None: a place that is taken, with nothing in it
        self.ring: list[str] = []
        self.hand = 0  # where in the ring the sweep is

    def forget(self, at: int) -> None:
        """Drop the subject at this place of the ring; the last one moves there."""
        del self.states[self.ring[at]]
        last = self.ring.pop()
        if at < len(self.ring):
            self.ring[at] = last

    def clear(self) -> None:
        self.states.clear()
        self.ring.clear()
        self.hand = 0


class MemoryStore:
    """Keeps state in this process. `max_keys` bounds it: a gcra key takes some 200 bytes."""

    def __init__(self, *, max_keys: int = 1_000_000, clock: Clock | None = None) -> None:
        if max_keys < 1:
            raise ValueError(f"max_keys: must be at least 1, got {max_keys!r}")
        self._max_keys = max_keys
        self._clock = clock
        self._lock = Lock()
        self._tables: dict[str, _Table] = {}
        self._swept: list[_Table] = []  # the tables in the order of the sweep, and whose turn it is
        self._turn = 0
        self._keys = 0
        self._answers: OrderedDict[str, tuple[str, Result]] = OrderedDict()  # by idempotency key

    def __len__(self) -> int:
        """How many keys are held, expired ones that no sweep has met yet among them."""
        return self._keys

    def single(self, template: Check) -> Single:
        """The short way: it works out no figures, but hands out what they can be worked out from."""
        with self._lock:
            table = self._table(template.space, template.quota)
        quota, templates = template.quota, (template,)
        admit, figures = table.algorithm.admit, table.algorithm.figures
        states, make_room = table.states, self._make_room
        acquire, release = self._lock.acquire, self._lock.release
        now_us = None if self._clock is None else self._clock.now_us

        def check(subject: str, cost: int) -> Decision:
            now = time_ns() // 1_000 if now_us is None else now_us()
            acquire()  # with try and finally: in this path, a with statement is a tenth of the time
            try:
                state = states.get(subject)
                wait, kept = admit(state, now, quota, cost)
                if kept is not state:
                    if state is None and subject not in states:
                        make_room(table, subject, cost, now)
                    states[subject] = kept
            finally:
                release()
            return Decision(wait == 0, now, templates, (wait, kept, figures), cost)

        return check

    def check(self, groups: Sequence[Group]) -> list[Result | IdempotencyConflict]:
        now = time_ns() // 1_000 if self._clock is None else self._clock.now_us()
        with self._lock:
            return [
                self._decide(group, now) if group.idempotency is None or group.peek else self._decide_once(group, now)
                for group in groups
            ]

    def refund(self, charges: Sequence[Charge]) -> None:
        now = time_ns() // 1_000 if self._clock is None else self._clock.now_us()
        with self._lock:
            for check, charged_at, reset in charges:
                table = self._tables.get(check.space)
                if table is not None and check.subject in table.states:
                    state = table.states[check.subject]
                    table.states[check.subject] = table.algorithm.refund(
                        state, now, check.quota, check.cost, charged_at, reset
                    )

    def reset(self, checks: Sequence[Check]) -> None:
        with self._lock:
            for check in checks:
                table = self._tables.get(check.space)
                if table is not None and check.subject in table.states:
                    table.states[check.subject] = None

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            for table in self._swept:
                table.clear()
            self._answers.clear()
            self._keys = 0

    def close(self) -> None:
        self.clear()

    def _table(self, space: str, quota: Quota) -> _Table:
        table = self._tables.get(space)
        if table is None:
            table = self._tables[space] = _Table(quota)
            self._swept.append(table)
        table.quota = quota
        return table

    def _decide(self, group: Group, now: int) -> Result:
        asked = []
        refused = False
        for check in group.checks:
            table = self._table(check.space, check.quota)
            before = table.states.get(check.subject)
            wait, state = table.algorithm.admit(before, now, check.quota, check.cost)
            if wait and check.enforced:
                refused = True
            asked.append((check, table, before, wait, state))
        outcomes, kept = [], []
        for check, table, before, wait, state in asked:
            if group.peek or (refused and wait == 0):
                state = before  # noqa: PLW2901 - nobody is charged
            outcomes.append(Outcome(wait, *table.algorithm.figures(state, now, check.quota)))
            if state is not before:
                kept.append((check, table, state))
        for check, table, _ in kept:  # before anything is charged: there may be no room
            if check.subject not in table.states:
                self._make_room(table, check.subject, check.cost, now)
        for check, table, state in kept:
            table.states[check.subject] = state
        return Result(now, tuple(outcomes))

    def _decide_once(self, group: Group, now: int) -> Result | IdempotencyConflict:
        assert group.idempotency is not None
        key, fingerprint = group.idempotency
        answers = self._answers
        while answers:
            oldest = next(iter(answers))
            if now - answers[oldest][1].now_us < IDEMPOTENCY_US and len(answers) < self._max_keys:
                break
            del answers[oldest]
        known = answers.get(key)
        if known is None:
            result = self._decide(group, now)
            answers[key] = (fingerprint, result)
            return result
        return known[1] if known[0] == fingerprint else IdempotencyConflict.of(key)

    def _make_room(self, table: _Table, subject: str, cost: int, now: int) -> None:
        """Take a place for a new subject. Raises `StoreFull`, having changed nothing that matters."""
        for _ in range(SWEEP):
            self._sweep(now)
        if self._keys >= self._max_keys:
            self._evict(now)
        table.cost = max(table.cost, cost)
        table.states[subject] = None
        table.ring.append(subject)
        self._keys += 1

    def _sweep(self, now: int) -> tuple[_Table, int, float] | None:
        """Look at one key. If it is moot, drop it; else, if it may be forgotten, return where it is and its use."""
        table = self._swept[self._turn]
        at = table.hand
        if at >= len(table.ring):
            table.hand = 0
            self._turn = (self._turn + 1) % len(self._swept)
            return None
        remaining, reset = table.algorithm.figures(table.states[table.ring[at]], now, table.quota)
        if reset == 0:
            table.forget(at)
            self._keys -= 1
            return None
        table.hand = at + 1
        return None if remaining < table.cost else (table, at, 1 - remaining / table.quota.capacity)

    def _evict(self, now: int) -> None:
        """Make `_keys` one less, or raise `StoreFull`."""
        candidates: list[tuple[_Table, int, float]] = []
        for _ in range(SEARCH + len(self._swept)):
            candidate = self._sweep(now)
            if self._keys < self._max_keys:
                return
            if candidate is not None:
                candidates.append(candidate)
                if len(candidates) == SAMPLE:
                    break
        if not candidates:
            raise StoreFull(
                f"all of the memory store's {self._max_keys} keys that were looked at are limiting somebody; "
                "raise max_keys"
            )
        table, at, _ = min(candidates, key=lambda candidate: candidate[2])
        table.forget(at)
        self._keys -= 1


class AsyncMemoryStore:
    """The memory store, awaited. It never waits for anything: a decision takes microseconds."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def check(self, groups: Sequence[Group]) -> list[Result | IdempotencyConflict]:
        return self._store.check(groups)

    def single(self, template: Check) -> AsyncSingle:
        single = self._store.single(template)

        async def check(subject: str, cost: int) -> Decision:
            return single(subject, cost)

        return check

    async def refund(self, charges: Sequence[Charge]) -> None:
        self._store.refund(charges)

    async def reset(self, checks: Sequence[Check]) -> None:
        self._store.reset(checks)

    async def close(self) -> None:
        self._store.close()
