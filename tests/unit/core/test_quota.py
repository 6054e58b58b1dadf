"""Quota and its notation."""

from __future__ import annotations

import math
import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import InvalidQuota, Quota
from headgate.core.quota import BUCKETS, MAX_INT, MAX_WINDOW_US, MIN_WINDOW_US, WINDOWS, duration_text, duration_us

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
        ("5/second quickly", "algorithm: 'quickly' is not known; choose one of fixed_window, sliding_window_log"),
        ("1/year burst 1000", "burst: 1000 would take more than 100 years"),
        (None, "cannot read None"),
        (100, "cannot read 100"),
    ],
)
def test_notation_that_makes_no_quota(notation: Any, complaint: str) -> None:
    with pytest.raises(InvalidQuota) as caught:
        Quota.parse(notation)
    assert complaint in str(caught.value)


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
    assert Quota(10, 1, burst=25, algorithm=algorithm).capacity == (25 if algorithm in BUCKETS else 10)


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
    quota = Quota(limit, timedelta(microseconds=window_us), algorithm=algorithm)
    assert Quota.parse(str(quota)) == quota
