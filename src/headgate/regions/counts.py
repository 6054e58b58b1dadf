"""Counts: what other regions have counted of each key, as far as this node has heard. No I/O.

In each bucket of time a region's count of a key only grows. So what is heard is merged by taking the larger: twice,
late or out of order makes no difference. Buckets are told apart by their number, as clocks are off.

A check is decided by our own store, under the limit less what the others have counted. A region that has not
answered for some time may count on unseen: until it answers again, we let in no more than our own share by weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from headgate.core.check import Check
from headgate.core.ledger import Counted
from headgate.core.quota import Quota
from headgate.errors import StoreError
from headgate.regions.division import by_weight
from headgate.regions.link import Link
from headgate.regions.region import Region
from headgate.regions.steps import HERE, Ask, Steps

MAX_KEYS: Final = 100_000  # that are remembered; others keep to their share by weight
AT_ONCE: Final = 4_096  # keys in one call
AGAIN: Final = 5  # times in an interval a region is tried that has not answered, at most: its breaker may be open
BUCKETS: Final = 3  # of each key and region that are remembered: clocks are off, and one fades
SOON: Final = 20  # a key that was not asked for of late is asked about at once, but so often in an interval at most
NEAR_US: Final = 1_000  # by which clocks may be off: answers are later than that at times
BOUND_US: Final = 60_000_000  # for which the largest growth is told, at least

# What our own store's clock is ahead of ours (None: nothing was heard of it yet), and who did not answer last.
State = tuple[int | None, frozenset[Link]]
# From which totals and in which state a key's limit was found, until when it holds if they are the same, and the limit.
Limited = tuple[dict[int, int] | None, State | None, int, int]


class Known:
    """One key: the others' counts, and what is needed to ask for them."""

    __slots__ = ("_sliding", "check", "excess", "limited", "peers", "share", "totals", "touched_us", "window_us")

    def __init__(self, check: Check, share: int) -> None:
        self.check = check._replace(cost=1, enforced=True)
        self.window_us = check.quota.window_us
        self._sliding = check.quota.algorithm == "sliding_window_counter"
        self.share = share  # of this region, by weight
        self.peers: dict[str, dict[int, int]] = {}  # by region: what it has counted in which bucket
        self.totals: dict[int, int] = {}  # of all regions
        self.limited: Limited = (None, None, 0, 0)
        self.touched_us = 0  # when it was last asked for
        self.excess: tuple[int, int] = (0, 0)  # by how much the limit was passed, in which bucket

    def merge(self, region: str, counted: Counted) -> int:
        """Take note of what a region has counted. Returns by how much more that is than was known."""
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
            self.totals = totals  # as a whole: others are reading
        return grown

    def forget(self) -> None:
        self.peers, self.totals, self.excess = {}, {}, (0, 0)

    def others(self, totals: dict[int, int], now_us: int) -> tuple[int, int]:
        """What the others' counts come to, by the time of our own store, rounded up; and until when, by these."""
        window_us = self.window_us
        number, past_us = divmod(now_us, window_us)
        current, previous = totals.get(number, 0), totals.get(number - 1, 0) if self._sliding else 0
        if not previous:
            return current, now_us - past_us + window_us
        fading = -(-previous * (window_us - past_us) // window_us)
        return current + fading, now_us - past_us + window_us - (fading - 1) * window_us // previous


class Counts:
    """Of all keys. Callers only read; what is heard is merged by the exchanges, of which there is one per region."""

    def __init__(
        self, region: Region, links: dict[str, Link], now_us: Callable[[], int], notify: Callable[[], None]
    ) -> None:
        self._me, self._weights = region.name, dict(region.weights)
        self._links = links
        self._now_us = now_us
        self._notify = notify
        self.interval_us = round(region.interval * 1e6)
        self._lock = Lock()
        self._tables: dict[str, dict[str, Known]] = {}
        self._shares: dict[int, int] = {}
        self._keys = 0
        self.wants_time = True  # whether to tell, when our own store answers
        self.state: State = (None, frozenset())  # as a whole, and a new one only if it has changed: others compare it
        self._excess = 0
        self._bounds = dict.fromkeys(links, (0, 0, 0))  # since when, the largest growth since then, and before
        self.exchanges = [Exchange(self, link, self.interval_us, now_us) for link in links.values()]

    def table(self, space: str) -> dict[str, Known]:
        """The keys of one space by subject, for those who look often."""
        return self._tables.setdefault(space, {})

    def known(self, check: Check, at_us: int) -> Known | None:
        """What is known of a key; from now on, it is asked about. None: there are too many."""
        table = self.table(check.space)
        known = table.get(check.subject)
        if known is not None and known.check.quota == check.quota:
            known.check = known.check._replace(quota=check.quota)  # so that it is found to be the same at once
        else:
            with self._lock:
                if known is None:
                    if self._keys >= MAX_KEYS:
                        return None
                    self._keys += 1
                known = table[check.subject] = Known(check, self.share(check.quota))
        if at_us - known.touched_us > self.interval_us:
            self.woken(known)
        known.touched_us = at_us
        return known

    def woken(self, known: Known) -> None:
        """A key was asked for that was not of late."""
        for exchange in self.exchanges:
            exchange.ask(known)
        self._notify()

    def limit(self, known: Known | None, quota: Quota, at_us: int) -> int:
        """What our own store may count of a key, at most, for another unit to be let in; 0 or less: nothing."""
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
        """Our own store's time, or a little earlier; None: nothing was heard of it yet."""
        offset_us, _ = self.state
        return None if offset_us is None else at_us + offset_us

    def heard(self, store_us: int, at_us: int) -> None:
        """Our own store has answered by now: at this time of its own."""
        offset_us = store_us - at_us
        with self._lock:
            known_us, failing = self.state
            if known_us is None or abs(offset_us - known_us) > NEAR_US:
                self.state = (offset_us, failing)
        self.wants_time = False

    def share(self, quota: Quota) -> int:
        """This region's part of a limit by weight."""
        share = self._shares.get(quota.limit)
        if share is None:
            if len(self._shares) >= AT_ONCE:
                self._shares = {}
            share = self._shares[quota.limit] = by_weight(quota.limit, self._weights)[self._me]
        return share

    def forget(self, checks: Sequence[Check]) -> None:
        """All regions were told to forget these."""
        for check in checks:
            known = self._tables.get(check.space, {}).get(check.subject)
            if known is not None:
                known.forget()

    def forked(self) -> None:
        self._lock = Lock()

    @property
    def keys(self) -> int:
        return self._keys

    @property
    def excess(self) -> int:
        return self._excess

    @property
    def bound(self) -> int:
        """The most that others let in of one key and was heard at once, in the last minute or two: added up."""
        return sum(max(current, before) for _, current, before in self._bounds.values())

    def listened(self) -> None:
        """An exchange has ended, one way or the other."""
        self.wants_time = True  # clocks drift, and jump
        with self._lock:
            offset_us, known = self.state
            failing = frozenset(link for link in self._links.values() if link.failing)
            if failing != known:
                self.state = (offset_us, failing)

    def active(self, since_us: int) -> list[Known]:
        """Keys that were asked for since then. Others are forgotten when what is known of them is over."""
        found: list[Known] = []
        with self._lock:
            for table in self._tables.values():
                for subject, known in list(table.items()):
                    if known.touched_us >= since_us:
                        found.append(known)
                    elif known.touched_us < since_us - 2 * known.window_us:
                        del table[subject]
                        self._keys -= 1
        return found

    def any_one(self) -> list[Known]:
        """One key, if there is any."""
        with self._lock:
            return [known for table in self._tables.values() for known in list(table.values())[:1]][:1]

    def merge(self, region: str, keys: list[Known], counted: list[Counted | None], own: list[Counted | None]) -> None:
        """Take note of what a region has counted, and by how much limits were passed."""
        at_us, most = self._now_us(), 0
        for known, one, ours in zip(keys, counted, own, strict=True):
            if one is not None:
                most = max(most, known.merge(region, one))
            if ours is not None:
                self._judge(known, ours, at_us)
        since_us, current, before = self._bounds[region]
        if at_us - since_us >= BOUND_US:
            since_us, current, before = at_us, 0, current if at_us - since_us < 2 * BOUND_US else 0
        self._bounds[region] = (since_us, max(current, most), before)

    def _judge(self, known: Known, ours: Counted, at_us: int) -> None:
        """Whether all regions together have let in more than the limit, in the bucket that our store is in."""
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
            self._excess += over - before
            known.excess = (over, index)


class Exchange:
    """Asks one other region for its counts, every interval, of keys that are in use; of new ones, soon."""

    def __init__(self, counts: Counts, link: Link, interval_us: int, now_us: Callable[[], int]) -> None:
        self.name = f"counts of {link.name}"
        self._counts = counts
        self._link = link
        self._interval_us = interval_us
        self._now_us = now_us
        self._next_us = self._soon_us = 0
        self._new: list[Known] = []

    def ask(self, known: Known) -> None:
        """Ask about a key soon."""
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
        if one:  # that tells whether the region can be reached again
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

    def _exchange(self, keys: list[Known]) -> Steps[bool]:
        """Ask about keys. Returns whether there was an answer."""
        checks = [known.check for known in keys]
        asked_us = self._now_us()
        theirs, ours = yield [Ask(self._link.name, "counts", (checks,)), Ask(HERE, "counts", (checks,))]
        if isinstance(theirs, StoreError):
            self._link.failed(theirs, asked_us)
            self._counts.listened()
            return False
        self._link.answered()
        self._link.heard_us = asked_us
        self._counts.listened()
        nothing: list[Counted | None] = [None] * len(keys)
        self._counts.merge(self._link.name, keys, theirs, nothing if isinstance(ours, StoreError) else ours)
        return True
