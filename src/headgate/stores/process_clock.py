"""A clock that stands still while this process cannot run, so that its own delays do not exceed deadlines.

A machine that is short of CPU wakes its processes late. By then, the reply may have arrived, or the server may be just
as late. A deadline by the wall clock would treat both as a server that does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Final

from headgate.core.fork import renew_in_children

TICK_SECONDS: Final = 0.01  # between two ticks, while a caller waits
SLACK_SECONDS: Final = 0.002  # how late a tick may be before its lateness counts
WATCH_SECONDS: Final = 0.5  # how long the thread keeps ticking after the last wait


class ProcessClock:
    """Seconds of time.monotonic, without those in which a promised tick was overdue. Pure; any thread may call it.

    Its driver promises each tick in advance. Without a promise, it runs like time.monotonic.
    """

    __slots__ = ("_lock", "_state")

    def __init__(self) -> None:
        self._lock = Lock()
        self._state = (inf, 0.0, -inf)  # when the next tick is due; total lateness; until when lateness was counted

    def now(self, at: float) -> float:
        """Return the time of this clock at the time.monotonic time `at`."""
        due, late, _ = self._state
        return (at if at < due else due) - late

    def tick(self, at: float, due: float = inf) -> None:
        """Tick at `at`, and promise the next tick for `due`."""
        with self._lock:
            before, late, counted = self._state
            self._state = (due, *self._add_lateness(before, at, late, counted))

    def overslept(self, due: float, at: float) -> None:
        """Record that a thread that slept until `due` woke at `at`. Has no effect while ticks are promised."""
        with self._lock:
            promised, late, counted = self._state
            if promised == inf:
                self._state = (inf, *self._add_lateness(due + SLACK_SECONDS, at, late, counted))

    @staticmethod
    def _add_lateness(due: float, at: float, late: float, counted: float) -> tuple[float, float]:
        """Return the total lateness including that from `due` to `at`, without counting any moment twice."""
        begin = max(due, counted)
        return (late + at - begin, at) if at > begin else (late, counted)

    def reset_after_fork(self) -> None:
        """Reset in a forked child, which does not have its parent's threads."""
        _, late, counted = self._state
        self._lock, self._state = Lock(), (inf, late, counted)


class ThreadClock(ProcessClock):
    """The process clock for threads. A thread ticks it while others wait longer than usual."""

    __slots__ = ("__weakref__", "_ticking", "_until")

    def __init__(self) -> None:
        super().__init__()
        self._until = -inf
        self._ticking = False
        renew_in_children(self)

    def read(self) -> float:
        return self.now(monotonic())

    def watch(self) -> None:
        """Start ticking, for a while."""
        self._until = monotonic() + WATCH_SECONDS
        if not self._ticking and self._begin():
            Thread(target=self._run, name="headgate-clock", daemon=True).start()

    def _begin(self) -> bool:
        """Claim the ticking. Returns False if another thread has claimed it."""
        with self._lock:
            began, self._ticking = self._ticking, True
        return not began

    def reset_after_fork(self) -> None:
        super().reset_after_fork()
        self._ticking = False

    def _run(self) -> None:
        at = monotonic()
        while at < self._until:
            self.tick(at, at + TICK_SECONDS + SLACK_SECONDS)
            sleep(TICK_SECONDS)
            at = monotonic()
        self.tick(at)
        self._ticking = False


PROCESS: Final = ThreadClock()  # for all threads of this process


def waits(now: Callable[[], float], deadline: float) -> Iterator[float]:
    """Yield the seconds to wait next, until the deadline has passed by the clock `now`.

    The process clock ticks in the meantime.
    """
    while (left := deadline - now()) > 0:
        PROCESS.watch()
        yield min(max(left, SLACK_SECONDS), WATCH_SECONDS / 2)


def acquire(lock: Lock, deadline: float) -> bool:
    """Acquire a lock before the deadline, by the process clock. Return whether it was acquired."""
    began = monotonic()
    first = min(TICK_SECONDS, max(0.0, deadline - PROCESS.now(began)))
    if lock.acquire(timeout=first):
        return True
    PROCESS.overslept(began + first, monotonic())
    return any(lock.acquire(timeout=seconds) for seconds in waits(PROCESS.read, deadline))
