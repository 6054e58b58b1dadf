from __future__ import annotations

import threading
import time
from math import inf

import pytest

from headgate.stores import process_clock
from headgate.stores.process_clock import PROCESS, SLACK_SECONDS, ProcessClock, ThreadClock, acquire

START = 100.0


def test_without_a_promise_it_runs_as_time_does() -> None:
    clock = ProcessClock()
    assert clock.now(START + 7) - clock.now(START) == 7


def test_it_stands_still_while_a_tick_is_overdue() -> None:
    clock = ProcessClock()
    clock.tick(START, START + 1)
    assert [clock.now(START + after) for after in (0.5, 1, 2, 60)] == [START + 0.5, START + 1, START + 1, START + 1]


def test_it_goes_on_when_the_tick_comes() -> None:
    clock = ProcessClock()
    clock.tick(START, START + 1)
    clock.tick(START + 60, START + 61)
    assert clock.now(START + 60) == START + 1
    assert clock.now(START + 60.5) == START + 1.5
    clock.tick(START + 60.75)
    assert clock.now(START + 70) == START + 11


def test_ticks_in_time_change_nothing() -> None:
    clock = ProcessClock()
    for number in range(100):
        clock.tick(START + number, START + number + 1)
    assert clock.now(START + 100) == START + 100


def test_a_thread_that_overslept_tells_it_while_nobody_promises_ticks() -> None:
    clock = ProcessClock()
    clock.overslept(START, START + SLACK_SECONDS)
    assert clock.now(START + 10) == START + 10
    clock.overslept(START, START + SLACK_SECONDS + 3)
    assert clock.now(START + 10) == START + 7


def test_no_moment_counts_twice_whoever_tells_of_it() -> None:
    clock = ProcessClock()
    for end in (3, 3, 2, 5):
        clock.overslept(START, START + SLACK_SECONDS + end)
    assert clock.now(START + 10) == pytest.approx(START + 5)
    clock.tick(START + 10, START + 11)
    clock.overslept(START + 10, START + 20)  # the tick will tell
    assert clock.now(START + 20) == pytest.approx(START + 6)
    clock.tick(START + 20, inf)
    assert clock.now(START + 20) == pytest.approx(START + 6)


def test_a_thread_ticks_it_while_others_wait_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_clock, "WATCH_SECONDS", 0.05)

    def ticking() -> bool:
        return any(thread.name == "headgate-clock" for thread in threading.enumerate())

    clock = ThreadClock()
    for _ in range(2):
        before = clock.read()
        clock.watch()
        assert ticking()
        deadline = time.monotonic() + 30
        while ticking():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert clock.read() > before


def test_a_forked_child_runs_as_time_does() -> None:
    clock = ThreadClock()
    clock.tick(START, START + 1)
    clock.reset_after_fork()
    assert clock.now(START + 60) - clock.now(START) == 60


def test_a_lock_is_waited_for_until_the_deadline() -> None:
    lock = threading.Lock()
    assert acquire(lock, PROCESS.read() + 60)
    began = PROCESS.read()
    assert not acquire(lock, began + 0.05)
    assert PROCESS.read() >= began + 0.05
    threading.Timer(0.05, lock.release).start()
    assert acquire(lock, PROCESS.read() + 60)
