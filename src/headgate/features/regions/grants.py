"""Grants: how regions agree on shares of one key's limit, on a page that all of them can read. Pure; no I/O.

A page has an entry per region. A region that wants a share reads the page, computes a new page with `renew_share`, and
writes it if the page has not changed since. The page's fence counts the writes, so the store refuses a late write. All
times on a page are by the clock of the server that keeps it.

A region that is not on the page has its floor. A region on the page has its share until the share ends, and then its
floor. A share can grow at once, by what no region holds. A region holds `high`: the most that it may have used. `high`
shrinks only when the region itself reports its use, after every larger share of the region has ended. So the regions
together never admit more than the limit, however shares move. Whatever a disconnected region may have used stays
reserved for it as long as it counts.

Clocks differ, so some regions may enter the next window of a fixed_window before others. Windows therefore have
numbers. A share that may last into the next window counts in both. Other algorithms have no windows in this sense:
their use only fades, and the number is 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from headgate.features.regions.division import fair

AHEAD: Final = 2  # a region wants what it has used, plus this many times its demand between two reports
FADES: Final = 3  # how often demand is halved in a term
FRESH: Final = 5  # sixths of a term that are left of a share that was just granted


class GrantTerms(NamedTuple):
    """The terms for dividing a key's limit into shares: the same in all regions."""

    limit: int
    window_us: int
    floors: Mapping[str, int]
    weights: Mapping[str, int]
    term_us: int


class RegionReport(NamedTuple):
    """A region's report on one key."""

    used: int  # of the limit, by the region's own store
    number: int  # number of the window of that use, and
    last: int  # of the last window that a share granted now may reach
    as_of_us: int  # at or before the time of that reading
    demand: int  # on this node since its last report, admitted or not


class PageEntry(NamedTuple):
    """The entry of a region on the page."""

    share: int
    until_us: int
    drop_us: int  # until then, it may still be using an earlier, larger share
    high: int  # the most that it may have used in this window
    number: int  # of the window
    last: int  # the last window that its share may reach
    want: int
    demand: int  # the demand on one node between two reports, fading
    demand_us: int  # the time of that demand
    past_number: int = -1  # number of the window before; followed by the most that it may have used there
    past_high: int = 0

    def amount_held(self, floor: int, number: int) -> int:
        """Return what other regions must leave to it in a window."""
        if number > self.last:
            return floor
        if number >= self.number:
            return max(self.high, floor)
        return max(self.past_high if number == self.past_number else max(self.high, self.past_high), floor)


class Grant(NamedTuple):
    """The share that a region got."""

    share: int
    until_us: int
    settled: bool  # whether there is no demand, and it holds no more than it has used, or its floor


Entries = dict[str, PageEntry]


class Sheet(NamedTuple):
    """A parsed page."""

    fence: int
    entries: Entries

    @classmethod
    def of(cls, text: str | None) -> Sheet:
        if text is None:
            return cls(0, {})
        fence, entries = json.loads(text)
        return cls(fence, {name: PageEntry(*entry) for name, entry in entries.items()})

    def text(self) -> str:
        return json.dumps((self.fence, self.entries), separators=(",", ":"))


def fresh_share(sheet: Sheet, me: str, report: RegionReport, now_us: int, terms: GrantTerms) -> Grant | None:
    """Return the share that another node of the region has just got, if it is enough for this node; else None."""
    mine = sheet.entries.get(me)
    if mine is None or mine.until_us - now_us <= terms.term_us * FRESH // (FRESH + 1) or report.demand > mine.demand:
        return None
    return Grant(mine.share, mine.until_us, settled=False)


def renew_share(sheet: Sheet, me: str, report: RegionReport, now_us: int, terms: GrantTerms) -> tuple[Sheet, Grant]:
    """Return the page with a new share for one region, computed from its report, and that share."""
    entries = {
        name: entry
        for name, entry in sheet.entries.items()
        if name in terms.weights and now_us < entry.until_us + 2 * terms.window_us + terms.term_us
    }
    floor = terms.floors[me]
    mine = entries.pop(me, None)
    before, high, drop_us, past = _previous_share(mine, report, floor, now_us)
    number = report.number if mine is None else max(report.number, mine.number)
    last = max(report.last, number)
    # A share may outlast the window, and others may already be in the next one.
    held = max(_held_by_others(entries, me, one, terms) for one in range(number, last + 1))
    demand, demand_us = _demand(mine, report, now_us, terms)
    used = report.used if mine is None or report.number >= mine.number else mine.high
    want = used + AHEAD * demand
    wanted = floor if demand == 0 else _wanted_share(entries, me, want, before, now_us, terms)
    share = min(max(wanted, used), terms.limit - held)
    share = max(share, min(floor, terms.limit - held), 0)
    if mine is not None and share < before:
        drop_us = max(drop_us, mine.until_us)
    until_us = now_us + terms.term_us
    entry = PageEntry(share, until_us, drop_us, max(high, share), number, last, want, demand, demand_us, *past)
    settled = demand == 0 and entry.high <= max(floor, used) and (last == number or entry.high <= floor)
    return Sheet(sheet.fence + 1, {**entries, me: entry}), Grant(share, until_us, settled)


def _held_by_others(entries: Entries, me: str, number: int, terms: GrantTerms) -> int:
    """Return what the other regions hold in a window."""
    return sum(
        entries[name].amount_held(least, number) if name in entries else least
        for name, least in terms.floors.items()
        if name != me
    )


def _previous_share(
    mine: PageEntry | None, report: RegionReport, floor: int, now_us: int
) -> tuple[int, int, int, tuple[int, int]]:
    """Return what the page has on the reporting region.

    That is its share so far, the most that it may have used, until when it may be using more than its share, and what
    it held in the window before."""
    if mine is None:
        return floor, max(floor, report.used), 0, (-1, 0)
    before = mine.share if now_us < mine.until_us else floor
    past = (mine.past_number, mine.past_high)
    if report.number > mine.number:
        past = (mine.number, mine.high)
    if report.number < mine.number or report.as_of_us < mine.drop_us:  # the report does not include the final use
        return before, max(mine.high, report.used), mine.drop_us, past
    since = mine.share if report.as_of_us < mine.until_us else floor
    return before, max(report.used, since, floor), 0, past


def _demand(mine: PageEntry | None, report: RegionReport, now_us: int, terms: GrantTerms) -> tuple[int, int]:
    """Return the largest recent demand on a node between two reports, and the time of that report."""
    if mine is None:
        return report.demand, now_us
    fade_us = max(1, terms.term_us // FADES)
    fades = max(0, now_us - mine.demand_us) // fade_us
    faded = mine.demand >> min(fades, 64)
    return (report.demand, now_us) if report.demand >= faded else (faded, mine.demand_us + fades * fade_us)


def _wanted_share(entries: Entries, me: str, want: int, before: int, now_us: int, terms: GrantTerms) -> int:
    """Return what a region with demand should have, if all others allow it."""
    alive = {name: entry for name, entry in entries.items() if now_us < entry.until_us}
    wants = {
        name: min(alive[name].want, terms.limit) if name in alive else least for name, least in terms.floors.items()
    }
    wants[me] = min(want, terms.limit)
    shares = fair(terms.limit, wants, terms.floors, terms.weights)
    spare = terms.limit - sum(shares.values())
    active = 1 + sum(entry.demand > 0 for entry in alive.values())
    share = shares[me] + spare // (active + 1)  # one part stays free for the next region
    if share < before and not any(entry.want > entry.share for entry in alive.values()):
        return before  # no other region needs it
    return share
