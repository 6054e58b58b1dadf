"""What the log says of a store that cannot decide: each turn, but not each of thousands."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from headgate.errors import StoreUnavailable
from headgate.limiter.fallback import SOON, TURNS, Outage
from headgate.testing import FakeClock

ERROR = StoreUnavailable("away")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(0)


@pytest.fixture
def outage(clock: FakeClock) -> Outage:
    return Outage(lambda: clock.now_us() / 1e6)


def test_it_is_told_when_it_begins_and_when_it_ends(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    lasts = []
    for happens in (partial(outage.note_failure, ERROR), outage.note_answer):
        for _ in range(3):
            happens()
            lasts.append(outage.lasts)
    assert lasts == [True] * 3 + [False] * 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]


def test_one_server_of_several_fills_no_log(outage: Outage, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """While it is away, every other check fails."""
    for _ in range(1_000):
        outage.note_failure(ERROR)
        outage.note_answer()
        clock.advance(0.01)
    assert len(caplog.records) == 2 * TURNS - 1
    clock.advance(SOON)
    outage.note_answer()
    assert len(caplog.records) == 2 * TURNS


def test_outages_far_between_are_told_of_each(
    outage: Outage, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        outage.note_failure(ERROR)
        outage.note_answer()
        clock.advance(SOON)
    assert len(caplog.records) == 20


def test_a_probe_ends_an_outage_only_where_no_check_has_failed_lately(outage: Outage, clock: FakeClock) -> None:
    outage.note_failure(ERROR)
    ends = [outage.note_probe()]  # as when the store is full, and only answers those who look
    lasts = [outage.lasts]
    clock.advance(SOON)
    ends += [outage.note_probe(), outage.note_probe()]
    lasts.append(outage.lasts)
    assert (ends, lasts) == ([False, True, False], [True, False])
