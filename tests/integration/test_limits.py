"""The smallest and the largest figures, and those beyond them; and how it all looks by a real clock."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from headgate import Decision, InvalidCheck, InvalidQuota, Limiter, Quota, Rule
from headgate.testing import FakeClock
from tests.integration.limiters import ALGORITHMS, Open, calm

LARGEST = 2**53 - 1
START = 1_700_000_000.123_457


@pytest.mark.parametrize("window", ["1ms", "1y", "366d"])
@pytest.mark.parametrize("limit", [1, 2, LARGEST - 1, LARGEST])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_smallest_and_the_largest_limits_work_in_both_stores(
    redis_url: str, algorithm: str, limit: int, window: str
) -> None:
    quota = Quota(limit, window, algorithm=algorithm)  # type: ignore[arg-type]
    in_memory = life_of(quota, "memory://")
    assert in_memory == life_of(quota, redis_url)
    fresh, most, rest, refused, early, again = in_memory
    assert (fresh.allowed, fresh.remaining, fresh.reset_after) == (True, limit, 0)
    assert (most.allowed, most.remaining) == (True, 1)
    assert (rest.allowed, rest.remaining, rest.limit, rest.state) == (True, 0, limit, "warning")
    assert (refused.allowed, refused.remaining) == (False, 0)
    assert refused.retry_after is not None
    assert 0 < refused.retry_after <= 2 * quota.window
    assert not early
    assert again


def brief(value: object) -> str:
    """An id for a test, however long the value."""
    return repr(value)[:20]


def life_of(quota: Quota, url: str) -> list[Decision]:
    """A key that is used up and comes back: untouched, all but one, all, one more; just too early; in time."""
    clock = FakeClock(START)
    with Limiter(quota, store=url, clock=clock) as limiter:
        decisions = [limiter.peek("alice"), limiter.check("alice", cost=quota.limit - 1)]
        decisions += [limiter.check("alice"), limiter.check("alice")]
        wait = decisions[-1].retry_after
        assert wait is not None
        clock.advance(wait - 0.000_001)
        decisions.append(limiter.check("alice"))
        clock.advance(0.000_001)
        decisions.append(limiter.check("alice"))
    return decisions


NOT_WHOLE = (
    0,
    -1,
    -LARGEST,
    2**53,
    2**64,
    10**400,
    math.nan,
    math.inf,
    -math.inf,
    1.0,
    1.5,
    True,
    False,
    "7",
    b"7",
    [7],
)


@pytest.mark.parametrize("value", [*NOT_WHOLE, None], ids=brief)
def test_a_limit_is_a_whole_number_within_bounds(value: Any) -> None:
    with pytest.raises(InvalidQuota) as caught:
        Quota(value, 60)
    assert str(caught.value).startswith("limit: ")
    assert str(caught.value).endswith(repr(value))


@pytest.mark.parametrize("value", NOT_WHOLE, ids=brief)
def test_a_burst_is_a_whole_number_within_bounds(value: Any) -> None:
    with pytest.raises(InvalidQuota) as caught:
        Quota(7, 60, burst=value, algorithm="gcra")
    assert str(caught.value).startswith("burst: ")
    assert str(caught.value).endswith(repr(value))


def test_a_burst_that_takes_a_century_is_refused() -> None:
    Quota(1, "365d", burst=100, algorithm="gcra")
    with pytest.raises(InvalidQuota, match="burst: 101 would take more than 100 years"):
        Quota(1, "365d", burst=101, algorithm="gcra")


@pytest.mark.parametrize("value", [0.001, "1ms", timedelta(milliseconds=1), 366 * 86_400, "366d", timedelta(days=366)])
def test_the_shortest_and_the_longest_windows(value: Any) -> None:
    assert Quota(1, value).window_us in (1_000, 366 * 86_400 * 1_000_000)


@pytest.mark.parametrize(
    "value",
    [
        *(0, -1, 0.000_999, 366 * 86_400 + 0.001, 1e300, 10**400, math.nan, math.inf, -math.inf, True),
        *("", " ", "0s", "0.9ms", "367d", "-1s", "10", "1e3s", "nan", "1 fortnight", "1s1s", "9" * 400 + "d"),
        *(timedelta(0), timedelta(seconds=-1), timedelta(microseconds=999), timedelta(days=367), b"1s", [1]),
    ],
    ids=brief,
)
def test_a_window_is_a_duration_within_bounds(value: Any) -> None:
    with pytest.raises(InvalidQuota) as caught:
        Quota(7, value)
    assert str(caught.value).startswith("window: ")
    assert repr(value) in str(caught.value)


def test_a_window_must_be_given() -> None:
    with pytest.raises(InvalidQuota, match="window: is missing"):
        Quota(7, None)


@pytest.mark.parametrize(
    "notation",
    [
        *("", " ", ";", "100", "100/", "/minute", "per minute", "100 minute", "100/minute/second", "100//minute"),
        *("0/minute", "-1/minute", "1.5/minute", "nan/minute", "inf/minute", "1e3/minute", f"{2**53}/minute"),
        *("100/fortnight", "100/367d", "100/0.9ms", "100/0s", "100/-1s", "1/" + "9" * 400 + "d"),
        *("100/minute burst", "100/minute burst 0", "100/minute burst x", "100/minute nonsense", "100/minute;"),
        *("_/minute", "_1/minute", "1_/minute", "1__0/minute", "1" * 5_000 + "/minute", "1/minute burst _"),
    ],
    ids=brief,
)
def test_a_notation_that_makes_no_quota_is_quoted_in_the_error(notation: str) -> None:
    with pytest.raises(InvalidQuota) as caught:
        Limiter(notation)
    assert repr(notation.rpartition(";")[2])[1:30] in str(caught.value)


@pytest.mark.parametrize("value", [-1, 2**53, 10**400, 1.0, 1.5, True, False, math.nan, "1", None, [1]], ids=brief)
@pytest.mark.parametrize("where", ["memory", "redis"])
def test_a_cost_is_a_whole_number_within_bounds(redis_url: str, open_limiter: Open, where: str, value: Any) -> None:
    limiter = open_limiter(calm(7), store="memory://" if where == "memory" else redis_url)
    for call in (limiter.check, limiter.peek):
        with pytest.raises(InvalidCheck) as caught:
            call("alice", cost=value)
        assert str(caught.value).startswith("cost: ")
        assert str(caught.value).endswith(repr(value))
    assert limiter.peek("alice").remaining == 7


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("where", ["memory", "redis"])
def test_the_smallest_and_the_largest_costs(redis_url: str, open_limiter: Open, where: str, algorithm: str) -> None:
    limiter = open_limiter(calm(7, algorithm), store="memory://" if where == "memory" else redis_url)
    assert limiter.check("alice", cost=0).remaining == 7
    for cost in (8, LARGEST):
        never = limiter.check("alice", cost=cost)
        assert (never.allowed, never.retry_after, never.remaining) == (False, None, 7)
    assert limiter.check("alice", cost=7).remaining == 0
    looked = limiter.check("alice", cost=0)
    assert (looked.allowed, looked.remaining) == (True, 0)


def test_a_cost_that_a_rule_makes_too_large_is_refused(redis_url: str, open_limiter: Open) -> None:
    limiter = open_limiter([Rule(id="heavy", quota=calm(LARGEST), cost=3)], store=redis_url)
    assert limiter.check(user="alice", cost=LARGEST // 3)
    with pytest.raises(InvalidCheck, match="'heavy'"):
        limiter.check(user="alice", cost=LARGEST // 3 + 1)


N, W = 50, 100_000  # 50 per 100 ms


def test_by_a_real_clock_every_algorithm_keeps_its_law(redis_url: str) -> None:
    """Hammered for half a second; when each check was admitted is told by the store."""
    limiters = {
        (url.split(":")[0], algorithm): Limiter(f"{N}/100ms {algorithm}", store=url, name=algorithm)
        for url in ("memory://", redis_url)
        for algorithm in ALGORITHMS
    }
    admitted: dict[tuple[str, str], list[int]] = {which: [] for which in limiters}
    refused: Counter[tuple[str, str]] = Counter()
    start = time.monotonic()
    while time.monotonic() < start + 0.5 or (
        time.monotonic() < start + 30
        and not all(len(admitted[which]) >= 2 * N and refused[which] for which in limiters)
    ):  # a busy machine takes longer
        for which, limiter in limiters.items():
            for decision in limiter.check_many(["alice"] * 10):
                if decision:
                    admitted[which].append(round((decision.reset_at - decision.reset_after) * 1_000_000))
                else:
                    refused[which] += 1
    for which, limiter in limiters.items():
        limiter.close()
        assert refused[which] > 0
        assert len(admitted[which]) >= 2 * N  # of some 250
        LAWS[which[1]](admitted[which])


# The times come out of floats, which may be off by a microsecond.


def law_of_fixed_window(times: list[int]) -> None:
    assert max(Counter(at // W for at in times).values()) <= N


def law_of_the_log(times: list[int]) -> None:
    for one, later in zip(times, times[N:], strict=False):
        assert later - one >= W - 2


def law_of_the_counter(times: list[int]) -> None:
    for place, at in enumerate(times):
        start = at - at % W
        current = place - bisect_left(times, start)
        previous = bisect_left(times, start) - bisect_left(times, start - W)
        assert previous * (W - (at - start) - 2) // W + current + 1 <= N


def law_of_buckets(times: list[int]) -> None:
    """From any check to any later one, they let in a burst of N, and N per W: `number - time * N / W` rises so far."""
    lowest = math.inf
    for number, at in enumerate(times):
        height = number - (at - times[0]) * N / W
        lowest = min(lowest, height)
        assert height - lowest + 1 <= N + 2 * N / W


LAWS = {
    "fixed_window": law_of_fixed_window,
    "sliding_window_log": law_of_the_log,
    "sliding_window_counter": law_of_the_counter,
    "token_bucket": law_of_buckets,
    "leaky_bucket": law_of_buckets,
    "gcra": law_of_buckets,
}
