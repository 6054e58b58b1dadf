"""How late the event loop is."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest

from headgate.telemetry.loop_lag import lags_of, measure_loop_lag
from headgate.telemetry.meter import Histogram


@pytest.mark.parametrize(
    ("late", "lags"),
    [(-0.001, [0.0]), (0.0, [0.0]), (0.05, [0.05]), (0.25, [0.25, 0.15, 0.05])],
)
def test_a_late_timer_stands_for_those_that_it_missed(late: float, lags: list[float]) -> None:
    assert list(lags_of(late, 0.1)) == pytest.approx(lags)


def test_what_holds_up_the_loop_is_seen() -> None:
    async def hold_up() -> None:
        measuring = asyncio.create_task(measure_loop_lag(lags, 0.01))
        await asyncio.sleep(0.02)
        time.sleep(0.3)  # noqa: ASYNC251 - that is the point
        await asyncio.sleep(0.02)
        measuring.cancel()
        with suppress(asyncio.CancelledError):
            await measuring

    lags = Histogram((0.2,))
    asyncio.run(hold_up())
    (_, below), (_, all_of_them) = lags.read()[0]
    assert all_of_them > below > 0
