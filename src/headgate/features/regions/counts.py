"""Counts: the other regions' counts of each key, as this node last read them. No I/O.

Within a time bucket, a region's count of a key only grows. So merging takes the larger count, and it does not matter if
a count comes twice, late or out of order. Buckets have numbers, because clocks differ.

Our own store decides a check, with the limit minus the others' counts. A region that has not answered for some time may
keep counting without our knowledge: until it answers again, we admit no more than our own share by weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from headgate.core.check import Check
from headgate.core.quota import Quota
from headgate.errors import StoreError
from headgate.features.regions.division import by_weight
from headgate.features.regions.link import HERE, Link, Steps, StoreCall
from headgate.features.regions.region import Region
from headgate.stores.protocol import Counted

MAX_KEYS: Final = 100_000  # remembered; other keys keep to their share by weight
AT_ONCE: Final = 4_096  # keys in one call
AGAIN: Final = 5  # most attempts per interval to reach a region that has not answered: its breaker may be open
BUCKETS: Final = 3  # remembered per key and region: clocks differ, and one bucket fades
SOON: Final = 20  # most immediate reads per interval, for keys without recent checks
NEAR_US: Final = 1_000  # tolerated difference of clocks: answers sometimes take longer than this
BOUND_US: Final = 60_000_000  # how long `bound` keeps the largest growth, at least

# How far our own store's clock is ahead of ours (None: unknown), and the links whose last call failed.
State = tuple[int | None, frozenset[Link]]
# The totals and the state from which a key's limit was computed, until when it is valid while they stay, and the limit.
Limited = tuple[dict[int, int] | None, State | None, int, int]


class KnownCounts:
    """One key: the others' counts, and the data to read them."""

    __slots__ = ("_sliding", "check", "excess", "limited", "peers", "share", "totals", "touched_us", "window_us")

    def __init__(self, check: Check, share: int) -> None:
        self.check = check._replace(cost=1, enforced=True)
        self.window_us = check.quota.window_us
        self._sliding = check.quota.algorithm == "sliding_window_counter"
        self.share = share  # this region's share by weight
        self.peers: dict[str, dict[int, int]] = {}  # by region: its count in each bucket
        self.totals: dict[int, int] = {}  # of all regions
        self.limited: Limited = (None, None, 0, 0)
        self.touched_us = 0  # time of its last check
        self.excess: tuple[int, int] = (0, 0)  # the amount above the limit, and its bucket

    def merge(self, region: str, counted: Counted) -> int:
        """Merge a region's count. Return by how much it has grown."""
        index, grown = counted.start_us // self.window_us, 0
        counts = dict(self.peers.get(region, ()))
        for number, count in ((index, counted.current), (index - 1, counted.previous)):
            known = counts.get(number, 0)
            if count > known:
                counts[number] = count
                grown += count - known
        for number in sorted(counts)[:-BUCKETS]:
            del counts[number]
        if grown:
            self.peers[region] = counts
            totals: dict[int, int] = {}
            for peer in list(self.peers.values()):
                for number, count in peer.items():
                    totals[number] = totals.get(number, 0) + count
            self.totals = totals  # replaced as a whole: other threads are reading
        return grown

    def forget(self) -> None:
        self.peers, self.totals, self.excess = {}, {}, (0, 0)

    def others(self, totals: dict[int, int], now_us: int) -> tuple[int, int]:
        """Return the sum of the others' counts at a time of our own store, rounded up, and until when it is valid."""
        window_us = self.window_us
        number, past_us = divmod(now_us, window_us)
        current, previous = totals.get(number, 0), totals.get(number - 1, 0) if self._sliding else 0
        if not previous:
            return current, now_us - past_us + window_us
        fading = -(-previous * (window_us - past_us) // window_us)
        return current + fading, now_us - past_us + window_us - (fading - 1) * window_us // previous


class Counts:
    """The counts of all keys. Callers only read. Each region has an `Exchange`, which merges that region's counts."""

    def __init__(
        self, region: Region, links: dict[str, Link], now_us: Callable[[], int], notify: Callable[[], None]
    ) -> None:
        self._me, self._weights = region.name, dict(region.weights)
        self._links = links
        self._now_us = now_us
        self._notify = notify
        self.interval_us = round(region.interval * 1e6)
        self._lock = Lock()
        self._tables: dict[str, dict[str, KnownCounts]] = {}
        self._shares: dict[int, int] = {}
        self.keys = 0
        self.wants_time = True  # whether to call `note_answer` when our own store answers
        self.state: State = (None, frozenset())  # replaced as a whole, and only if it has changed: others compare it
        self.excess = 0  # units that all regions together admitted above limits
        self._bounds = dict.fromkeys(links, (0, 0, 0))  # start of a period, largest growth in it and before
        self.exchanges = [Exchange(self, link, self.interval_us, now_us) for link in links.values()]

    def table(self, key_template: str) -> dict[str, KnownCounts]:
        """Return the keys of one key template by subject, for frequent callers."""
        return self._tables.setdefault(key_template, {})

    def follow(self, check: Check, at_us: int) -> KnownCounts | None:
        """Return the counts of a key, and read them from now on; None if there are too many keys."""
        table = self.table(check.key_template)
        known = table.get(check.subject)
        if known is not None and known.check.quota == check.quota:
            known.check = known.check._replace(quota=check.quota)  # so that the next comparison is fast
        else:
            with self._lock:
                if known is None:
                    if self.keys >= MAX_KEYS:
                        return None
                    self.keys += 1
                known = table[check.subject] = KnownCounts(check, self.share(check.quota))
        if at_us - known.touched_us > self.interval_us:
            self.request_counts(known)
        known.touched_us = at_us
        return known

    def request_counts(self, known: KnownCounts) -> None:
        """Ask the other regions for their counts of a key now, not at the next exchange: it had no recent check."""
        for exchange in self.exchanges:
            exchange.ask(known)
        self._notify()

    def limit(self, known: KnownCounts | None, quota: Quota, at_us: int) -> int:
        """Return the limit with which our own store decides a key; 0 or less: nothing may pass."""
        if known is None:
            return self.share(quota)
        limit, until_us, totals, state = quota.limit, at_us + self.interval_us, known.totals, self.state
        offset_us, failing = state
        if totals and offset_us is not None:
            others, until_us = known.others(totals, at_us + offset_us)
            limit, until_us = limit - others, until_us - offset_us
        if failing:
            return min(limit, known.share) if any(link.cut for link in failing) else limit
        known.limited = (totals, state, until_us, limit)
        return limit

    def store_us(self, at_us: int) -> int | None:
        """Return our own store's time, or a little earlier; None if it is not known yet."""
        offset_us, _ = self.state
        return None if offset_us is None else at_us + offset_us

    def note_answer(self, store_us: int, at_us: int) -> None:
        """Record that our own store answered at `store_us` on its clock, by `at_us` on ours."""
        offset_us = store_us - at_us
        with self._lock:
            known_us, failing = self.state
            if known_us is None or abs(offset_us - known_us) > NEAR_US:
                self.state = (offset_us, failing)
        self.wants_time = False

    def share(self, quota: Quota) -> int:
        """Return this region's share of a limit by weight."""
        share = self._shares.get(quota.limit)
        if share is None:
            if len(self._shares) >= AT_ONCE:
                self._shares = {}
            share = self._shares[quota.limit] = by_weight(quota.limit, self._weights)[self._me]
        return share

    def forget(self, checks: Sequence[Check]) -> None:
        """Drop the counts of these checks: all regions have reset them."""
        for check in checks:
            known = self._tables.get(check.key_template, {}).get(check.subject)
            if known is not None:
                known.forget()

    def reset_after_fork(self) -> None:
        self._lock = Lock()

    @property
    def bound(self) -> int:
        """The most by which one key's count grew between two reads in the last minute or two, summed over regions."""
        return sum(max(current, before) for _, current, before in self._bounds.values())

    def note_exchange(self) -> None:
        """Record that an exchange has ended, successfully or not."""
        self.wants_time = True  # clocks drift and jump
        with self._lock:
            offset_us, known = self.state
            failing = frozenset(link for link in self._links.values() if link.failing)
            if failing != known:
                self.state = (offset_us, failing)

    def active(self, since_us: int) -> list[KnownCounts]:
        """Return the keys with checks since then. Drop other keys once their counts are over."""
        found: list[KnownCounts] = []
        with self._lock:
            for table in self._tables.values():
                for subject, known in list(table.items()):
                    if known.touched_us >= since_us:
                        found.append(known)
                    elif known.touched_us < since_us - 2 * known.window_us:
                        del table[subject]
                        self.keys -= 1
        return found

    def any_one(self) -> list[KnownCounts]:
        """Return one key, if there is any."""
        with self._lock:
            return [known for table in self._tables.values() for known in list(table.values())[:1]][:1]

    def merge(
        self, region: str, keys: list[KnownCounts], counted: list[Counted | None], own: list[Counted | None]
    ) -> None:
        """Merge a region's counts, and record by how much limits were exceeded."""
        at_us, growth = self._now_us(), 0
        for known, one, ours in zip(keys, counted, own, strict=True):
            if one is not None:
                growth = max(growth, known.merge(region, one))
            if ours is not None:
                self._judge(known, ours, at_us)
        since_us, current, before = self._bounds[region]
        if at_us - since_us >= BOUND_US:
            since_us, current, before = at_us, 0, current if at_us - since_us < 2 * BOUND_US else 0
        self._bounds[region] = (since_us, max(current, growth), before)

    def _judge(self, known: KnownCounts, ours: Counted, at_us: int) -> None:
        """Record whether all regions together have admitted more than the limit, in our store's current bucket."""
        store_us = self.store_us(at_us)
        if store_us is None:
            return
        now_us = max(store_us, ours.start_us)
        index, past = divmod(now_us, known.window_us)
        if ours.start_us // known.window_us != index:
            return
        faded = ours.previous * (known.window_us - past) // known.window_us
        over = ours.current + faded + known.others(known.totals, now_us)[0] - known.check.quota.limit
        before = known.excess[0] if known.excess[1] == index else 0
        if over > before:
            self.excess += over - before
            known.excess = (over, index)


class Exchange:
    """Reads one other region's counts, every interval, for keys in use; for new keys, soon."""

    def __init__(self, counts: Counts, link: Link, interval_us: int, now_us: Callable[[], int]) -> None:
        self.name = f"counts of {link.name}"
        self._counts = counts
        self._link = link
        self._interval_us = interval_us
        self._now_us = now_us
        self._next_us = self._soon_us = 0
        self._new: list[KnownCounts] = []

    def ask(self, known: KnownCounts) -> None:
        """Read the count of a key soon."""
        self._new.append(known)

    def due_us(self) -> int | None:
        if not self._counts.keys:
            return None
        soon = self._new and not self._link.failing
        due_us = min(self._next_us, self._soon_us) if soon else self._next_us
        return max(0, due_us - self._now_us())

    def work(self) -> Steps[None]:
        now_us = self._now_us()
        some, self._new = self._new, []
        self._soon_us = now_us + self._interval_us // SOON
        one = self._counts.any_one() if self._link.failing else []
        if one:  # this shows whether the region can be reached again
            self._next_us = now_us + self._interval_us // AGAIN
            reached = yield from self._exchange(one)
            if not reached:
                return
            self._next_us = now_us
        if now_us >= self._next_us:
            some = self._counts.active(now_us - 2 * self._interval_us)
            self._next_us = now_us + self._interval_us
        for start in range(0, len(some), AT_ONCE):
            reached = yield from self._exchange(some[start : start + AT_ONCE])
            if not reached:
                self._next_us = min(self._next_us, self._now_us() + self._interval_us // AGAIN)
                return

    def _exchange(self, keys: list[KnownCounts]) -> Steps[bool]:
        """Read the counts of keys. Return whether there was an answer."""
        checks = [known.check for known in keys]
        asked_us = self._now_us()
        theirs, ours = yield [StoreCall(self._link.name, "counts", (checks,)), StoreCall(HERE, "counts", (checks,))]
        if isinstance(theirs, StoreError):
            self._link.note_failure(theirs, asked_us)
            self._counts.note_exchange()
            return False
        self._link.note_answer()
        self._link.heard_us = asked_us
        self._counts.note_exchange()
        nothing: list[Counted | None] = [None] * len(keys)
        self._counts.merge(self._link.name, keys, theirs, nothing if isinstance(ours, StoreError) else ours)
        return True
