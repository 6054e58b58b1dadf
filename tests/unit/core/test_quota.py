"""Quota and its notation."""

from __future__ import annotations

import math
import pickle
import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import InvalidQuota, Quota
from headgate.core.quota import (
    BUCKETS,
    MAX_INT,
    MAX_WINDOW_US,
    MIN_WINDOW_US,
    WINDOWS,
    duration_text,
    duration_us,
)

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("notation", "limit", "window_us", "burst", "algorithm"),
    [
        ("10/second", 10, SECOND, 10, "sliding_window_counter"),
        ("100 per minute", 100, 60 * SECOND, 100, "sliding_window_counter"),
        ("500/15m", 500, 900 * SECOND, 500, "sliding_window_counter"),
        ("100/250ms", 100, 250_000, 100, "sliding_window_counter"),
        ("10/5 minutes", 10, 300 * SECOND, 10, "sliding_window_counter"),
        ("1_000_000/day", 1_000_000, 86_400 * SECOND, 1_000_000, "sliding_window_counter"),
        ("10/second burst 20", 10, SECOND, 20, "token_bucket"),
        ("10/second burst 20 gcra", 10, SECOND, 20, "gcra"),
        ("100/minute gcra", 100, 60 * SECOND, 100, "gcra"),
        ("100/minute sliding_window", 100, 60 * SECOND, 100, "sliding_window_counter"),
        ("  5/HOUR  fixed_window ", 5, 3600 * SECOND, 5, "fixed_window"),
        ("1/1.5s", 1, 1_500_000, 1, "sliding_window_counter"),
        ("1/year", 1, 365 * 86_400 * SECOND, 1, "sliding_window_counter"),
        ("9007199254740991/ms", MAX_INT, 1_000, MAX_INT, "sliding_window_counter"),
        ("5 concurrent", 5, 60 * SECOND, 5, "concurrency"),
        (" 1_000 CONCURRENT  ttl 1.5m", 1_000, 90 * SECOND, 1_000, "concurrency"),
    ],
)
def test_notation(notation: str, limit: int, window_us: int, burst: int, algorithm: str) -> None:
    quota = Quota.parse(notation)
    assert (quota.limit, quota.window_us, quota.burst, quota.algorithm) == (limit, window_us, burst, algorithm)


@pytest.mark.parametrize(
    ("notation", "complaint"),
    [
        ("", "cannot read ''"),
        ("100", "cannot read '100'"),
        ("100/", "cannot read"),
        ("/minute", "cannot read"),
        ("-5/minute", "cannot read"),
        ("1.5/minute", "cannot read"),
        ("NaN/minute", "cannot read"),
        ("100/minute burst", "burst"),
        ("100/minute gcra gcra", "cannot read"),
        ("0/minute", "limit: must be a whole number from 1 to 2^53-1, got 0"),
        ("9007199254740992/minute", "limit: must be a whole number from 1 to 2^53-1, got 9007199254740992"),
        ("5/second burst 0", "burst: must be a whole number from 1"),
        ("5/fortnight", "window: cannot read 'fortnight'"),
        ("5/0.5ms", "window: must be from 1 ms to 366 days, got '0.5ms'"),
        ("5/0s", "window: must be from 1 ms"),
        ("5/2 years", "window: must be from 1 ms to 366 days"),
        (
            "5/second quickly",
            "'quickly' (character 10): expected 'burst' and a number, or an algorithm (fixed_window",
        ),
        ("10/second brust 20", "'brust' (character 11); did you mean 'burst'?"),
        ("10/second brust", "'brust' (character 11); did you mean 'burst'?"),
        ("10 pre second", "'pre' (character 4); did you mean 'per'?"),
        ("10 second", "'second' (character 4): expected '/', 'per' or 'concurrent'"),
        ("10 concurent", "'concurent' (character 4); did you mean 'concurrent'?"),
        ("10 concurrent tll 60s", "'tll' (character 15); did you mean 'ttl'?"),
        ("ten/second", "'ten' (character 1): expected a whole number"),
        ("10/secnod", "window: cannot read 'secnod' as a duration; did you mean 'second'?"),
        ("10/Minute Token_Bukcet", "'Token_Bukcet' (character 11); did you mean 'token_bucket'?"),
        (
            "10/minute gcra burst 20",
            "'burst' (character 16): nothing may follow the algorithm: a burst comes before it",
        ),
        ("10/minute burst many", "'many' (character 17): expected a whole number, as in 'burst 20'"),
        ("10 per", "it ends too early, expected a window like '15m'"),
        ("10/minute token-bucket", "'token-bucket' (character 11); did you mean 'token_bucket'?"),
        ("10/second, 5/minute", "join several with ';'"),
        ("10/second burst 20, 5/minute", "join several with ';'"),
        ("10/second and 5/minute", "join several with ';'"),
        ("1,000/minute", "',000' (character 2): expected '/'"),
        (" ", "it is empty"),
        ("1/year burst 1000", "burst: 1000 would take more than 100 years"),
        (None, "cannot read None"),
        (100, "cannot read 100"),
    ],
)
def test_notation_that_makes_no_quota(notation: Any, complaint: str) -> None:
    with pytest.raises(InvalidQuota) as caught:
        Quota.parse(notation)
    assert complaint in str(caught.value)


