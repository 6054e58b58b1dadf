"""What a check costs in one of three regions, 150 ms apart, beside the same check where there is only one.

One caller, thread or task, waits for each answer. Turns are short and many: what is done in the background, every
second, and what else the machine is doing falls on all of them alike. What the background takes is a row of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle
from threading import enumerate as all_threads
from time import clock_gettime, perf_counter, pthread_getcpuclockid
from typing import Any

from benchmarks.measure import Turn, interleave
from benchmarks.plan import Plan
from benchmarks.report import Row, Section, Target
from headgate import AsyncLimiter, Limiter, Rule
from tests.continents import APART, NAMES, Continents
from tests.integration.limiters import calm

ALONE = "one region"
LOCAL = ("quota", "quota_auto", "synced")
LIMIT = 1_000_000_000  # not reached
USERS = [f"user-{number}" for number in range(200)]
LATENCY = Target(1.1, at_least=False)
SHORTER = 10  # turns than elsewhere, and so many times as many
BACKGROUND = {"quota_auto": "headgate-shares", "synced": "headgate-counts"}  # how their threads' names begin


def run(plan: Plan) -> Section:
    section = Section(
        "regions",
        "11. Regions: what a check costs in one of three",
        "of one region's",
        notes=[
            f"regions are {APART * 1_000:.0f} ms apart; {len(USERS)} users, of whom all are asked for in every region;",
            "one caller waits for each answer; central pays the distance, on purpose;",
            "in the background: milliseconds of a core per second, for all users.",
        ],
    )
    with Continents() as continents, ExitStack() as stack:
        for name in NAMES[1:]:  # the others have counted, too; what they go on to do is not this region's work
            for mode in LOCAL:
                with Limiter(rules(mode), **continents.options(name)) as limiter:
                    for user in USERS:
                        limiter.check(user=user)
        compare(section, "thread", threads(continents, stack, plan), plan)
        with asyncio.Runner() as runner:
            turns, close = runner.run(tasks(continents, plan, runner))
            compare(section, "asyncio", turns, plan)
            runner.run(close())
    return section


def rules(mode: Any) -> list[Rule]:
    return [Rule(id=mode, quota=calm(LIMIT), regions=mode)]


def options(continents: Continents, mode: str) -> dict[str, Any]:
    if mode == ALONE:
        return {"store": f"{continents.servers['ap'].url}?timeout=0.5"}
    return continents.options("ap")


def compare(section: Section, kind: str, turns: dict[str, Turn], plan: Plan) -> None:
    """Rows of the time that a check takes: first that of one region, and then how many times that the others' are."""
    spent, began = in_background(), perf_counter()
    series = interleave({name: turn for name, turn in turns.items() if name != "central"}, SHORTER * plan.redis_rounds)
    seconds = perf_counter() - began
    alone = series[ALONE]
    section.rows.append(Row(kind, ALONE, alone.median, "µs", alone.spread))
    for name in LOCAL:
        one = series[name]
        section.rows.append(Row(kind, name, one.median, "µs", one.spread, one.times(alone), LATENCY))
    section.rows.append(Row(kind, "central", turns["central"](), "µs"))
    if kind == "thread":
        for name, total in in_background().items():
            section.rows.append(Row("in background", name, 1e3 * (total - spent[name]) / seconds, "ms/s"))


def in_background() -> dict[str, float]:
    """The seconds of a core that threads have spent so far on each way."""
    spent = dict.fromkeys(BACKGROUND, 0.0)
    for thread in all_threads():
        for mode, name in BACKGROUND.items():
            if thread.name.startswith(name) and thread.ident is not None:
                spent[mode] += clock_gettime(pthread_getcpuclockid(thread.ident))
    return spent


def threads(continents: Continents, stack: ExitStack, plan: Plan) -> dict[str, Turn]:
    def turn(limiter: Limiter, seconds: float) -> Turn:
        users = cycle(USERS)

        def microseconds() -> float:
            checks, began = 0, perf_counter()
            while perf_counter() - began < seconds:
                limiter.check(user=next(users))
                checks += 1
            return 1e6 * (perf_counter() - began) / checks

        return microseconds

    return {
        mode: turn(
            stack.enter_context(Limiter(rules(_mode(mode)), **options(continents, mode))),
            1.0 if mode == "central" else plan.redis_seconds / SHORTER,
        )
        for mode in (ALONE, *LOCAL, "central")
    }


async def tasks(
    continents: Continents, plan: Plan, runner: asyncio.Runner
) -> tuple[dict[str, Turn], Callable[[], Any]]:
    limiters = {
        mode: AsyncLimiter(rules(_mode(mode)), **options(continents, mode)) for mode in (ALONE, *LOCAL, "central")
    }

    def turn(limiter: AsyncLimiter, seconds: float) -> Turn:
        users = cycle(USERS)

        async def microseconds() -> float:
            checks, began = 0, perf_counter()
            while perf_counter() - began < seconds:
                await limiter.check(user=next(users))
                checks += 1
            return 1e6 * (perf_counter() - began) / checks

        return lambda: runner.run(microseconds())

    async def close() -> None:
        for limiter in limiters.values():
            await limiter.close()

    seconds = {mode: 1.0 if mode == "central" else plan.redis_seconds / SHORTER for mode in limiters}
    return {mode: turn(limiter, seconds[mode]) for mode, limiter in limiters.items()}, close


def _mode(name: str) -> Any:
    return "separate" if name == ALONE else name
