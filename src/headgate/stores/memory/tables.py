"""Tables: states by key template and subject, at most `max_keys` of them.

Every new key sweeps a few entries of the ring of all subjects, and drops expired keys. When `max_keys` is reached, a
new key replaces an expired one, or the least used of a few that the sweep sees. It never replaces a key that is
limiting its subject right now, so a flood of new keys frees no limited client. If there is no other key, the store is
full and raises `StoreFull`.

Subjects of one table may have different quotas: overrides, anchors, or a rule that was changed. A state does not say
which quota it was charged with. It has expired, or does not limit its subject, only if that is true under each of them.
"""

from __future__ import annotations

from typing import Any, Final

from headgate.algorithms import ALGORITHMS
from headgate.core.quota import BUCKETS, CALENDAR, MAX_INT, Quota
from headgate.errors import StoreFull

NOWHERE: Final = -1  # the sweep's position in a table that has never held a key: the sweep skips it
SWEEP: Final = 2  # keys checked for each new one, so that the sweep is faster than they arrive
SEARCH: Final = 64  # keys checked for an expired one before one that is not expired is evicted
FULL_US: Final = 10_000_000  # how long, at most, a full store waits before it looks again


class Bounds:
    """The few quotas that bound all quotas of a table: `quotas`. The sweep judges states by them.

    To include one more takes the same time for any number.

    Under one of `quotas`, a state expires no earlier than under any quota included, and under one of them it has no
    more remaining.
    """

    __slots__ = ("_by_window", "_largest", "_least", "_lowest", "_strictest", "quotas")

    def __init__(self, quota: Quota) -> None:
        self.quotas: tuple[Quota, ...] = (quota,)
        self._least = self._largest = quota.capacity
        self._lowest = self._strictest = quota  # of buckets: the lowest rate, and the one under which most is used
        self._by_window = {_window_of(quota): quota}

    def include(self, quota: Quota) -> None:
        if quota.algorithm in BUCKETS:
            self._include_bucket(quota)
        else:
            self._include_window(quota)

    def _include_window(self, quota: Quota) -> None:
        """Keep a quota of every window: even a longer one may begin later, and leave out what a shorter one counts."""
        window = _window_of(quota)
        if window in self._by_window and quota.limit >= self._least:
            return
        self._least = min(self._least, quota.limit)
        self._by_window.setdefault(window, quota)
        self.quotas = tuple([one.with_limit(self._least) for one in self._by_window.values()])

    def _include_bucket(self, quota: Quota) -> None:
        """Keep the bucket that takes longest to be full, and the one that has least left."""
        rate, lowest, strictest = _rate_of(quota), self._lowest, self._strictest
        if rate < _rate_of(lowest):
            lowest = quota
        # What a gcra bucket has taken is kept as a time, which stands for more the higher the rate is.
        if rate > _rate_of(strictest) if quota.algorithm == "gcra" else rate < _rate_of(strictest):
            strictest = quota
        least, largest = min(self._least, quota.burst), max(self._largest, quota.burst)
        if (lowest, strictest, least, largest) != (self._lowest, self._strictest, self._least, self._largest):
            self._lowest, self._strictest, self._least, self._largest = lowest, strictest, least, largest
            self.quotas = (strictest.with_rate(strictest.limit, least), lowest.with_rate(lowest.limit, largest))


def _window_of(quota: Quota) -> tuple[int, int]:
    """Return what tells windows apart: the length, and the boundaries of a calendar's periods."""
    return quota.window_us, quota.burst if quota.algorithm == CALENDAR else 0


def _rate_of(quota: Quota) -> float:
    return quota.limit / quota.window_us


