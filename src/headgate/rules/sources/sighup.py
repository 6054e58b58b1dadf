"""SIGHUP: one handler for the whole process, and a thread that runs the callbacks.

The handler only puts a note on a queue that is safe to use in signal handlers: it interrupts the main thread at any
point, perhaps while that holds the lock that a reload needs. Python runs the handler when the main thread next runs
Python code: at once, unless the thread is about to wait, without a timeout, for something outside Python.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from types import FrameType
from typing import Any

log = logging.getLogger("headgate")

_lock = Lock()
_subscribers: list[Callable[[], None]] = []
_notes: SimpleQueue[bool] = SimpleQueue()
_worker: Thread | None = None
_previous: Any = signal.SIG_DFL  # the handler before ours


def subscribe(callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback`, in a thread, whenever the process gets SIGHUP. Return a function that unsubscribes it.

    Call it in the main thread, because Python lets no other thread install handlers. A previous handler is still
    called, and is restored after the last callback unsubscribes.
    """
    global _worker, _previous  # noqa: PLW0603 - a process has one handler for a signal
    with _lock:
        if not _subscribers:
            previous = signal.signal(signal.SIGHUP, _handle)
            if previous is not _handle:  # else it could not be restored the last time
                _previous = previous
        _subscribers.append(callback)
        if _worker is None or not _worker.is_alive():  # threads do not survive a fork
            _worker = Thread(target=_work, name="headgate-sighup", daemon=True)
            _worker.start()

    def unsubscribe() -> None:
        with _lock:
            if callback in _subscribers:
                _subscribers.remove(callback)
                if not _subscribers:
                    _restore()

    return unsubscribe


def _restore() -> None:
    if signal.getsignal(signal.SIGHUP) is not _handle:
        return  # replaced by another handler
    try:
        signal.signal(signal.SIGHUP, _previous)
    except ValueError:
        log.debug("SIGHUP: the handler stays but does nothing: only the main thread can restore the old one")


def _handle(number: int, frame: FrameType | None) -> None:
    _notes.put(True)
    if callable(_previous):
        _previous(number, frame)


def _work() -> None:
    while _notes.get():
        while not _notes.empty():  # several signals, one reload
            _notes.get()
        with _lock:
            subscribers = list(_subscribers)
        for callback in subscribers:
            callback()
