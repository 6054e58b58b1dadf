"""Checks made without a pause while a test does something to the servers, and what came of each."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple, Self

from headgate import Decision

BY_STORE = ("within_limit", "over_limit", "penalty")


class Entry(NamedTuple):
    """One check."""

    ended: float  # by time.monotonic
    seconds: float
    reason: str
    allowed: bool
    held_up: float = 0.0  # seconds of them, in which the thread waited for a processor
    number: int = 0  # of the check, by which its caller knew what to ask


class Callers:
    """Somebody who checks in a thread until told to stop, and what came of it. Use as a context manager."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.entries: list[Entry] = []
        self.errors: list[BaseException] = []

    def _run(self) -> None:
        raise NotImplementedError

    def decided_after(self, moment: float, seconds: float = 15.0) -> float:
        """Wait until the store decides a check that began after `moment`; how long after it that ended."""
        deadline = time.monotonic() + seconds
        at = bisect_left(self.entries, moment, key=attrgetter("ended"))  # whoever looks at all of them is in the way
        while time.monotonic() < deadline:
            new = self.entries[at:]
            at += len(new)
            for entry in new:
                if entry.ended - entry.seconds > moment and entry.reason in BY_STORE:
                    return entry.ended - moment
            time.sleep(0.005)
        raise AssertionError(f"no decision by the store within {seconds} s; errors: {self.errors[:3]}")

    def since(self, moment: float) -> list[Entry]:
        return [entry for entry in list(self.entries) if entry.ended - entry.seconds > moment]

    @property
    def slowest(self) -> float:
        return max(entry.seconds for entry in self.entries)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "a check never returned"


class Load(Callers):
    """Calls `check`, of the number of the call, again and again."""

    def __init__(self, check: Callable[[int], Decision], *, pause: float = 0.001) -> None:
        super().__init__()
        self._check = check
        self._pause = pause

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._pause):
            waited, began = self._held_up(), time.monotonic()
            try:
                decision = self._check(number)
            except Exception as error:  # noqa: BLE001 - the test shows it
                self.errors.append(error)
            else:
                ended = time.monotonic()
                held_up = self._held_up() - waited
                self.entries.append(Entry(ended, ended - began, decision.reason, decision.allowed, held_up, number))
            number += 1

    def _held_up(self) -> float:
        """Seconds so far that the thread has waited for a processor, if anybody wants to know."""
        return 0.0
