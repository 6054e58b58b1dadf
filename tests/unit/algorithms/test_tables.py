"""Each algorithm by a table of checks, worked out by hand, on the pure functions and through a Limiter on each store.

The table of the buckets is the one that the Go package throttled tests its GCRA with; it holds for all three.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import pytest

from headgate import Limiter, Quota
from headgate.algorithms import (
    ALGORITHMS,
    gcra,
    leaky_bucket,
    sliding_window_counter,
    sliding_window_log,
    token_bucket,
)
from headgate.algorithms.sliding_window_log import MAX_ENTRIES
from headgate.core.check import NEVER
from headgate.core.quota import BUCKETS, WINDOWS
from headgate.testing import FakeClock

START: Final = 1_700_000_000  # seconds; a multiple of ten, where buckets of ten seconds begin
SECOND: Final = 1_000_000


class Row(NamedTuple):
    """One check, and what it is answered. Times are in seconds."""

    now: float
    cost: int
    remaining: int
    reset: float
    retry: float | Literal["never"] | None  # None: allowed


# 1 per second, burst 5: a unit comes back every second.
BUCKET = (
    Row(0, 6, 5, 0, "never"),
    Row(0, 1, 4, 1, None),
    Row(0, 1, 3, 2, None),
    Row(0, 1, 2, 3, None),
    Row(0, 1, 1, 4, None),
    Row(0, 1, 0, 5, None),
    Row(0, 1, 0, 5, 1),
    Row(3.0, 1, 2, 3, None),
    Row(3.1, 1, 1, 3.9, None),
    Row(4.0, 1, 1, 4.0, None),
    Row(8.0, 1, 4, 1, None),
    Row(9.5, 1, 4, 1, None),
    Row(9.5, 0, 4, 1, None),
    Row(9.5, 2, 2, 3, None),
    Row(9.5, 5, 2, 3, 3),
    Row(15.0, 6, 5, 0, "never"),
)

# 5 in every ten seconds: 0-10, 10-20, …
FIXED_WINDOW = (
    Row(0, 6, 5, 0, "never"),
    Row(0, 1, 4, 10, None),
    Row(0, 2, 2, 10, None),
    Row(3, 0, 2, 7, None),
    Row(3, 3, 2, 7, 7),
    Row(3.5, 2, 0, 6.5, None),
    Row(3.5, 0, 0, 6.5, None),
    Row(3.5, 1, 0, 6.5, 6.5),
    Row(9.999999, 1, 0, 0.000001, 0.000001),
    Row(10, 5, 0, 10, None),  # five at the end of one bucket and five at the start of the next
    Row(10, 1, 0, 10, 10),
    Row(19, 6, 0, 1, "never"),
    Row(20, 0, 5, 0, None),
    Row(25, 4, 1, 5, None),
    Row(26, 2, 1, 4, 4),
    Row(40, 0, 5, 0, None),
)

# 5 in any ten seconds. The comments say what is in the log, time:cost.
SLIDING_WINDOW_LOG = (
    Row(0, 6, 5, 0, "never"),
    Row(0, 1, 4, 10, None),  # 0:1
    Row(1, 1, 3, 10, None),  # 0:1 1:1
    Row(2, 2, 1, 10, None),  # 0:1 1:1 2:2
    Row(4, 0, 1, 8, None),
    Row(4, 1, 0, 10, None),  # 0:1 1:1 2:2 4:1
    Row(4, 1, 0, 10, 6),  # until 0:1 leaves
    Row(4, 2, 0, 10, 7),  # until 1:1 leaves too
    Row(4, 5, 0, 10, 10),  # until all have left
    Row(9.999999, 1, 0, 4.000001, 0.000001),
    Row(10, 1, 0, 10, None),  # 1:1 2:2 4:1 10:1
    Row(11, 1, 0, 10, None),  # 2:2 4:1 10:1 11:1
    Row(12, 3, 2, 9, 2),  # 4:1 10:1 11:1, until 4:1 leaves
    Row(14, 3, 0, 10, None),  # 10:1 11:1 14:3
    Row(24, 0, 5, 0, None),
    Row(30, 6, 5, 0, "never"),
)

# 10 in ten seconds, of which the bucket before counts in part. The comments say what counts: before + now.
SLIDING_WINDOW_COUNTER = (
    Row(0, 11, 10, 0, "never"),
    Row(0, 10, 0, 19.000001, None),  # 0 + 10; the last of them counts until 1 s before the next bucket's end
    Row(5, 1, 0, 14.000001, 5.000001),
    Row(10, 1, 0, 9.000001, 0.000001),  # 10 + 0
    Row(10.000001, 1, 0, 9.999999 + 0.000001, None),  # 9 (of 9.999999) + 1
    Row(15, 0, 4, 5.000001, None),  # 5 + 1
    Row(15, 5, 4, 5.000001, 0.000001),
    Row(15, 4, 0, 13.000001, None),  # 5 + 5; in the next bucket, 5 counts until 8 s into it
    Row(20, 0, 5, 8.000001, None),  # 5 + 0
    Row(20, 6, 5, 8.000001, 0.000001),
    Row(24, 7, 0, 14.571429, None),  # 3 + 7; in the next bucket, 7 counts until 10/7 s before its end
    Row(26, 1, 0, 12.750001, None),  # 2 + 8; in the next bucket, 8 counts until 10/8 s before its end
    Row(28, 2, 1, 10.750001, 0.000001),  # 1 + 8
    Row(38, 1, 8, 2.000001, None),  # 1 (of 1.6) + 1
    Row(45, 0, 10, 0, None),  # 0 (of 0.5) + 0
    Row(60, 11, 10, 0, "never"),
)

TABLES: dict[str, tuple[Quota, tuple[Row, ...]]] = {
    **{name: (Quota(1, 1, burst=5, algorithm=name), BUCKET) for name in BUCKETS},
    "fixed_window": (Quota(5, 10, algorithm="fixed_window"), FIXED_WINDOW),
    "sliding_window_log": (Quota(5, 10, algorithm="sliding_window_log"), SLIDING_WINDOW_LOG),
    "sliding_window_counter": (Quota(10, 10, algorithm="sliding_window_counter"), SLIDING_WINDOW_COUNTER),
}

algorithms = pytest.mark.parametrize("algorithm", WINDOWS + BUCKETS)


@algorithms
def test_pure_functions(algorithm: str) -> None:
    quota, table = TABLES[algorithm]
    twin = ALGORITHMS[algorithm]
    state: Any = None
    answers = []
    for row in table:
        now = START * SECOND + round(row.now * SECOND)
        wait, state = twin.admit(state, now, quota, row.cost)
        answers.append((wait, *twin.figures(state, now, quota)))
    assert answers == [(wait_us(row), row.remaining, round(row.reset * SECOND)) for row in table]


@algorithms
@pytest.mark.parametrize("later", [0, 10])
def test_refund_of_a_charge_made_at_the_very_start_of_a_bucket(algorithm: str, later: int) -> None:
    """It belongs to the bucket that begins then: to this one, or to the one before."""
    quota, twin = Quota(10, 10, algorithm=algorithm), ALGORITHMS[algorithm]  # type: ignore[arg-type]
    charged_at, now = START * SECOND, (START + later) * SECOND
    _, state = twin.admit(None, charged_at, quota, 3)
    _, reset = twin.figures(state, charged_at, quota)
    _, state = twin.admit(state, now, quota, 1)
    state = twin.refund(state, now, quota, 3, charged_at, reset)
    assert twin.figures(state, now, quota)[0] == 9


def test_refund_from_the_largest_log_that_keeps_every_entry_by_itself() -> None:
    quota, now = Quota(MAX_ENTRIES, 10, algorithm="sliding_window_log"), START * SECOND + 1
    _, state = sliding_window_log.admit(None, now, quota, 3)
    assert sliding_window_log.refund(state, now, quota, 3, now, 0) is None


def test_refund_from_a_log_whose_clock_went_back_to_the_moment_of_the_charge() -> None:
    quota, now = Quota(10, 10, algorithm="sliding_window_log"), START * SECOND
    state = None
    for moment, cost in ((now, 3), (now + 1, 1), (now, 1)):
        _, state = sliding_window_log.admit(state, moment, quota, cost)
    state = sliding_window_log.refund(state, now, quota, 3, now, 0)
    assert sliding_window_log.figures(state, now, quota) == (8, 10 * SECOND)


NOW: Final = START * SECOND + 5 * SECOND
BURST: Final = {name: Quota(1, 1, burst=5, algorithm=name) for name in BUCKETS}
THREE: Final = Quota(3, 10, algorithm="gcra")


def test_a_part_that_another_limit_left_is_less_than_a_whole() -> None:
    tat = NOW + 6_666_666
    assert gcra.admit((tat, 3), NOW, THREE, 1) == (0, NOW + 10 * SECOND)  # not one third of a microsecond too late
    assert gcra.figures((tat, 3), NOW, THREE) == (1, 6_666_667)


def test_a_leaky_bucket_that_a_larger_burst_filled_is_full_and_no_fuller() -> None:
    assert leaky_bucket.admit((5, 7, NOW), NOW, BURST["leaky_bucket"], 1) == (SECOND, (5, 0, NOW))


def test_a_bucket_of_another_window_that_begins_now_is_not_from_the_future() -> None:
    quota = Quota(10, 10, algorithm="sliding_window_counter")
    assert sliding_window_counter.admit((NOW, 3, 4), NOW, quota, 1) == (0, (START * SECOND, 4, 4))


def test_refunds_of_buckets_keep_parts_unless_the_bucket_is_full() -> None:
    assert leaky_bucket.refund((2, 5, NOW), NOW, BURST["leaky_bucket"], 2, NOW, 2 * SECOND + 5) == (0, 5, NOW)
    assert token_bucket.refund((3, 5, NOW), NOW, BURST["token_bucket"], 1, NOW, 2 * SECOND - 5) == (4, 5, NOW)
    assert token_bucket.refund((3, 5, NOW), NOW, BURST["token_bucket"], 2, NOW, 2 * SECOND - 5) == (5, 0, NOW)
    assert gcra.refund(NOW + 2 * SECOND, NOW, BURST["gcra"], 1, NOW, 2 * SECOND) == NOW + SECOND
    assert gcra.refund((NOW + 5 * SECOND, 1), NOW, THREE, 1, NOW, 5 * SECOND + 1) == NOW + 1_666_667


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def memory_limiter(algorithm: str, clock: FakeClock) -> Limiter:
    return Limiter(TABLES[algorithm][0], clock=clock)


@pytest.fixture
def redis_limiter(algorithm: str, redis_url: str, clock: FakeClock) -> Iterator[Limiter]:
    with Limiter(TABLES[algorithm][0], store=redis_url, clock=clock) as limiter:
        yield limiter


@algorithms
def test_limiter_in_memory(algorithm: str, memory_limiter: Limiter, clock: FakeClock) -> None:
    follow(TABLES[algorithm][1], memory_limiter, clock)


@algorithms
def test_limiter_in_memory_with_two_rules(algorithm: str, clock: FakeClock) -> None:
    """The way of a group, which is not that of a single check: the second rule never binds."""
    quota, table = TABLES[algorithm]
    follow(table, Limiter(f"{quota}; 1_000_000/hour fixed_window", clock=clock), clock)


@algorithms
def test_limiter_on_redis(algorithm: str, redis_limiter: Limiter, clock: FakeClock) -> None:
    follow(TABLES[algorithm][1], redis_limiter, clock)


def follow(table: tuple[Row, ...], limiter: Limiter, clock: FakeClock) -> None:
    for number, row in enumerate(table):
        clock.advance(START + row.now - clock.now())
        decision = limiter.check("alice", cost=row.cost)
        answer = (decision.allowed, decision.remaining, micros(decision.reset_after), micros(decision.retry_after))
        expected = (row.retry is None, row.remaining, micros(row.reset), micros(retry_after(row)))
        assert answer == expected, f"row {number}: {row}"
        assert decision.reset_at == pytest.approx(START + row.now + row.reset, abs=1e-6)


def wait_us(row: Row) -> int:
    if row.retry is None:
        return 0
    return NEVER if row.retry == "never" else round(row.retry * SECOND)


def retry_after(row: Row) -> float | None:
    """As a decision tells it: 0 when allowed, None for never."""
    if row.retry is None:
        return 0.0
    return None if row.retry == "never" else row.retry


def micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * SECOND)
