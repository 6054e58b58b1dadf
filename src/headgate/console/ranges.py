"""Ranges of time that pages can show."""

from __future__ import annotations

from typing import Final, NamedTuple

from headgate.operations.usage import Period

LIVE: Final = "live"


class Range(NamedTuple):
    """A choice of a page: its name in the URL, what it is called, how long it is and in which steps it is drawn."""

    name: str
    label: str
    seconds: int
    step: int


RANGES: Final = (
    Range(LIVE, "Live", 900, 60),
    Range("1h", "1 h", 3_600, 60),
    Range("6h", "6 h", 6 * 3_600, 300),
    Range("24h", "24 h", 86_400, 900),
    Range("7d", "7 d", 7 * 86_400, 3_600),
    Range("30d", "30 d", 30 * 86_400, 4 * 3_600),
    Range("1y", "1 y", 365 * 86_400, 86_400),
)


def range_of(name: str | None, default: str = LIVE) -> Range:
    """The range of this name; the default where there is none."""
    by_name = {one.name: one for one in RANGES}
    return by_name.get(name or default, by_name[default])


def period_of(chosen: Range, now_us: int) -> Period:
    return Period(now_us - chosen.seconds * 1_000_000, now_us, chosen.step)
