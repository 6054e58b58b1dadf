"""Shares: this region's shares of single keys, as far as this node knows, and their renewal. No I/O.

The node uses a share until shortly before it ends, by a clock that started before the page was read, so that checks in
progress arrive in time. Before the first share, and after the last, the region has its floor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Final

from headgate.core.check import Check, Group, Result
from headgate.core.quota import Quota
from headgate.errors import StoreError
from headgate.features.regions.division import floors
from headgate.features.regions.grants import Grant, GrantTerms, RegionReport, Sheet, fresh_share, renew_share
from headgate.features.regions.link import HERE, Link, Steps, StoreCall
from headgate.features.regions.region import Region
from headgate.stores.protocol import LedgerPage, Swap

MAX_KEYS: Final = 100_000  # remembered; other keys have their floor
AT_ONCE: Final = 2_048  # keys in one call, which takes a server some milliseconds
IDLE: Final = 10  # reports without demand here after which a key is left to other nodes of the region
DRIFT: Final = 10  # a share ends early by 1/2^DRIFT of its time: clocks run at different rates
MARGIN_US: Final = 250_000  # and by this, or a quarter of its time: checks in progress must arrive before it ends


class HeldShare:
    """This region's share of one key, as far as this node knows."""

    __slots__ = ("check", "demand", "floor", "idle", "page_us", "seen_us", "share", "terms", "until_us")

    def __init__(self, check: Check, terms: GrantTerms, floor: int) -> None:
        self.check = check._replace(cost=1, enforced=True)
        self.terms = terms
        self.floor = floor
        self.share = floor
        self.until_us = 0
        self.demand = 0  # since the last report
        self.idle = 0  # consecutive reports without demand
        self.page_us = 0  # the page's clock when it was last read,
        self.seen_us = 0  # and the local clock after that

    def limit(self, at_us: int) -> int:
        """Return the limit that applies to the key in this region: its share, or else its floor."""
        return self.share if at_us < self.until_us else self.floor


