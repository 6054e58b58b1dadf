"""Windows of the calendar, over 40 years and in ten zones, against an oracle that counts days by itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import example, given
from hypothesis import strategies as st

from headgate import Limiter, Quota
from headgate.core.calendar import PERIODS_US, WEEKDAYS, Calendar, pack, unpack
from headgate.testing import FakeClock

ZONES = [
    *("UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "America/St_Johns", "Asia/Kolkata"),
    *("Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Beirut", "Atlantic/Azores"),
    "Antarctica/Troll",
]
FIRST, LAST = 567_993_600, 1_830_297_600  # 1988 to 2027
DAY = 86_400


def days_of(year: int, month: int, day: int) -> int:
    """Count the days from 1970-01-01 to a date, by the lengths of years and months."""

    def is_leap(y: int) -> bool:
        return y % 4 == 0 and (y % 100 != 0 or y % 400 == 0)

    years = sum(366 if is_leap(y) else 365 for y in range(1970, year))
    return years + sum(length_of(year, m) for m in range(1, month)) + day - 1


def length_of(year: int, month: int) -> int:
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]


def local_seconds(at: int, zone: ZoneInfo) -> int:
    """What the zone's clocks show at a time, as seconds from their 1970-01-01 00:00."""
    offset = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at)).astimezone(zone).utcoffset()
    assert offset is not None
    return at + int(offset.total_seconds())


def first_instant(local: int, zone: ZoneInfo) -> int:
    """When the zone's clocks show a time, or a later one, for the first time: looked for quarter by quarter."""
    at = local - 26 * 3_600
    while local_seconds(at, zone) < local:
        at += 900
    return at


def oracle(calendar: Calendar, at: int) -> tuple[int, int]:
    """When the period begins and ends that a time is in."""
    zone = ZoneInfo(calendar.tz)
    today = local_seconds(at, zone) // DAY
    year = 1970
    while days_of(year + 1, 1, 1) <= today:
        year += 1
    if calendar.period == "year":
        starts = [days_of(y, 1, 1) * DAY for y in (year - 1, year, year + 1, year + 2)]
    elif calendar.period == "month":
        months = [(year + (m - 1) // 12, (m - 1) % 12 + 1) for m in range(-1, 16)]
        starts = [days_of(y, m, min(calendar.anchor, length_of(y, m))) * DAY for y, m in months]
    elif calendar.period == "week":
        first = next(
            day for day in range(today - 10, today) if (day + 3) % 7 == calendar.anchor
        )  # 1970 began on Thursday
        starts = [(first + 7 * week) * DAY for week in range(5)]
    else:
        starts = [day * DAY + calendar.anchor * 3_600 for day in range(today - 3, today + 4)]
    instants = [first_instant(local, zone) for local in starts]
    return max(one for one in instants if one <= at), min(one for one in instants if one > at)


@st.composite
def calendars(draw: st.DrawFn) -> Calendar:
    period = draw(st.sampled_from(["day", "week", "month", "year"]))
    anchors = {"day": st.integers(0, 23), "week": st.sampled_from(WEEKDAYS), "month": st.integers(1, 31)}
    anchor = draw(st.none() | anchors[period]) if period in anchors else None
    return Calendar.of(period, draw(st.sampled_from(ZONES)), anchor)


@given(calendars(), st.integers(FIRST, LAST))
@example(Calendar.of("month", "Europe/Berlin", 31), 1_772_319_600)  # 2026-02-28 24:00 is no 31st
@example(Calendar.of("day", "Europe/Berlin"), 1_774_746_000)  # a day of 23 hours
@example(Calendar.of("day", "Pacific/Apia"), 1_325_239_200)  # the day after which one was left out
@example(Calendar.of("day", "Pacific/Apia", 5), 1_325_239_200)  # five o'clock of the day that was left out
@example(Calendar.of("day", "Antarctica/Troll", 2), 1_806_193_800)  # clocks go forward from 1:00 to 3:00
@example(Calendar.of("day", "Antarctica/Troll", 2), 1_806_195_600)  # that very moment
@example(Calendar.of("day", "America/St_Johns"), 1_162_087_200)  # clocks went back at one past midnight
@example(Calendar.of("day", "America/Sao_Paulo"), 1_540_000_800)  # midnight was left out in November
def test_periods_begin_and_end_where_the_oracle_says(calendar: Calendar, at: int) -> None:
    _, begins, ends, _ = bounds = calendar.bounds(at * 1_000_000)
    assert (begins // 1_000_000, ends // 1_000_000) == oracle(calendar, at)
    assert bounds[0] < begins <= at * 1_000_000 < ends < bounds[3]
    assert unpack(pack(calendar, bounds), PERIODS_US[calendar.period]) == bounds
    assert pack(calendar, bounds) < 2**53


@given(calendars(), st.integers(FIRST, LAST), st.integers(0, 400 * DAY))
def test_a_limiter_counts_by_them_and_announces_their_end(calendar: Calendar, at: int, later: int) -> None:
    anchor, clock = calendar.anchor_text, FakeClock(float(at))
    quota = Quota(3, calendar.period, algorithm="fixed_window", calendar=True, tz=calendar.tz, anchor=anchor)
    limiter = Limiter(quota, clock=clock)
    assert [limiter.check("u").allowed for _ in range(4)] == [True, True, True, False]
    _, ends = oracle(calendar, at)
    refused = limiter.check("u")
    assert (refused.reset_at, refused.retry_after) == (ends, ends - at)
    clock.advance(later)
    _, new_end = oracle(calendar, at + later)
    decision = limiter.check("u")
    assert decision.allowed == (at + later >= ends)
    assert decision.reset_at == new_end
    assert decision.remaining == (2 if decision.allowed else 0)


@given(calendars())
def test_the_notation_is_read_back(calendar: Calendar) -> None:
    quota = Quota(
        5, calendar.period, algorithm="fixed_window", calendar=True, tz=calendar.tz, anchor=calendar.anchor_text
    )
    assert Quota.parse(str(quota)) == quota
