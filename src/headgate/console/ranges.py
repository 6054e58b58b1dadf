"""Ranges of time that pages can show: the last hours or days, or from one time to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from headgate.core.quota import MICROSECONDS
from headgate.operations.history import Period, default_step

LIVE: Final = "live"
CUSTOM: Final = "custom"
MIN_SECONDS: Final = 60
MAX_TIME: Final = 1 << 36  # seconds: far beyond any stored time


class Range(NamedTuple):
    """A range that a page offers: its name in the URL, its label, its length and its steps."""

    name: str
    label: str
    seconds: int
    step: int
    until: int | None = None  # Unix time; None: now

    @property
    def parameters(self) -> dict[str, object]:
        """The URL parameters of this range."""
        if self.until is None:
            return {"range": self.name}
        return {"since": self.until - self.seconds, "until": self.until}

    def period(self, now_us: int) -> Period:
        until_us = now_us if self.until is None else self.until * MICROSECONDS
        return Period(until_us - self.seconds * MICROSECONDS, until_us, self.step)


RANGES: Final = (
    Range(LIVE, "Live", 900, 60),
    Range("1h", "1 h", 3_600, 60),
    Range("6h", "6 h", 6 * 3_600, 300),
    Range("24h", "24 h", 86_400, 900),
    Range("7d", "7 d", 7 * 86_400, 3_600),
    Range("30d", "30 d", 30 * 86_400, 4 * 3_600),
    Range("1y", "1 y", 365 * 86_400, 86_400),
)
_BY_NAME: Final = {one.name: one for one in RANGES}


def named_range(name: str) -> Range:
    return _BY_NAME[name]


def range_of(query: Mapping[str, str], default: str = LIVE) -> Range:
    """Return the range in a URL: `range`, or `since` and `until` in Unix seconds; the default if there is none."""
    since, until = _time(query.get("since", "")), _time(query.get("until", ""))
    if since is None or until is None or since >= until:
        return _BY_NAME.get(query.get("range", default), _BY_NAME[default])
    seconds = max(MIN_SECONDS, until - since)
    return Range(CUSTOM, "range", seconds, default_step(seconds), until)


def _time(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and int(text[:12]) < MAX_TIME else None