class RegionShares:
    """The shares of all keys. Callers only read and count. `work` renews shares; only one thread or task may run it."""

    name = "shares"

    def __init__(
        self, region: Region, links: dict[str, Link], now_us: Callable[[], int], notify: Callable[[], None]
    ) -> None:
        self._me, self._central = region.name, region.central
        self._weights, self._floor = dict(region.weights), region.floor
        self._interval_us, self._term_us = round(region.interval * 1e6), round(region.term * 1e6)
        self._link = links.get(region.central)
        self._now_us = now_us
        self._notify = notify
        self._lock = Lock()
        self._tables: dict[str, dict[str, HeldShare]] = {}
        self._terms: dict[Quota, GrantTerms] = {}
        self._new: list[HeldShare] = []
        self._keys = 0
        self._next_us = 0
        self.failures = 0

    def table(self, key_template: str) -> dict[str, HeldShare]:
        """Return the keys of one key template by subject, for frequent callers."""
        return self._tables.setdefault(key_template, {})

    def follow(self, check: Check) -> HeldShare | None:
        """Return this region's share of a key, and renew it from now on; None if there are too many keys."""
        table = self.table(check.key_template)
        held = table.get(check.subject)
        if held is not None and held.check.quota == check.quota:
            held.check = held.check._replace(quota=check.quota)  # so that the next comparison is fast
        else:
            with self._lock:
                if held is None:
                    if self._keys >= MAX_KEYS:
                        return None
                    self._keys += 1
                terms = self.terms(check.quota)
                held = table[check.subject] = HeldShare(check, terms, terms.floors[self._me])
                self._new.append(held)
            self._notify()
        return held

    def floor(self, quota: Quota) -> int:
        return self.terms(quota).floors[self._me]

    def terms(self, quota: Quota) -> GrantTerms:
        terms = self._terms.get(quota)
        if terms is None:
            least = floors(quota.limit, self._weights, self._floor)
            terms = GrantTerms(quota.limit, quota.window_us, least, self._weights, self._term_us)
            if len(self._terms) >= AT_ONCE:
                self._terms = {}
            self._terms[quota] = terms
        return terms

    def reset_after_fork(self) -> None:
        self._lock = Lock()

    @property
    def live(self) -> int:
        """The number of keys with a granted share that has not ended."""
        at_us = self._now_us()
        return sum(at_us < held.until_us for held in self.all())

    def due_us(self) -> int | None:
        if not self._keys:
            return None
        return 0 if self._new else max(0, self._next_us - self._now_us())

    def work(self) -> Steps[None]:
        """Renew the shares of all keys in use; if it is too early for that, only of new keys."""
        now_us = self._now_us()
        with self._lock:
            new, self._new = self._new, []
            some = new
            if now_us >= self._next_us:
                some = [held for table in self._tables.values() for held in table.values()]
                self._next_us = now_us + self._interval_us
        failed = False
        for start in range(0, len(some), AT_ONCE):
            done = yield from self._renew(some[start : start + AT_ONCE])
            failed = failed or not done
        if failed:
            self.failures += 1

    def _renew(self, keys: list[HeldShare]) -> Steps[bool]:
        read_us = self._now_us()
        (used,) = yield [StoreCall(HERE, "check", ([Group((held.check,), peek=True) for held in keys],))]
        if isinstance(used, StoreError):
            return False
        sent_us = self._now_us()
        names = [f"{held.check.key}:shares" for held in keys]
        (pages,) = yield [StoreCall(self._central, "read", (names,))]
        if self._note_failure(pages, sent_us):
            return False
        heard_us = self._now_us()
        swaps, grants = [], []
        for held, name, result, page in zip(keys, names, used, pages, strict=True):
            report = self._report(held, result, read_us, heard_us)
            held.page_us, held.seen_us = page.now_us, heard_us
            sheet = Sheet.of(page.text)
            found = fresh_share(sheet, self._me, report, page.now_us, held.terms)
            if found is not None:
                self._use_grant(held, found, report, page, sent_us)
                if held.idle > IDLE and not held.demand:  # another node of the region renews it
                    self._drop(held)
                continue
            after, grant = renew_share(sheet, self._me, report, page.now_us, held.terms)
            swaps.append(Swap(name, page.text, after.text(), 2 * held.terms.window_us + 2 * self._term_us))
            grants.append((held, grant, report, page))
        if not swaps:
            return True
        (written,) = yield [StoreCall(self._central, "swap", (swaps,))]
        if self._note_failure(written, sent_us):
            return False
        for (held, grant, report, page), done in zip(grants, written, strict=True):
            if done:
                self._use_grant(held, grant, report, page, sent_us)
            else:  # another node was faster
                with self._lock:
                    self._new.append(held)
        return True

    def _use_grant(self, held: HeldShare, grant: Grant, report: RegionReport, page: LedgerPage, sent_us: int) -> None:
        """Use a share from now until it ends."""
        held.demand = max(0, held.demand - report.demand)
        held.idle = 0 if report.demand else held.idle + 1
        lives_us = grant.until_us - page.now_us
        held.share = grant.share
        held.until_us = sent_us + lives_us - (lives_us >> DRIFT) - min(MARGIN_US, lives_us // 4)
        if grant.settled and not held.demand:
            self._drop(held)

    def _report(self, held: HeldShare, result: Result, read_us: int, heard_us: int) -> RegionReport:
        quota = held.check.quota
        number = last = 0
        if quota.algorithm == "fixed_window":
            number = result.now_us // quota.window_us
            lives_us = heard_us - read_us + self._term_us
            last = (result.now_us + lives_us + (lives_us >> DRIFT) + 1) // quota.window_us
        passed_us = max(0, read_us - held.seen_us)
        as_of_us = held.page_us + passed_us - (passed_us >> DRIFT) if held.seen_us else 0
        return RegionReport(quota.limit - result.outcomes[0].remaining, number, last, as_of_us, held.demand)

    def _drop(self, held: HeldShare) -> None:
        """Drop a key without demand, whose unused share has been given back."""
        with self._lock:
            table = self._tables[held.check.key_template]
            if table.get(held.check.subject) is held:
                del table[held.check.subject]
                self._keys -= 1

    def _note_failure(self, answer: list[LedgerPage] | list[bool] | StoreError, asked_us: int) -> bool:
        if isinstance(answer, StoreError):
            if self._link is not None:
                self._link.note_failure(answer, asked_us)
            return True
        if self._link is not None:
            self._link.note_answer()
        return False

    def all(self) -> Iterator[HeldShare]:
        """Yield all keys' shares."""
        for table in list(self._tables.values()):
            yield from list(table.values())
