"""Random quotas, times and costs: mostly such as people use, often at the edges of what is allowed."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, NamedTuple, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from headgate.core.quota import BUCKETS, MAX_INT, MAX_REFILL_US, MAX_WINDOW_US, MIN_WINDOW_US, WINDOWS, Quota

T = TypeVar("T")

SECOND = 1_000_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR
YEAR = 365 * DAY
SIX = WINDOWS + BUCKETS
LOG_STEPS = 16_384  # above this limit, a log is kept in steps


def examples(count: int) -> settings:
    """`count` examples by the profile of every day; more, in proportion, by one that tries harder."""
    profile = settings.default
    assert profile is not None, "tests/property/conftest.py loads one"
    return settings(max_examples=max(1, count * profile.max_examples // 100))


def limits() -> SearchStrategy[int]:
    return st.one_of(
        st.integers(1, 10),
        st.sampled_from([30, 60, 100, 1_000, 5_000, LOG_STEPS - 1, LOG_STEPS, LOG_STEPS + 1, 20_000, 1_000_000]),
        st.integers(1, 100_000),
        st.integers(1, MAX_INT),
        st.integers(MAX_INT - 10, MAX_INT),
    )


def windows() -> SearchStrategy[int]:
    """Microseconds."""
    return st.one_of(
        st.sampled_from([SECOND, 60 * SECOND, HOUR, DAY, YEAR]),
        st.integers(MIN_WINDOW_US, MIN_WINDOW_US + 10),
        st.integers(MIN_WINDOW_US, 100 * SECOND),
        st.integers(MIN_WINDOW_US, YEAR),
        st.integers(MAX_WINDOW_US - 10, MAX_WINDOW_US),
    )


@st.composite
def quotas(
    draw: st.DrawFn,
    algorithm: str | None = None,
    *,
    limit: SearchStrategy[int] | None = None,
    window: SearchStrategy[int] | None = None,
) -> Quota:
    """A quota of one algorithm, or of any."""
    name = algorithm or draw(st.sampled_from(SIX))
    n, w = draw(limits() if limit is None else limit), draw(windows() if window is None else window)
    longest = min(MAX_INT, MAX_REFILL_US * n // w)  # the largest burst that refills within 100 years
    bursts = st.one_of(
        st.none(),
        st.integers(1, min(10, longest)),
        st.integers(1, min(2 * n, longest)),
        st.integers(1, longest),
        st.integers(max(1, longest - 10), longest),
    )
    return quota_of(name, n, w, draw(bursts))


def quota_of(algorithm: str, limit: int, window_us: int, burst: int | None = None) -> Quota:
    return Quota(limit, timedelta(microseconds=window_us), burst=burst, algorithm=algorithm)  # type: ignore[arg-type]


class Move(NamedTuple):
    """How far the clock moves, in terms of what is being tested."""

    kind: Literal["us", "units", "eighths", "edge", "wait"]
    amount: int

    def us(self, quota: Quota, now: int, wait: int) -> int:
        """Microseconds: some, so many units' worth, so many eighths of a window, or to around a point in time."""
        window = quota.window_us
        match self.kind:
            case "us":
                return self.amount
            case "units":
                return self.amount * window // quota.limit
            case "eighths":
                return self.amount * window // 8
            case "edge":  # of the window
                return max(0, window - now % window + self.amount)
            case "wait":  # that was announced last
                return max(0, wait + self.amount)


class Cost(NamedTuple):
    """What a check costs, in terms of what is being tested."""

    kind: Literal["units", "remaining", "capacity", "eighths"]
    amount: int

    def of(self, quota: Quota, remaining: int) -> int:
        """From 0 to 2^53-1: so many, around what remained last, around all there is, or eighths of that."""
        capacity = quota.capacity
        match self.kind:
            case "units":
                cost = self.amount
            case "remaining":
                cost = remaining + self.amount
            case "capacity":
                cost = capacity + self.amount
            case "eighths":
                cost = self.amount * capacity // 8
        return min(MAX_INT, max(0, cost))


class Step(NamedTuple):
    """Let time pass, then ask."""

    move: Move
    cost: Cost


# Drawn from lists where that will do: it costs a third of the time of building them, and shrinks as well.
FORWARD = (
    *(Move("us", amount) for amount in (0, 0, 0, 1, 2, 999, 1_000, 1_001, SECOND)),
    *(Move("units", amount) for amount in (1, 2, 3, 5, 12)),
    *(Move("eighths", amount) for amount in (1, 3, 4, 7, 8, 9, 12, 17)),
    *(Move("edge", amount) for amount in (-2, -1, 0, 1)),
    *(Move("wait", amount) for amount in (-1, 0, 0, 1)),
)
BACK = (
    *(Move("us", amount) for amount in (-1, -1_000, -SECOND, -HOUR, -DAY)),
    *(Move("units", amount) for amount in (-1, -3)),
    *(Move("eighths", amount) for amount in (-1, -4, -7, -8, -9, -17)),
)
COSTS = (
    *(Cost("units", amount) for amount in (1, 1, 1, 2, 3, 0)),
    *(Cost("remaining", amount) for amount in (-1, 0, 1, 2)),
    *(Cost("capacity", amount) for amount in (-1, 0, 1)),
    *(Cost("eighths", amount) for amount in (1, 2, 3, 5)),
)


def moves() -> SearchStrategy[Move]:
    """Forward, or not at all."""
    chosen = st.sampled_from(FORWARD)
    return st.one_of(chosen, chosen, st.integers(0, HOUR).map(lambda amount: Move("us", amount)))


def costs() -> SearchStrategy[Cost]:
    chosen = st.sampled_from(COSTS)
    return st.one_of(chosen, chosen, st.integers(0, MAX_INT).map(lambda amount: Cost("units", amount)))


# For the tight quarters: to the very moment at which something leaves, with just as much as there is.
EDGE_MOVES = (
    *(Move("us", amount) for amount in (0, 1)),
    *(Move("eighths", amount) for amount in (1, 3, 4, 5, 7, 8)),
    *(Move("wait", amount) for amount in (-1, 0, 0, 0, 0)),
)
EDGE_COSTS = (
    *(Cost("units", amount) for amount in (1, 1, 1, 2)),
    *(Cost("remaining", amount) for amount in (0, 1, 1)),
    Cost("capacity", 0),
)


def edge_step() -> SearchStrategy[Step]:
    return st.tuples(st.sampled_from(EDGE_MOVES), st.sampled_from(EDGE_COSTS)).map(lambda drawn: Step(*drawn))


def one_step() -> SearchStrategy[Step]:
    return st.tuples(moves(), costs()).map(lambda drawn: Step(*drawn))


def steps(max_size: int = 20) -> SearchStrategy[list[Step]]:
    return sequences(one_step(), max_size)


def sequences(each: SearchStrategy[T], max_size: int) -> SearchStrategy[list[T]]:
    """Short ones and long ones: by itself, Hypothesis hardly ever goes beyond ten."""
    return st.one_of(st.lists(each, max_size=5), st.lists(each, min_size=max_size // 2, max_size=max_size))


def starts() -> SearchStrategy[int]:
    """When an example begins, in microseconds: around these years, and with years of past to go back to."""
    return st.integers(1_600_000_000 * SECOND, 1_800_000_000 * SECOND)