def test_a_burst_without_an_algorithm_means_a_bucket_as_in_the_notation() -> None:
    assert Quota(10, "1s", burst=50) == Quota.parse("10/second burst 50")
    assert Quota(10, "1s", burst=50).capacity == 50
    assert Quota(10, "1s", burst=50, algorithm="gcra").algorithm == "gcra"
    assert Quota(10, "1s").algorithm == "sliding_window_counter"


def test_a_mistyped_algorithm_gets_the_nearest() -> None:
    with pytest.raises(InvalidQuota, match="algorithm: 'sliding_log' is not known; did you mean 'sliding_window_log'"):
        Quota(10, "1s", algorithm="sliding_log")  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [0, -1, 2**53, 2**64, 1.0, 1.5, math.nan, math.inf, True, "5", None])
@pytest.mark.parametrize("field", ["limit", "burst"])
def test_figures_that_make_no_quota(field: str, limit: Any) -> None:
    if field == "burst" and limit is None:
        assert Quota(5, 1, burst=None).burst == 5
        return
    with pytest.raises(InvalidQuota) as caught:
        Quota(limit, 60) if field == "limit" else Quota(5, 60, burst=limit)
    assert str(caught.value).startswith(f"{field}: must be a whole number from 1 to 2^53-1")
    assert repr(limit) in str(caught.value)


@pytest.mark.parametrize(
    "window", [0, 0.0005, -1, math.nan, math.inf, True, None, "1", "minutes 5", 367 * 86_400, [60]]
)
def test_windows_that_make_no_quota(window: Any) -> None:
    with pytest.raises(InvalidQuota, match=r"^window: "):
        Quota(5, window)


@pytest.mark.parametrize("window", [60, 60.0, "60s", "1m", "1 minute", "minute", timedelta(minutes=1)])
def test_windows_in_many_ways(window: float | str | timedelta) -> None:
    assert Quota(5, window) == Quota(5, 60)


def test_several_joined() -> None:
    assert Quota.parse_all("10/second; 100/minute gcra") == [Quota(10, 1), Quota(100, 60, algorithm="gcra")]
    with pytest.raises(InvalidQuota):
        Quota.parse_all("10/second;")


@pytest.mark.parametrize("algorithm", [*WINDOWS, *BUCKETS])
def test_capacity_is_what_remaining_counts_down_from(algorithm: str) -> None:
    assert Quota(10, 1, burst=25, algorithm=algorithm).capacity == (25 if algorithm in BUCKETS else 10)  # type: ignore[arg-type]


def test_quotas_are_values() -> None:
    quota = Quota(10, 1, burst=20, algorithm="gcra")
    assert quota == Quota(10, "1s", burst=20, algorithm="gcra")
    assert hash(quota) == hash(Quota(10, "1s", burst=20, algorithm="gcra"))
    assert quota != Quota(10, 1, burst=21, algorithm="gcra")
    assert pickle.loads(pickle.dumps(quota)) == quota
    assert "limit=10" in repr(quota)
    with pytest.raises(AttributeError):
        quota.limit = 5  # type: ignore[misc]


@given(st.integers(MIN_WINDOW_US, MAX_WINDOW_US))
def test_durations_read_back(us: int) -> None:
    assert duration_us(duration_text(us)) == us


@given(st.integers(1, MAX_INT), st.integers(MIN_WINDOW_US, MAX_WINDOW_US), st.sampled_from([*WINDOWS, *BUCKETS]))
def test_text_of_a_quota_reads_back(limit: int, window_us: int, algorithm: str) -> None:
    quota = Quota(limit, timedelta(microseconds=window_us), algorithm=algorithm)  # type: ignore[arg-type]
    assert Quota.parse(str(quota)) == quota


def test_the_parts_of_a_calendar_come_in_any_order() -> None:
    written = "50/calendar week tz America/New_York anchor sunday"
    assert Quota.parse("50/calendar week anchor sunday tz America/New_York") == Quota.parse(written)
    assert str(Quota.parse(written)) == written


@pytest.mark.parametrize(
    ("notation", "message"),
    [
        ("5/calendar month burst 3", "'burst': after 'calendar month', expected 'tz' and a time zone"),
        ("5/calendar day anchor 06:00", "anchor: for a day, must be the hour of the day from 0 to 23, got '06:00'"),
        ("5/calendar day tz UTC tz UTC", "'tz': after 'calendar day', expected"),
        ("5/calendar day tz", "tz: unknown time zone ''"),
        ("5/calendar month gcra", "calendar: a gcra has no windows that begin with a day or a month"),
    ],
)
def test_what_a_calendar_cannot_have_is_named(notation: str, message: str) -> None:
    with pytest.raises(InvalidQuota, match=re.escape(message)):
        Quota.parse(notation)


def test_a_mistyped_calendar_is_pointed_at() -> None:
    with pytest.raises(InvalidQuota, match=r"'calender' \(character 4\); did you mean 'calendar'\?"):
        Quota.parse("10/calender month")
