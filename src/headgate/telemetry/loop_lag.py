"""Measures the event loop's lag: work that blocks the loop delays every call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from headgate.telemetry.meter import Histogram

INTERVAL: Final = 0.1  # seconds between two samples


async def measure_loop_lag(lags: Histogram, interval: float = INTERVAL) -> None:
    """Record how late a timer fires, in seconds, several times a second, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval
        await asyncio.sleep(interval)
        for lag in lags_of(loop.time() - due, interval):
            lags.add(lag)


def lags_of(late: float, interval: float) -> Iterator[float]:
    """Yield the lag of each sample that was due by now. A very late timer also counts for samples that it missed."""
    late = max(0.0, late)
    yield late
    while late > interval:
        late -= interval
        yield late
