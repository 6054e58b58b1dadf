"""Limiter and AsyncLimiter behind one face, so that a test of what both promise is written once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from headgate import AsyncLimiter, AsyncReservation, Decision, Limiter, Quota, Reservation, Settlement
from headgate.limiter.prepared_check import NO_SUBJECT

T = TypeVar("T")

ALGORITHMS = (
    "fixed_window",
    "sliding_window_log",
    "sliding_window_counter",
    "token_bucket",
    "leaky_bucket",
    "gcra",
)
DAY = 86_400
HOUR = 3_600
STUCK = 15.0  # seconds after which a call will never return


def calm_window() -> int:
    """A window, in seconds, that neither begins nor ends within an hour of now; it refills hardly anything."""
    now = time.time()
    return next(days * DAY for days in range(366, 300, -1) if HOUR < now % (days * DAY) < days * DAY - HOUR)


def calm(limit: int, algorithm: str = "sliding_window_counter") -> Quota:
    """A quota of which nothing comes back while a test runs; of a bucket, as long as the limit is moderate."""
    return Quota(limit, calm_window(), algorithm=algorithm)  # type: ignore[arg-type]


class AnyLimiter(Protocol):
    """What both have."""

    def check(self, subject: str | int = NO_SUBJECT, /, **facts: Any) -> Decision: ...

    def peek(self, subject: str | int = NO_SUBJECT, /, **facts: Any) -> Decision: ...

    def check_many(self, requests: Iterable[Any]) -> list[Decision]: ...

    def wait(self, subject: str | int = NO_SUBJECT, /, *, timeout: float | None = None, **facts: Any) -> Decision: ...

    def reset(self, subject: str | int = NO_SUBJECT, /, **facts: Any) -> None: ...

    def reset_all(self) -> None: ...

    def reserve(self, subject: str | int = NO_SUBJECT, /, **facts: Any) -> Reservation | AsyncReservation: ...

    def ready(self) -> bool: ...

    def settle(self, reservation_id: str, cost: int) -> Settlement: ...

    def close(self) -> None: ...


class Awaited:
    """An AsyncLimiter whose calls are awaited here, in an event loop of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self.limiter = AsyncLimiter(*args, **options)

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(call, STUCK))

    def check(self, subject: str | int = NO_SUBJECT, /, **facts: Any) -> Decision:
        return self.run(self.limiter.check(subject, **facts))

    def peek(self, subject: str | int = NO_SUBJECT, /, **facts: Any) -> Decision:
        return self.run(self.limiter.peek(subject, **facts))

    def check_many(self, requests: Iterable[Any]) -> list[Decision]:
        return self.run(self.limiter.check_many(requests))

    def wait(self, subject: str | int = NO_SUBJECT, /, *, timeout: float | None = None, **facts: Any) -> Decision:
        return self.run(self.limiter.wait(subject, timeout=timeout, **facts))

    def reserve(self, subject: str | int = NO_SUBJECT, /, **facts: Any) -> AsyncReservation:
        return self.run(self.limiter.reserve(subject, **facts))

    def ready(self) -> bool:
        return self.run(self.limiter.ready())

    def reset(self, subject: str | int = NO_SUBJECT, /, **facts: Any) -> None:
        self.run(self.limiter.reset(subject, **facts))

    def reset_all(self) -> None:
        self.run(self.limiter.reset_all())

    def settle(self, reservation_id: str, cost: int) -> Settlement:
        return self.run(self.limiter.settle(reservation_id, cost))

    def close(self) -> None:
        self.run(self.limiter.close())
        self._runner.close()


class Open:
    """Opens limiters of one kind, and closes them all at the end."""

    def __init__(self, kind: str) -> None:
        self._kind: type[Limiter] | type[Awaited] = {"Limiter": Limiter, "AsyncLimiter": Awaited}[kind]
        self._opened: list[AnyLimiter] = []

    def __call__(self, *args: Any, **options: Any) -> AnyLimiter:
        limiter: AnyLimiter = self._kind(*args, **options)
        self._opened.append(limiter)
        return limiter

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()
