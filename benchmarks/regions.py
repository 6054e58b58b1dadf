"""What a check costs in one of three regions, 150 ms apart, beside the same check where there is only one.

Each way is a process of its own, as it would be: its checks share it with what is done for them in the background,
and with nothing else. The other regions, and the distance, are in this process. A turn lasts for an interval, so that
each has its part of the background. One caller, thread or task, waits for each answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import perf_counter, process_time, thread_time
from typing import Any, NamedTuple, Self

from benchmarks.measure import interleave
from benchmarks.plan import Plan
from benchmarks.report import Row, Section, Target
from headgate import AsyncLimiter, Limiter, Rule
from tests.continents import APART, NAMES, Continents
from tests.integration.limiters import calm

ALONE = "one region"
AGAIN = "one region, again"  # what the machine itself makes of two that are the same
LOCAL = ("quota", "quota_auto", "synced")
LIMIT = 1_000_000_000  # not reached
USERS = [f"user-{number}" for number in range(200)]
LATENCY = Target(1.1, at_least=False)
LONGER = 3.5  # than a turn of other sections: somewhat more than an interval of a second
CONTEXT = get_context("spawn")


class Spent(NamedTuple):
    """Of one turn."""

    microseconds: float  # per check
    background: float  # milliseconds of a core per second; with asyncio it cannot be told from the rest


def run(plan: Plan) -> Section:
    section = Section(
        "regions",
        "11. Regions: what a check costs in one of three",
        "of one region's",
        notes=[
            f"regions are {APART * 1_000:.0f} ms apart; {len(USERS)} users, of whom all are asked for in every region;",
            "one caller waits for each answer; central pays the distance, on purpose;",
            "in the background: milliseconds of a core per second, for all users, included in the times above.",
        ],
    )
    with Continents() as continents, ExitStack() as stack:
        for name in NAMES[1:]:  # the others have users, too
            for mode in LOCAL:
                limiter = stack.enter_context(Limiter(rules(mode), **continents.options(name)))
                for user in USERS:
                    limiter.check(user=user)
        for kind, work in (("thread", in_thread), ("asyncio", in_asyncio)):
            compare(section, kind, work, continents, plan)
    return section


def rules(mode: Any) -> list[Rule]:
    return [Rule(id=mode, quota=calm(LIMIT), regions=mode)]


def compare(section: Section, kind: str, work: Work, continents: Continents, plan: Plan) -> None:
    """Rows of the time that a check takes: first that of one region, and then how many times that the others' are."""
    seconds = LONGER * plan.redis_seconds
    with ExitStack() as stack:
        ways = {
            name: stack.enter_context(LimitProgram(work, name, options(continents, name)))
            for name in (ALONE, AGAIN, *LOCAL, "central")
        }
        central = ways.pop("central").turn(1.0)
        series = interleave({name: partial(way.turn, seconds) for name, way in ways.items()}, plan.redis_rounds)
    alone = series[ALONE]
    section.rows.append(Row(kind, ALONE, alone.median, "µs", alone.spread))
    for name in (AGAIN, *LOCAL):
        one, target = series[name], LATENCY if name in LOCAL else None
        section.rows.append(Row(kind, name, one.median, "µs", one.spread, one.times(alone), target))
    section.rows.append(Row(kind, "central", central, "µs"))
    if kind == "thread":
        for name in LOCAL:
            section.rows.append(Row("in the background", name, ways[name].background, "ms/s"))


def options(continents: Continents, name: str) -> dict[str, Any]:
    if name in (ALONE, AGAIN):
        return {"store": f"{continents.servers['ap'].url}?timeout=0.5"}
    return continents.options("ap")


class LimitProgram:
    """A process that checks in one way, when it has its turn. Use as a context manager."""

    def __init__(self, work: Work, name: str, limiter: dict[str, Any]) -> None:
        self._turns, self._theirs = CONTEXT.Pipe()
        mode = "separate" if name in (ALONE, AGAIN) else name
        self._process = CONTEXT.Process(target=work, args=(self._theirs, mode, limiter), daemon=True)
        self._spent: list[float] = []

    def turn(self, seconds: float) -> float:
        """Microseconds per check."""
        self._turns.send(seconds)
        told: Spent = self._turns.recv()
        self._spent.append(told.background)
        return told.microseconds

    @property
    def background(self) -> float:
        """Milliseconds of a core per second, on the average of the turns."""
        return sum(self._spent) / len(self._spent)

    def __enter__(self) -> Self:
        self._process.start()
        self._theirs.close()  # so that nobody waits for the answer of a process that has died
        return self

    def __exit__(self, *exc: object) -> None:
        with suppress(OSError):
            self._turns.send(None)
        self._process.join()


Work = Callable[[Connection, str, dict[str, Any]], None]


def in_thread(turns: Connection, mode: str, options: dict[str, Any]) -> None:
    users = cycle(USERS)
    with Limiter(rules(mode), **options) as limiter:
        while (seconds := turns.recv()) is not None:
            stopwatch = Stopwatch()
            while stopwatch.seconds < seconds:
                limiter.check(user=next(users))
                stopwatch.checks += 1
            turns.send(stopwatch.spent)


def in_asyncio(turns: Connection, mode: str, options: dict[str, Any]) -> None:
    asyncio.run(_in_asyncio(turns, mode, options))


async def _in_asyncio(turns: Connection, mode: str, options: dict[str, Any]) -> None:
    users = cycle(USERS)
    async with AsyncLimiter(rules(mode), **options) as limiter:
        while (seconds := await asyncio.to_thread(turns.recv)) is not None:
            stopwatch = Stopwatch()
            while stopwatch.seconds < seconds:
                await limiter.check(user=next(users))
                stopwatch.checks += 1
            turns.send(stopwatch.spent)


class Stopwatch:
    """Counts checks, and the time that they take."""

    def __init__(self) -> None:
        self.checks = 0
        self._began, self._others = perf_counter(), process_time() - thread_time()

    @property
    def seconds(self) -> float:
        return perf_counter() - self._began

    @property
    def spent(self) -> Spent:
        seconds, others = self.seconds, process_time() - thread_time() - self._others
        return Spent(1e6 * seconds / self.checks, 1e3 * others / seconds)
