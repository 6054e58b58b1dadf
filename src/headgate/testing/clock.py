"""A clock that tests control."""

from __future__ import annotations

import threading


class FakeClock:
    """A clock that moves only by `advance`, or by a limiter's `wait`, which then returns at once."""

    def __init__(self, start: float = 0.0) -> None:
        self._now_us = round(start * 1_000_000)
        self._lock = threading.Lock()

    def advance(self, seconds: float) -> None:
        """Advance the clock; negative seconds turn it back."""
        with self._lock:
            self._now_us += round(seconds * 1_000_000)

    def now(self) -> float:
        """Return the clock's time in seconds."""
        return self._now_us / 1_000_000

    def now_us(self) -> int:
        return self._now_us

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.advance(seconds)
