"""A clock that a test moves by hand."""

from __future__ import annotations

import threading


class FakeClock:
    """Time that passes only by `advance`, or by a limiter's `wait`, which then returns at once."""

    def __init__(self, start: float = 0.0) -> None:
        self._now_us = round(start * 1_000_000)
        self._lock = threading.Lock()

    def advance(self, seconds: float) -> None:
        """Let time pass; negative seconds turn it back."""
        with self._lock:
            self._now_us += round(seconds * 1_000_000)

    def now(self) -> float:
        """Seconds since the start of time."""
        return self._now_us / 1_000_000

    def now_us(self) -> int:
        return self._now_us

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.advance(seconds)
