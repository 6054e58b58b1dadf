"""A clock that stands still while this process does not get to run, so that its own lateness trips no deadline.

A machine that is starved of CPU wakes its processes late. Meanwhile, the reply may have arrived, or the server may be
just as late. A deadline by the wall clock would take either for a server that does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Final

from headgate.core.fork import renew_in_children

TICK_SECONDS: Final = 0.01  # between two ticks, while a caller waits
SLACK_SECONDS: Final = 0.002  # by which a tick may be late before that counts
WATCH_SECONDS: Final = 0.5  # for which the thread goes on ticking after the last wait


class ProcessClock:
    """Seconds of time.monotonic, less those in which a promised tick was overdue. Pure; any thread may call.

    Its driver promises each tick beforehand. Without a promise it runs as time.monotonic does.
    """

    __slots__ = ("_lock", "_state")

    def __init__(self) -> None:
        self._lock = Lock()
        self._state = (inf, 0.0, -inf)  # when the next tick is due; how late ticks were in all; until when that counts

    def now(self, at: float) -> float:
        """Return the time of this clock at `at`, of time.monotonic."""
        due, late, _ = self._state
        return (at if at < due else due) - late

    def tick(self, at: float, due: float = inf) -> None:
        """Tick at `at`, and promise the next tick for `due`."""
        with self._lock:
            before, late, counted = self._state
            self._state = (due, *self._add_lateness(before, at, late, counted))

    def overslept(self, due: float, at: float) -> None:
        """Note that a thread which slept until `due` woke at `at`. Has no effect while ticks are promised."""
        with self._lock:
            promised, late, counted = self._state
            if promised == inf:
                self._state = (inf, *self._add_lateness(due + SLACK_SECONDS, at, late, counted))

    @staticmethod
    def _add_lateness(due: float, at: float, late: float, counted: float) -> tuple[float, float]:
        """The lateness in all, with that from `due` to `at`: no moment counts twice."""
        begin = max(due, counted)
        return (late + at - begin, at) if at > begin else (late, counted)

    def reset_after_fork(self) -> None:
        """Reset in a forked child: its parent's threads are not here."""
        _, late, counted = self._state
        self._lock, self._state = Lock(), (inf, late, counted)


class ThreadClock(ProcessClock):
    """The process clock of threads. A thread ticks it while others wait for longer than usual."""

    __slots__ = ("__weakref__", "_ticking", "_until")

    def __init__(self) -> None:
        super().__init__()
        self._until = -inf
        self._ticking = False
        renew_in_children(self)

    def read(self) -> float:
        return self.now(monotonic())

    def watch(self) -> None:
        """Have it tick from now on, for a while."""
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


PROCESS: Final = ThreadClock()  # of all threads of this process


def waits(now: Callable[[], float], deadline: float) -> Iterator[float]:
    """Yield for how many seconds to wait next, again and again until the deadline has passed by the clock `now`.

    Meanwhile, the process clock ticks.
    """
    while (left := deadline - now()) > 0:
        PROCESS.watch()
        yield min(max(left, SLACK_SECONDS), WATCH_SECONDS / 2)


def acquire(lock: Lock, deadline: float) -> bool:
    """Acquire a lock, unless the deadline passes before, by the process clock. Return whether it was acquired."""
    began = monotonic()
    first = min(TICK_SECONDS, max(0.0, deadline - PROCESS.now(began)))
    if lock.acquire(timeout=first):
        return True
    PROCESS.overslept(began + first, monotonic())
    return any(lock.acquire(timeout=seconds) for seconds in waits(PROCESS.read, deadline))
