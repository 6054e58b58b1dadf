"""Calendar windows: days, weeks, months and years of a time zone.

The start of a fixed window follows from the time alone. The start of a month depends on the calendar and on the time
zone's clock changes. The planner computes four boundaries around now and sends them with the check. The store's clock
picks among them, so no client's clock decides. The boundaries are exact while the two clocks differ by less than a
period; beyond them, windows of the outermost length repeat.

The boundaries are packed into one whole number below 2^53, which travels in the place of a bucket's burst. All of them
fall on a quarter of an hour, because every time zone since 1972 differs from UTC by a multiple of 15 minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Final, NamedTuple

from headgate.errors import InvalidQuota

MICROSECONDS: Final = 1_000_000
QUARTER_US: Final = 900 * MICROSECONDS
PERIODS_US: Final = {  # approximate lengths; packed lengths are stored as differences from these
    "day": 86_400 * MICROSECONDS,
    "week": 7 * 86_400 * MICROSECONDS,
    "month": 30 * 86_400 * MICROSECONDS,
    "year": 365 * 86_400 * MICROSECONDS,
}
WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MIDDLE: Final = 256  # the code of a period of exactly the approximate length
_LENGTHS: Final = 512  # number of codes for a length
_AROUND: Final = 4  # periods to compute on either side of a time

Bounds = tuple[int, int, int, int]  # the starts of the previous, the current, the next, and the period after that


class Calendar(NamedTuple):
    """A calendar period in a time zone that begins at an anchor.

    `anchor` is the day of the month from 1 (shorter months begin on their last day), the weekday from 0 for Monday, or
    the hour of the day from 0. A year begins on January 1.
    """

    period: str
    tz: str = "UTC"
    anchor: int = 0

    @classmethod
    def of(cls, period: Any, tz: Any = None, anchor: Any = None) -> Calendar:
        """Return the calendar with these fields. Raises `InvalidQuota`."""
        text = period.strip().lower() if isinstance(period, str) else ""
        if text not in PERIODS_US:
            raise InvalidQuota(f"window: must be one of {', '.join(PERIODS_US)} for a calendar, got {period!r}")
        name = "UTC" if tz is None else tz
        zone_of(name)
        return cls(text, name, _anchor(text, anchor))

    def with_anchor(self, anchor: int | str) -> Calendar | None:
        """Return this calendar with a user's anchor: a day of the month, or a weekday.

        Returns None if the anchor is invalid for its period. No billing period begins at an hour, so days keep theirs.
        """
        try:
            return None if self.period == "day" else self._replace(anchor=_anchor(self.period, anchor))
        except InvalidQuota:
            return None

    @property
    def anchor_text(self) -> int | str | None:
        """The anchor as users write it; None for the default anchor."""
        if self.anchor == _anchor(self.period, None):
            return None
        return WEEKDAYS[self.anchor] if self.period == "week" else self.anchor

    @property
    def length_us(self) -> int:
        """The approximate length of a period."""
        return PERIODS_US[self.period]

    def __str__(self) -> str:
        anchor, zone = self.anchor_text, "" if self.tz == "UTC" else f" tz {self.tz}"
        return f"calendar {self.period}{zone}{'' if anchor is None else f' anchor {anchor}'}"

    def bounds(self, now_us: int) -> Bounds:
        """Return the boundaries around a time. A period that the zone's clock changes skip entirely has no boundary."""
        zone = zone_of(self.tz)
        local = (_EPOCH + timedelta(microseconds=now_us)).astimezone(zone)
        starts = sorted({_instant_us(start, zone) for start in self._starts(local)})
        this = max(index for index, start in enumerate(starts) if start <= now_us)
        before, start, following, last = starts[this - 1 : this + 3]
        return before, start, following, last

    def _starts(self, local: datetime) -> Iterator[datetime]:
        """Yield the local start times, without a zone, of the periods around a time."""
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
    """Pack boundaries into one whole number below 2^53, for `unpack`."""
    packed = bounds[1] // QUARTER_US
    for begin, end in ((bounds[0], bounds[1]), (bounds[1], bounds[2]), (bounds[2], bounds[3])):
        length = (end - begin - calendar.length_us) // QUARTER_US + _MIDDLE
        packed = packed * _LENGTHS + min(max(length, 0), _LENGTHS - 1)
    return packed


@lru_cache(maxsize=4_096)
def unpack(packed: int, period_us: int) -> Bounds:
    """Return the boundaries that `pack` packed, for a period of approximately `period_us`."""
    lengths = []
    for _ in range(3):
        packed, length = divmod(packed, _LENGTHS)
        lengths.append(period_us + (length - _MIDDLE) * QUARTER_US)
    last, this, before = lengths
    start = packed * QUARTER_US
    return start - before, start, start + this, start + this + last


def zone_of(name: Any) -> tzinfo:
    """Return the time zone of this name, for example `Europe/Berlin`. Raises `InvalidQuota`."""
    if name == "UTC":
        return UTC
    import zoneinfo  # noqa: PLC0415 - only calendars in other zones need it

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        hint = "" if zoneinfo.available_timezones() else "; this machine has none: pip install 'headgate[tzdata]'"
        raise InvalidQuota(f"tz: unknown time zone {name!r}; write it like 'Europe/Berlin'{hint}") from None


def _instant_us(local: datetime, zone: tzinfo) -> int:
    """Return the first instant of a local time. A time that a clock change skips maps to the instant of the change."""
    since, second = (local.replace(tzinfo=zone, fold=fold) - _EPOCH for fold in (0, 1))
    if second < since:  # skipped: `since` is not before the change, but may be some time after it
        quarter = timedelta(microseconds=QUARTER_US)
        while (_EPOCH + since - quarter).astimezone(zone).replace(tzinfo=None) >= local:
            since -= quarter
    return since // timedelta(microseconds=1)


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
        raise InvalidQuota(f"anchor: for a week, must be a weekday like 'monday', got {anchor!r}")
    first, last, what = (1, 31, "day of the month") if period == "month" else (0, 23, "hour of the day")
    if anchor is None:
        return first
    if isinstance(anchor, bool) or not isinstance(anchor, int) or not first <= anchor <= last:
        raise InvalidQuota(f"anchor: for a {period}, must be the {what} from {first} to {last}, got {anchor!r}")
    return anchor