class Table:
    """The states of one key template; or the records of clients, whose `algorithm` is the module `penalty`."""

    __slots__ = ("algorithm", "bounds", "cost", "hand", "others", "quota", "ring", "states")

    def __init__(self, quota: Quota, algorithm: Any = None) -> None:
        self.algorithm = algorithm or ALGORITHMS[quota.algorithm]
        self.quota = quota  # the one last used
        self.others: dict[int, tuple[Quota, int]] = {}  # by id: other quotas, and until when their states may matter
        self.bounds = Bounds(quota)  # of the quota last used and of the others
        self.cost = MAX_INT  # the smallest cost used: a subject with less remaining is being limited
        self.states: dict[Any, Any] = {}  # by subject; None: a reserved, empty entry
        self.ring: list[Any] = []
        self.hand = NOWHERE  # the sweep's last position in the ring; it moves downwards

    def use(self, quota: Quota, now: int) -> None:
        """Record that a check uses this quota, and not the one last used."""
        before, self.quota = self.quota, quota
        if quota == before:
            return
        filling_us = before.refill[0] if before.algorithm in BUCKETS else 0
        self.others[id(before)] = (before, now + 2 * before.window_us + filling_us)
        if self.others.pop(id(quota), None) is None:
            self.bounds.include(quota)

    def forget_quotas(self, now: int) -> None:
        """Forget quotas under which no state matters any more."""
        outdated = [name for name, (_, until) in self.others.items() if until <= now]
        for name in outdated:
            del self.others[name]
        if outdated:
            self.bounds = Bounds(self.quota)
            for other, _ in self.others.values():
                self.bounds.include(other)

    def judge(self, state: Any, now: int) -> tuple[int, int]:
        """Return the least that remains of a state under any quota in use, and the latest reset."""
        quotas, figures = self.bounds.quotas, self.algorithm.figures
        remaining, reset = figures(state, now, quotas[0])
        for quota in quotas[1:]:
            less, later = figures(state, now, quota)
            remaining, reset = min(remaining, less), max(reset, later)
        return remaining, reset

    def forget(self, at: int) -> None:
        """Drop the subject at this index of the ring; the last one moves there."""
        del self.states[self.ring[at]]
        last = self.ring.pop()
        if at < len(self.ring):
            self.ring[at] = last

    def clear(self) -> None:
        self.states.clear()
        self.ring.clear()


class Tables:
    """All tables of a memory store, which locks them."""

    def __init__(self, max_keys: int) -> None:
        self.max_keys = max_keys
        self.keys = 0  # including expired ones that no sweep has dropped yet
        self.placed = 0  # keys since the store was created
        self._by_template: dict[str, Table] = {}
        self._swept: list[Table] = []  # the tables in the order of their first keys, and the next one to sweep
        self._next_swept = 0
        self._full_until = 0  # there is no need to look for room before this time

    def get(self, key_template: str) -> Table | None:
        """Return the table of a key template, if it has one."""
        return self._by_template.get(key_template)

    def of(self, key_template: str, quota: Quota) -> Table:
        """Return the table of a key template. A new one begins with this quota."""
        table = self._by_template.get(key_template)
        if table is None:
            table = self._by_template[key_template] = Table(quota)
        return table

    def clear(self) -> None:
        """Delete everything."""
        for table in self._swept:
            table.clear()
        self.keys = self._full_until = 0

    def add(self, table: Table, subject: Any, state: Any, cost: int) -> None:
        """Store the state of a new subject. There must be room."""
        if 0 < cost < table.cost:
            table.cost = cost
        if table.hand == NOWHERE:
            table.hand = 0
            self._swept.append(table)
        table.states[subject] = state
        table.ring.append(subject)
        self.keys += 1
        self.placed += 1

    def put(self, table: Table, subject: Any, state: Any, cost: int, now: int) -> Any:
        """Store the state of a subject, and return it. Makes room for a new subject. Raises `StoreFull`."""
        if subject in table.states:
            table.states[subject] = state
        else:
            self.make_room(1, now)
            self.add(table, subject, state, cost)
        return state

    def make_room(self, count: int, now: int) -> None:
        """Make room for `count` more keys. Raises `StoreFull`. Keeps every key that is limiting its subject."""
        for _ in range(SWEEP * count if self._swept else 0):
            self._sweep(now)
        while self.keys + count > self.max_keys:
            self._evict(now)

    def _sweep(self, now: int) -> tuple[Table, int, int, int]:
        """Check one key, and drop it if it has expired. Returns its position, what remains of it, and its reset."""
        table = self._swept[self._next_swept]
        at = min(table.hand, len(table.ring)) - 1
        if at < 0:
            table.hand = len(table.ring)
            table.forget_quotas(now)
            self._next_swept = (self._next_swept + 1) % len(self._swept)
            return table, at, 0, 0
        remaining, reset = table.judge(table.states[table.ring[at]], now)
        if reset == 0:
            table.forget(at)  # the key that takes its place was already checked
            self.keys -= 1
        table.hand = at
        return table, at, remaining, reset

    def _evict(self, now: int) -> None:
        """Evict one key: an expired one if the sweep soon finds one, else the least used that limits no subject."""
        least: tuple[float, Table, int] | None = None
        soonest = FULL_US
        keys = self.keys
        for looked in range(keys + len(self._swept) if now >= self._full_until else 0):
            table, at, remaining, reset = self._sweep(now)
            if self.keys < keys:
                return
            if reset:
                soonest = min(soonest, reset)
                used = 1 - remaining / table.bounds.quotas[0].capacity
                if remaining >= table.cost and (least is None or used < least[0]):
                    least = (used, table, at)
            if least is not None and looked >= SEARCH:
                break
        if least is None:
            self._full_until = max(self._full_until, now + soonest)
            raise StoreFull(f"all of the memory store's {self.max_keys} keys are limiting a client; raise max_keys")
        least[1].forget(least[2])
        self.keys -= 1
