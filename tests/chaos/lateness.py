"""How late the machine was: what it took from callers and servers, which is no fault of theirs.

A check that waits for 200 ms, and is then not woken for 30 more, has not broken its deadline; the machine has. Two
things tell: a thread of this process that asks to be woken every few milliseconds, and so knows how late machine and
interpreter were; and how long a thread or a server has waited for a processor, which Linux counts for each. What is
taken away is what the machine was late by at that very time, and no more: a check that waits for anything else is as
late as it was.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Self

TICK = 0.005  # seconds
LONGEST = 2.0  # seconds: who is later than that is not looked for
SOON = 0.2  # seconds: the deadline of a check
ENOUGH = SOON / 2  # of lateness: then it may be the machine alone that somebody ran out of time


class Wait:
    """How many seconds a thread has waited for a processor so far; always 0 where the kernel does not tell."""

    def __init__(self, process: int, thread: int) -> None:
        self._file = -1
        with suppress(OSError):
            self._file = os.open(Path("/proc", str(process), "task", str(thread), "schedstat"), os.O_RDONLY)

    @classmethod
    def of_this_thread(cls) -> Self:
        return cls(os.getpid(), threading.get_native_id())

    def seconds(self) -> float:
        with suppress(OSError, IndexError):  # there is no such file, or the thread has ended
            return int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        return 0.0

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Stall(NamedTuple):
    """Somebody should have run at `began`, and did at `ended`."""

    began: float
    ended: float


class Witness:
    """Watches how late machine, interpreter and servers are. Use as a context manager."""

    def __init__(self) -> None:
        self._stalls: list[Stall] = []  # of this process, in order
        self._servers: dict[Wait, float] = {}
        self._servers_stalls: list[Stall] = []  # of one server or another, in the order of when they ended
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def watch(self, process: int) -> None:
        """A server, which has to run for anybody to be answered."""
        wait = Wait(process, process)
        self._servers = {**self._servers, wait: wait.seconds()}

    def late(self, since: float, until: float) -> float:
        """By how many seconds in all this process was late between two moments of time.monotonic."""
        return _total(self._stalls, since, until)

    def servers_late(self, since: float, until: float) -> float:
        """The same of the servers."""
        return _total(self._servers_stalls, since, until)

    def was_busy(self, since: float, until: float) -> bool:
        """Whether somebody may have run out of time, between two moments, for the machine alone: within the time of one
        deadline, this process or a server was late by half of it in all."""
        return any(_busiest(stalls, since, until) >= ENOUGH for stalls in (self._stalls, self._servers_stalls))

    @property
    def worst(self) -> float:
        """By how many seconds this process was late at most, at one time."""
        return max((stall.ended - stall.began for stall in self._stalls), default=0.0)

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            if self._stop.wait(TICK):
                return
            ended = time.monotonic()
            if ended - began > 1.1 * TICK:
                self._stalls.append(Stall(began + TICK, ended))
            for wait, before in self._servers.items():
                waited = wait.seconds()
                if waited - before > 0.1 * TICK:
                    self._servers_stalls.append(Stall(ended - (waited - before), ended))
                self._servers[wait] = waited

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        for wait in self._servers:
            wait.close()


def _busiest(stalls: list[Stall], since: float, until: float) -> float:
    """The most that any time of `SOON` has of stalls."""
    ended = attrgetter("ended")
    some = stalls[bisect_left(stalls, since, key=ended) : bisect_left(stalls, until + SOON, key=ended)]
    most = total = 0.0
    first = 0
    for stall in some:
        total += stall.ended - stall.began
        while some[first].ended < stall.ended - SOON:
            total -= some[first].ended - some[first].began
            first += 1
        most = max(most, total)
    return most


def _total(stalls: list[Stall], since: float, until: float) -> float:
    """How much of the time between two moments is of stalls."""
    total = 0.0
    for stall in stalls[bisect_left(stalls, since, key=attrgetter("ended")) :]:
        if stall.ended > until + LONGEST:
            break
        total += max(0.0, min(stall.ended, until) - max(stall.began, since))
    return total
