"""Those who check without a pause while a case does something to the servers: threads, and tasks of an event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any, Self

from headgate import AsyncLimiter, Limiter, Rule
from tests.chaos.case import DEADLINE_MS, OVERTIME_MS, Figures
from tests.chaos.lateness import Wait
from tests.integration.load import BY_STORE, Callers, Entry, Load

TASKS = 10
SLICE = 0.5  # seconds
ENOUGH_CHECKS = 50  # for a p99 that says anything
BEFORE = 1.0  # seconds: whoever is turned away by a breaker is so because of a call before
PAUSE = 0.005

Ask = Callable[[int], dict[str, Any]]  # the facts of a check, by its number


def rules(quotas: dict[str, Any]) -> list[Rule]:
    """A rule for each dimension."""
    return [Rule(id=dimension, quota=quota, dimension=dimension) for dimension, quota in quotas.items()]


class AsyncLoad(Callers):
    """Tasks of one event loop, and so of one AsyncLimiter."""

    def __init__(self, opened: Callable[[], AsyncLimiter], ask: Ask, *, pause: float = PAUSE) -> None:
        super().__init__()
        self._opened, self._ask, self._pause = opened, ask, pause

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._wait = Wait.of_this_thread()
        async with self._opened() as limiter:
            await asyncio.gather(*(self._task(limiter, number) for number in range(TASKS)))

    async def _task(self, limiter: AsyncLimiter, number: int) -> None:
        while not self._stop.is_set():
            waited, began = self._wait.seconds(), time.monotonic()
            try:
                decision = await limiter.check(**self._ask(number))
            except Exception as error:  # noqa: BLE001 - the case counts it
                self.errors.append(error)
            else:
                ended = time.monotonic()
                held_up = self._wait.seconds() - waited
                self.entries.append(Entry(ended, ended - began, decision.reason, decision.allowed, held_up, number))
            number += TASKS + 1  # even and odd in turn
            await asyncio.sleep(self._pause)


class ThreadLoad(Load):
    """A thread that also knows how long it has waited for a processor."""

    def _run(self) -> None:
        self._wait = Wait.of_this_thread()
        super()._run()

    def _held_up(self) -> float:
        return self._wait.seconds()


@contextmanager
def under_load(
    store: str, given: Sequence[Rule], ask: Ask, *, failure_mode: str = "open", pause: float = PAUSE
) -> Iterator[list[Callers]]:
    """A thread with a Limiter, and tasks with an AsyncLimiter; the store decides for both when it begins."""
    with ExitStack() as stack:
        options: dict[str, Any] = {"store": store, "failure_mode": failure_mode}
        limiter = stack.enter_context(Limiter(given, **options))
        loads = [
            ThreadLoad(lambda number: limiter.check(**ask(number)), pause=pause),
            AsyncLoad(lambda: AsyncLimiter(given, **options), ask, pause=pause),
        ]
        began = time.monotonic()
        for load in loads:
            stack.enter_context(load)
        for load in loads:
            load.decided_after(began)
        yield loads


def entries_of(loads: Sequence[Callers], since: float = 0.0, before: float = float("inf")) -> list[Entry]:
    """Checks that began after one moment and ended before another."""
    return [entry for load in loads for entry in load.since(since) if entry.ended < before]


def by_store(entries: Sequence[Entry]) -> int:
    return sum(entry.reason in BY_STORE for entry in entries)


def percentile_ms(entries: Sequence[Entry], share: float) -> float:
    times = sorted(entry.seconds for entry in entries)
    return 1_000 * times[min(len(times) - 1, int(share * len(times)))]


def usual_p99_ms(entries: Sequence[Entry]) -> float:
    """The median of the p99 of each half second: of some of them, the machine was busy with something else."""
    slices: dict[int, list[Entry]] = {}
    for entry in entries:
        slices.setdefault(int(entry.ended / SLICE), []).append(entry)
    return median(percentile_ms(some, 0.99) for some in slices.values() if len(some) >= ENOUGH_CHECKS)


def in_time(figures: Figures, entries: Sequence[Entry], *, servers: bool = False) -> list[Entry]:
    """The same checks, without what the machine was late by; with `servers`, in running them as well."""
    witness = figures.witness

    def late(since: float, until: float) -> float:
        ours = witness.late(since, until)
        return max(ours, witness.servers_late(since, until)) if servers else ours

    return [
        entry._replace(
            seconds=max(0.0, entry.seconds - max(entry.held_up, late(entry.ended - entry.seconds, entry.ended)))
        )
        for entry in entries
    ]


def undecided(figures: Figures, name: str, entries: Sequence[Entry]) -> None:
    """No check may be left to failure modes, but for those in whose time the machine held up us or a server."""
    others = [entry for entry in entries if entry.reason not in BY_STORE]
    excused = sum(figures.witness.was_busy(entry.ended - entry.seconds - BEFORE, entry.ended) for entry in others)
    figures.exactly(name, len(others) - excused)
    if excused:
        figures.note("… and because the machine was late", excused)


def tell(figures: Figures, loads: Sequence[Callers], since: float = 0.0) -> list[Entry]:
    """The figures of every case: no errors, and nobody has waited for too long."""
    entries = entries_of(loads, since)
    figures.note("checks", f"{len(entries):,}")
    figures.exactly("errors to callers", sum(len(load.errors) for load in loads))
    figures.note("p99 of a check", f"{percentile_ms(entries, 0.99):.1f} ms")
    figures.note("slowest check", f"{percentile_ms(entries, 1.0):.1f} ms")
    slowest = percentile_ms(in_time(figures, entries), 1.0)
    figures.within("… but for the machine", slowest, float(DEADLINE_MS + OVERTIME_MS), "ms")
    return entries


class Breakers(logging.Handler):
    """When breakers opened, by time.monotonic. Use as a context manager."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[float] = []
        self._logger = logging.getLogger("headgate.breaker")

    def emit(self, record: logging.LogRecord) -> None:
        if "breaker open" in record.getMessage():
            self.opened.append(time.monotonic())

    def __enter__(self) -> Self:
        self._logger.addHandler(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self._logger.removeHandler(self)
