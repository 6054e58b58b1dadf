"""Grants: how regions agree on shares of one key's limit, on a page that all of them can read. Pure; no I/O.

A page has an entry per region. Whoever wants a share reads the page, works out a new one by `renewed`, and writes it if
nobody else has written since: its fence counts the writes, so one that comes late is refused. All times on a page
are by the clock of the server that keeps it.

Nobody who is not on the page has more than their floor. Whoever is has their share until it ends, and then their
floor. A share can be made larger at once, by what nobody holds. What a region holds is `high`: the most that it may
have used. It becomes less only when the region itself has said, after every larger share of its had ended, what it has
used. So what is let in never exceeds the limit, however shares move; what a region that is cut off may have used stays
its own as long as it counts.

The windows of a fixed_window are told apart by their number, as clocks are off: some regions may be in the next
one when others are not. A share that may still hold when the next one begins counts in both. Other algorithms have no
such windows: what they have used only fades, and the number is 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from headgate.regions.division import fair

AHEAD: Final = 2  # a region wants what it has used, and so many times what it was asked for between two reports
FADES: Final = 3  # times in a term, demand is halved
FRESH: Final = 5  # of six parts of a term are left of a share that was given just now


class Terms(NamedTuple):
    """What a key's shares are divided by: the same in all regions."""

    limit: int
    window_us: int
    floors: Mapping[str, int]
    weights: Mapping[str, int]
    term_us: int


class Report(NamedTuple):
    """What a region says of one key."""

    used: int  # of the limit, by the region's own store
    number: int  # of the window in which that was, and
    last: int  # of the one that it may be in when a share ends that it gets now, at most
    as_of_us: int  # no later than when that was read
    asked: int  # of this node since its last report, be it let in or not


class Entry(NamedTuple):
    """A region on the page."""

    share: int
    until_us: int
    drop_us: int  # until then, it may still be using a larger share that it had before
    high: int  # what it may have used in this window, at most
    number: int  # of the window
    last: int  # of the window in which its share ends, at most
    want: int
    demand: int  # what one node was asked for between two reports, fading
    demand_us: int  # as of when
    past_number: int = -1  # of the window before, and what it may have used in that
    past_high: int = 0

    def held(self, floor: int, number: int) -> int:
        """What others must leave to it in a window."""
        if number > self.last:
            return floor
        if number >= self.number:
            return max(self.high, floor)
        return max(self.past_high if number == self.past_number else max(self.high, self.past_high), floor)


class Grant(NamedTuple):
    """What a region was given."""

    share: int
    until_us: int
    settled: bool  # whether there is no demand, and it holds no more than it has used, or its floor


Entries = dict[str, Entry]


class Sheet(NamedTuple):
    """A page, read."""

    fence: int
    entries: Entries

    @classmethod
    def of(cls, text: str | None) -> Sheet:
        if text is None:
            return cls(0, {})
        fence, entries = json.loads(text)
        return cls(fence, {name: Entry(*entry) for name, entry in entries.items()})

    def text(self) -> str:
        return json.dumps((self.fence, self.entries), separators=(",", ":"))


def shared(sheet: Sheet, me: str, report: Report, now_us: int, terms: Terms) -> Grant | None:
    """The share that another node of the region was given just now, and that will do; None: there is no such."""
    mine = sheet.entries.get(me)
    if mine is None or mine.until_us - now_us <= terms.term_us * FRESH // (FRESH + 1) or report.asked > mine.demand:
        return None
    return Grant(mine.share, mine.until_us, settled=False)


def renewed(sheet: Sheet, me: str, report: Report, now_us: int, terms: Terms) -> tuple[Sheet, Grant]:
    """The page with a new share for one region, by its report."""
    entries = {
        name: entry
        for name, entry in sheet.entries.items()
        if name in terms.weights and now_us < entry.until_us + 2 * terms.window_us + terms.term_us
    }
    floor = terms.floors[me]
    mine = entries.pop(me, None)
    before, high, drop_us, past = _known(mine, report, floor, now_us)
    number = report.number if mine is None else max(report.number, mine.number)
    last = max(report.last, number)
    # A share may still hold when the next window begins, and others may be in that already.
    held = max(_held(entries, me, one, terms) for one in range(number, last + 1))
    demand, demand_us = _demand(mine, report, now_us, terms)
    used = report.used if mine is None or report.number >= mine.number else mine.high
    wanted = terms.floors[me] if demand == 0 else _wanted(entries, me, used + AHEAD * demand, before, now_us, terms)
    share = min(max(wanted, used), terms.limit - held)
    share = max(share, min(floor, terms.limit - held), 0)
    if mine is not None and share < before:
        drop_us = max(drop_us, mine.until_us)
    until_us = now_us + terms.term_us
    want = used + AHEAD * demand
    entry = Entry(share, until_us, drop_us, max(high, share), number, last, want, demand, demand_us, *past)
    settled = demand == 0 and entry.high <= max(floor, used) and (last == number or entry.high <= floor)
    return Sheet(sheet.fence + 1, {**entries, me: entry}), Grant(share, until_us, settled)


def _held(entries: Entries, me: str, number: int, terms: Terms) -> int:
    """What the others hold in a window."""
    return sum(
        entries[name].held(least, number) if name in entries else least
        for name, least in terms.floors.items()
        if name != me
    )


def _known(mine: Entry | None, report: Report, floor: int, now_us: int) -> tuple[int, int, int, tuple[int, int]]:
    """Of the region that reports: its share so far, what it may have used, until when it may be using more than its
    share, and what it held in the window before."""
    if mine is None:
        return floor, max(floor, report.used), 0, (-1, 0)
    before = mine.share if now_us < mine.until_us else floor
    past = (mine.past_number, mine.past_high)
    if report.number > mine.number:
        past = (mine.number, mine.high)
    if report.number < mine.number or report.as_of_us < mine.drop_us:  # it says nothing of what was used in the end
        return before, max(mine.high, report.used), mine.drop_us, past
    since = mine.share if report.as_of_us < mine.until_us else floor
    return before, max(report.used, since, floor), 0, past


def _demand(mine: Entry | None, report: Report, now_us: int, terms: Terms) -> tuple[int, int]:
    """What a node of the region is asked for between two reports: the most that was said of late."""
    if mine is None:
        return report.asked, now_us
    fade_us = max(1, terms.term_us // FADES)
    fades = max(0, now_us - mine.demand_us) // fade_us
    faded = mine.demand >> min(fades, 64)
    return (report.asked, now_us) if report.asked >= faded else (faded, mine.demand_us + fades * fade_us)


def _wanted(entries: Entries, me: str, want: int, before: int, now_us: int, terms: Terms) -> int:
    """What a region with demand should have, if all others let it."""
    alive = {name: entry for name, entry in entries.items() if now_us < entry.until_us}
    wants = {
        name: min(alive[name].want, terms.limit) if name in alive else least for name, least in terms.floors.items()
    }
    wants[me] = min(want, terms.limit)
    shares = fair(terms.limit, wants, terms.floors, terms.weights)
    spare = terms.limit - sum(shares.values())
    active = 1 + sum(entry.demand > 0 for entry in alive.values())
    share = shares[me] + spare // (active + 1)  # one part is left for whoever comes next
    if share < before and not any(entry.want > entry.share for entry in alive.values()):
        return before  # nobody needs it
    return share
