"""Slots beside rates: what acquire and release cost, of CPU time, beside a check by gcra; and units beside requests.

In memory, in one thread, with up to 900 slots held; on Redis, 64 tasks that acquire and release one after the other.
CPU time is what this process used, the server's not. Each figure is the least of some turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import process_time

from benchmarks.plan import Plan
from benchmarks.report import Row, Section, Target
from headgate import AsyncLimiter, Limiter, Rule
from tests.servers import Server

MOST = 2.0  # times a check by gcra, for each of acquire and release
MOST_UNITS = 1.5  # times a check by three rules of one unit, for one by three rules of three
HELD = 900
TASKS = 64
CALLS = 50  # of each task
RATE = [Rule(id="rate", quota="1_000_000_000/hour gcra")]
SLOTS = [Rule(id="slots", quota="1000 concurrent")]


def run(plan: Plan, server: Server) -> Section:
    section = Section("slots", "14. Slots and units: CPU time", "times")
    check, acquire, release = in_memory(plan.memory_rounds)
    section.rows.append(Row("memory", "check, gcra", check, "µs"))
    section.rows.append(_row("memory", "acquire", acquire, check))
    section.rows.append(_row("memory", "release", release, check))
    check, both = asyncio.run(on_redis(server.url, plan.async_rounds))
    section.rows.append(Row("Redis, 64 tasks", "check, gcra", check, "µs"))
    section.rows.append(_row("Redis, 64 tasks", "acquire and release", both, 2 * check))
    one, three = units(plan.memory_rounds)
    section.rows.append(Row("memory, three rules", "check, one unit", one, "µs"))
    target = Target(MOST_UNITS, at_least=False)
    section.rows.append(Row("memory, three rules", "check, three units", three, "µs", 0.0, three / one, target))
    return section


def _row(work: str, name: str, figure: float, beside: float) -> Row:
    return Row(work, name, figure, "µs", 0.0, figure / beside, Target(MOST, at_least=False))


def in_memory(rounds: int) -> tuple[float, float, float]:
    rate, slots = Limiter(RATE), Limiter(SLOTS)
    figures = []
    for _ in range(rounds):
        began = process_time()
        for _ in range(HELD):
            rate.check(user="alice")
        checked = process_time()
        held = [slots.acquire(user="alice") for _ in range(HELD)]
        acquired = process_time()
        for slot in held:
            slot.release()
        figures.append((checked - began, acquired - checked, process_time() - acquired))
    check, acquire, release = (min(times) / HELD * 1e6 for times in zip(*figures, strict=True))
    return check, acquire, release


async def on_redis(url: str, rounds: int) -> tuple[float, float]:
    async with AsyncLimiter(RATE, store=url) as rate, AsyncLimiter(SLOTS, store=url) as slots:

        async def check() -> None:
            await rate.check(user="alice")

        async def hold() -> None:
            async with slots.acquire(user="alice"):
                pass

        await _turn(check), await _turn(hold)
        figures = [(await _turn(check), await _turn(hold)) for _ in range(rounds)]
    return min(one for one, _ in figures), min(two for _, two in figures)


async def _turn(call: Callable[[], Awaitable[None]]) -> float:
    async def task() -> None:
        for _ in range(CALLS):
            await call()

    began = process_time()
    await asyncio.gather(*(task() for _ in range(TASKS)))
    return (process_time() - began) / (TASKS * CALLS) * 1e6


def units(rounds: int) -> tuple[float, float]:
    """Return what a check by three rules of one unit costs, and one by three rules of three units."""
    names = ("requests", "tokens", "usd_micros")
    one = Limiter([Rule(id=name, quota="1_000_000_000/hour gcra") for name in names])
    three = Limiter([Rule(id=name, quota="1_000_000_000/hour gcra", unit=name) for name in names])
    figures = []
    for _ in range(rounds):
        began = process_time()
        for _ in range(HELD):
            one.check(user="alice", cost=5)
        checked = process_time()
        for number in range(HELD):
            three.check(user="alice", cost={"requests": 1, "tokens": 4_000 + number, "usd_micros": 12})
        figures.append((checked - began, process_time() - checked))
    first, second = (min(times) / HELD * 1e6 for times in zip(*figures, strict=True))
    return first, second
