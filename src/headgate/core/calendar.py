"""Calendar windows: days, weeks, months and years of a time zone.

A fixed window has a start that is worked out from the time alone. Where a month begins depends on the calendar and, by
its clock changes, on the time zone. The planner works out four boundaries around now, and these travel with the check:
the store's clock picks among them, so that no client's clock decides. They are exact as long as the two clocks are not
a whole period apart; further away, windows of the outermost length follow one another.

The boundaries are packed into one whole number below 2^53, which travels where a bucket's burst does: all of them lie
on a quarter of an hour, as every time zone since 1972 is off UTC by a multiple of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Final, NamedTuple

from headgate.errors import InvalidQuota

MICROSECONDS: Final = 1_000_000
QUARTER_US: Final = 900 * MICROSECONDS
PERIODS_US: Final = {  # how long each is about; the packed lengths are what they differ from this by
    "day": 86_400 * MICROSECONDS,
    "week": 7 * 86_400 * MICROSECONDS,
    "month": 30 * 86_400 * MICROSECONDS,
    "year": 365 * 86_400 * MICROSECONDS,
}
WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MIDDLE: Final = 256  # of the numbers that stand for a length
_LENGTHS: Final = 512  # how many there are
_AROUND: Final = 4  # periods to either side that are looked at

Bounds = tuple[int, int, int, int]  # when the period before begins, this one, the next one, and the one after


class Calendar(NamedTuple):
    """A period of the calendar, in a time zone, that begins at an anchor.

    `anchor` is the day of the month from 1 (a month that has no such day begins on its last), the weekday from 0 for
    Monday, or the hour of the day from 0. A year begins on January 1.
    """

    period: str
    tz: str = "UTC"
    anchor: int = 0

    @classmethod
    def of(cls, period: Any, tz: Any = None, anchor: Any = None) -> Calendar:
        """Return the calendar that these fields mean. Raises `InvalidQuota`."""
        text = period.strip().lower() if isinstance(period, str) else ""
        if text not in PERIODS_US:
            raise InvalidQuota(f"window: a calendar has {', '.join(PERIODS_US)}; got {period!r}")
        name = "UTC" if tz is None else tz
        zone_of(name)
        return cls(text, name, _anchor(text, anchor))

    def anchored(self, anchor: int | str) -> Calendar | None:
        """Return this calendar with another anchor; None when that is not an anchor of its period."""
        try:
            return self._replace(anchor=_anchor(self.period, anchor))
        except InvalidQuota:
            return None

    @property
    def anchor_text(self) -> int | str | None:
        """The anchor as users write it; None: that of a calendar without one."""
        if self.anchor == _anchor(self.period, None):
            return None
        return WEEKDAYS[self.anchor] if self.period == "week" else self.anchor

    def __str__(self) -> str:
        anchor, zone = self.anchor_text, "" if self.tz == "UTC" else f" tz {self.tz}"
        return f"calendar {self.period}{zone}{'' if anchor is None else f' anchor {anchor}'}"

    def bounds(self, now_us: int) -> Bounds:
        """Return the boundaries around a time. A period that the zone's clocks leave out altogether is none."""
        zone = zone_of(self.tz)
        local = (_EPOCH + timedelta(microseconds=now_us)).astimezone(zone)
        starts = sorted({_instant_us(start, zone) for start in self._starts(local)})
        this = max(place for place, start in enumerate(starts) if start <= now_us)
        before, start, following, last = starts[this - 1 : this + 3]
        return before, start, following, last

    def _starts(self, local: datetime) -> Iterator[datetime]:
        """Yield the local times at which periods around a time begin, without their zone."""
        near = range(-_AROUND, _AROUND + 1)
        if self.period == "year":
            yield from (datetime(local.year + step, 1, 1) for step in near if local.year + step > 0)
        elif self.period == "month":
            for step in near:
                year, month = divmod(local.year * 12 + local.month - 1 + step, 12)
                following = datetime(year + (month == 11), (month + 1) % 12 + 1, 1)
                last = following - timedelta(days=1)
                yield last.replace(day=min(self.anchor, last.day))
        else:
            days, today = (7 if self.period == "week" else 1), local.date().toordinal()
            hours = self.anchor if self.period == "day" else 0
            if self.period == "week":
                today -= (today - 1 - self.anchor) % 7  # day 1 was a Monday
            for step in near:
                yield datetime.fromordinal(today + days * step) + timedelta(hours=hours)


def pack(calendar: Calendar, bounds: Bounds) -> int:
    """Return boundaries as one whole number below 2^53; `unpack` has them again."""
    packed = bounds[1] // QUARTER_US
    for begin, end in ((bounds[0], bounds[1]), (bounds[1], bounds[2]), (bounds[2], bounds[3])):
        length = (end - begin - PERIODS_US[calendar.period]) // QUARTER_US + _MIDDLE
        packed = packed * _LENGTHS + min(max(length, 0), _LENGTHS - 1)
    return packed


@lru_cache(maxsize=4_096)
def unpack(packed: int, period_us: int) -> Bounds:
    """Return the boundaries that were packed, of a period that is about so long."""
    lengths = []
    for _ in range(3):
        packed, length = divmod(packed, _LENGTHS)
        lengths.append(period_us + (length - _MIDDLE) * QUARTER_US)
    last, this, before = lengths
    start = packed * QUARTER_US
    return start - before, start, start + this, start + this + last


def zone_of(name: Any) -> tzinfo:
    """Return a time zone by its name, as in `Europe/Berlin`. Raises `InvalidQuota`."""
    if name == "UTC":
        return UTC
    import zoneinfo  # noqa: PLC0415 - for those who have calendars in other zones

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        hint = "" if zoneinfo.available_timezones() else "; this machine has none: pip install 'headgate[tzdata]'"
        raise InvalidQuota(f"tz: there is no time zone {name!r}; write it like 'Europe/Berlin'{hint}") from None


def _instant_us(local: datetime, zone: tzinfo) -> int:
    """Return when a local time comes first. One that the zone's clocks leave out comes when they do so."""
    return (local.replace(tzinfo=zone, fold=0) - _EPOCH) // timedelta(microseconds=1)


def _anchor(period: str, anchor: Any) -> int:
    if period == "year":
        if anchor is not None:
            raise InvalidQuota(f"anchor: a calendar year begins on January 1, got {anchor!r}")
        return 0
    if period == "week":
        if anchor is None:
            return 0
        if isinstance(anchor, str) and anchor.lower() in WEEKDAYS:
            return WEEKDAYS.index(anchor.lower())
        raise InvalidQuota(f"anchor: of a week, must be a weekday like 'monday', got {anchor!r}")
    first, last, what = (1, 31, "day of the month") if period == "month" else (0, 23, "hour of the day")
    if anchor is None:
        return first
    if isinstance(anchor, bool) or not isinstance(anchor, int) or not first <= anchor <= last:
        raise InvalidQuota(f"anchor: of a {period}, must be the {what} from {first} to {last}, got {anchor!r}")
    return anchor
