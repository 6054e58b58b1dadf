"""Clocks. Only stores read the time; the rest of the engine does not."""

from __future__ import annotations

import time
from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
    """A clock that can also sleep. `headgate.testing.FakeClock` is a clock that a test advances by hand."""

    def now_us(self) -> int:
        """Return the microseconds since the Unix epoch."""
        ...

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds` on this clock."""
        ...

    async def sleep_async(self, seconds: float) -> None:
        """Sleep for `seconds` on this clock without blocking the event loop."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        import asyncio  # noqa: PLC0415 - threads do not need it, and it is most of what a sync limiter would load

        await asyncio.sleep(seconds)
