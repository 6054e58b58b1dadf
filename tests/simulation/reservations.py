"""Unlimited demand for calls that reserve more than they cost, in virtual time.

`python -m tests.simulation.reservations` prints how much passes by each algorithm.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from headgate import Limiter
from headgate.core.quota import BUCKETS, WINDOWS
from headgate.testing import FakeClock

WARM_UP: Final = 10  # minutes
MEASURED: Final = 20


def passed(quota: str, seconds: float, *, estimate: int = 400, cost: int = 100) -> float:
    """Return what calls of so many seconds cost together, a minute: the next one begins as soon as it is allowed."""
    clock = FakeClock(1_700_000_040)
    limiter = Limiter(quota, clock=clock)
    begin = clock.now() + 60 * WARM_UP
    end = begin + 60 * MEASURED
    running: deque[tuple[float, str]] = deque()
    spent = 0
    while clock.now() < end:
        while running and running[0][0] <= clock.now():
            limiter.settle(running.popleft()[1], cost)
            spent += cost if clock.now() >= begin else 0
        reservation = limiter.reserve("alice", cost=estimate, ttl=10 * seconds)
        if reservation:
            running.append((clock.now() + seconds, reservation.id))
            continue
        wait = reservation.decision.retry_after
        assert wait is not None
        clock.advance(min(wait, running[0][0] - clock.now()) if running else wait)
    return spent / MEASURED


if __name__ == "__main__":
    for name in (*BUCKETS, *WINDOWS):
        figures = [passed(f"10000/minute {name}", seconds) for seconds in (20, 60)]
        print(f"{name:24} calls of 20 s: {figures[0]:7,.0f}   of 60 s: {figures[1]:7,.0f}")
    for name in BUCKETS:
        print(f"{name:24} burst 20000, of 60 s: {passed(f'10000/minute burst 20000 {name}', 60):7,.0f}")
