"""SIGHUP: subscribers are called in a thread, and the handler that was there before comes back."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from headgate.rules.sources import sighup


@pytest.fixture(autouse=True)
def handler() -> Iterator[list[int]]:
    """A handler of the process's own, put in place for the test."""
    got: list[int] = []

    def own(number: int, frame: FrameType | None) -> None:
        got.append(number)

    before = signal.signal(signal.SIGHUP, own)
    yield got
    assert signal.getsignal(signal.SIGHUP) is own
    signal.signal(signal.SIGHUP, before)


def hang_up() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


def test_all_subscribers_are_called_in_a_thread_and_the_old_handler_too(handler: list[int]) -> None:
    called = threading.Semaphore(0)
    threads: list[threading.Thread] = []

    def callback() -> None:
        threads.append(threading.current_thread())
        called.release()

    leave = [sighup.subscribe(callback), sighup.subscribe(called.release)]
    hang_up()
    assert called.acquire(timeout=10)
    assert called.acquire(timeout=10)
    assert threads[0] is not threading.main_thread()
    assert handler == [signal.SIGHUP]
    for unsubscribe in leave:
        unsubscribe()
        unsubscribe()


def test_who_has_left_is_called_no_more() -> None:
    gone, here = threading.Event(), threading.Event()
    leave, stay = sighup.subscribe(gone.set), sighup.subscribe(here.set)
    leave()
    hang_up()
    assert here.wait(10)
    assert not gone.is_set()
    stay()


def test_leaving_from_another_thread_harms_nobody(handler: list[int]) -> None:
    leave = sighup.subscribe(lambda: None)
    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    hang_up()
    assert handler == [signal.SIGHUP]
    called = threading.Event()
    leave = sighup.subscribe(called.set)
    hang_up()
    assert called.wait(10)
    assert handler == [signal.SIGHUP] * 2
    leave()


def test_a_handler_that_came_after_ours_stays() -> None:
    leave = sighup.subscribe(lambda: None)
    ours = signal.getsignal(signal.SIGHUP)
    later = signal.SIG_IGN
    signal.signal(signal.SIGHUP, later)
    leave()
    assert signal.getsignal(signal.SIGHUP) is later
    signal.signal(signal.SIGHUP, ours)
    sighup.subscribe(lambda: None)()


def test_it_needs_the_main_thread() -> None:
    raised: list[type[BaseException]] = []

    def elsewhere() -> None:
        try:
            sighup.subscribe(lambda: None)
        except ValueError as error:
            raised.append(type(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert raised == [ValueError]
