"""What time it is. Stores read it; nothing else in the engine does."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time that can also pass it. `headgate.testing.FakeClock` is one that a test moves by hand."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return once `seconds` have passed on this clock."""
        ...

    async def sleep_async(self, seconds: float) -> None:
        """Wait until `seconds` have passed on this clock, without blocking the event loop."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
