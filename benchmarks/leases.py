"""Leased rules beside exact ones, on one hot key and on a Zipf mix of 100,000 keys; and how exact they are.

Throughput is that of one caller, thread or task, who waits for each answer, and of 64 tasks, whose checks
travel together when they are exact. Calls are what Redis has read, by INFO. How much is let in is measured on eight
processes that spend half as much again as the limit, in bursts.
"""

from __future__ import annotations

import asyncio
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate, cycle, islice
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from benchmarks.contenders import AsyncContender, Contender, peers_for
from benchmarks.measure import Series, Turn, interleave
from benchmarks.plan import Plan
from benchmarks.report import Row, Section, Target
from headgate import AsyncLimiter, Decision, Limiter, Quota, Rule
from tests.integration.leaser import SIZE, WINDOWS
from tests.integration.limiters import calm_window
from tests.integration.workers import Workers
from tests.servers import Server

LEASED, EXACT = "headgate, leased", "headgate, exact"
LIMIT = 1_000_000_000  # an hour; not reached
KEYS = 100_000
DRAWN = 1 << 17  # subjects of the mix, which then repeat
TASKS = 64
PROCESSES = 8
SPENT = 100_000  # the limit that is spent by several processes,
SPENT_EXACT = 20_000  # and by those who ask Redis each time
BESIDE = ("limits", "throttled-py")
CHUNK = 50
TIMES = Target(20)
CALLS = Target(0.02, "calls", at_least=False)


Scheduler = Callable[[Iterator[str], float], int]  # checks these subjects for so many seconds; returns how many it did


class Work:
    """The turns of one contender: checks per second, and calls to Redis per check."""

    def __init__(self, check: Scheduler, subjects: list[str], client: Any) -> None:
        self._check = check
        self._subjects = cycle(subjects)
        self._client = client
        self.calls: list[float] = []

    def turn(self, seconds: float) -> Turn:
        def checks_per_second() -> float:
            self._client.flushdb()
            self._check(self._subjects, 0.02)
            self._client.config_resetstat()
            start = perf_counter()
            checks = self._check(self._subjects, seconds)
            spent = perf_counter() - start
            self.calls.append(calls_of(self._client) / checks)
            return checks / spent

        return checks_per_second


def run(plan: Plan, server: Server) -> Section:
    section = Section(
        "leases",
        "8. Leases: one hot key, and a Zipf mix of 100,000 keys",
        "leased is",
        notes=[
            f"{LIMIT}/hour, not reached; one caller waits for each answer, {TASKS} tasks travel together when exact;",
            "calls: how often Redis read something, for each check, by INFO stats, the median of the rounds;",
            f"{PROCESSES} processes try half as many again as a limit in bursts: {SPENT} leased, {SPENT_EXACT} exact.",
        ],
    )
    mix = zipf()
    with server.client() as client:
        for title, subjects in (("hot key", ["user-1"]), ("zipf", mix)):
            for algorithm in ("fixed_window", "gcra"):
                compare(section, f"{algorithm}, {title}, thread", one_thread(algorithm, server), subjects, plan, client)
            for tasks in (1, TASKS):
                name = f"gcra, {title}, {tasks} task{'s' if tasks > 1 else ''}"
                compare(section, name, asyncio_tasks(tasks, server), subjects, plan, client)
    for algorithm in ("fixed_window", "gcra"):
        section.rows += spent(algorithm, server)
    for peer in peers_for("fixed_window"):
        if peer.name in ("headgate", *BESIDE):
            section.rows += spent_exactly(peer.name, server)
    return section


def compare(section: Section, work: str, opened: Any, subjects: list[str], plan: Plan, client: Any) -> None:
    """Rows of throughput, leased first, and of calls. Targets are for one caller on one key."""
    with opened as checks:
        works = {name: Work(check, subjects, client) for name, check in checks.items()}
        turns = {name: one.turn(plan.redis_seconds) for name, one in works.items()}
        series = interleave(turns, plan.lease_rounds)
    aimed = len(subjects) == 1
    section.compare(work, series, {EXACT: TIMES} if aimed and f"{TASKS}" not in work else {})
    for name in works:
        calls = Series(tuple(works[name].calls[1:])).median
        figure, target = (calls, CALLS) if name == LEASED and aimed else (None, None)
        section.rows.append(Row(f"{work}: calls", name, calls, "a check", 0.0, figure, target))


@contextmanager
def one_thread(algorithm: str, server: Server) -> Iterator[dict[str, Scheduler]]:
    limiters = {
        name: Limiter([rule(algorithm, sync)], store=f"{server.url}?timeout=5")
        for name, sync in ((LEASED, "leased"), (EXACT, "exact"))
    }
    peers: dict[str, Contender] = {
        peer.name: peer.redis(algorithm, LIMIT, server.url) for peer in peers_for(algorithm) if peer.name in BESIDE
    }
    checks: dict[str, Callable[[str], object]] = {name: limiter.check for name, limiter in limiters.items()}
    checks |= {name: peer.check for name, peer in peers.items()}
    yield {name: in_turn(check) for name, check in checks.items()}
    for limiter in limiters.values():
        decided(limiter.check("user-1"))
        limiter.close()
    for peer in peers.values():
        peer.close()


def in_turn(check: Callable[[str], object]) -> Scheduler:
    def checks(subjects: Iterator[str], seconds: float) -> int:
        until, count = perf_counter() + seconds, 0
        while perf_counter() < until:
            for subject in islice(subjects, CHUNK):
                check(subject)
            count += CHUNK
        return count

    return checks


@contextmanager
def asyncio_tasks(tasks: int, server: Server) -> Iterator[dict[str, Scheduler]]:
    with asyncio.Runner() as runner:
        limiters = {
            name: AsyncLimiter([rule("gcra", sync)], store=f"{server.url}?timeout=5")
            for name, sync in ((LEASED, "leased"), (EXACT, "exact"))
        }
        peers = {
            peer.name: runner.run(peer.asyncio("gcra", LIMIT, server.url))
            for peer in peers_for("gcra", is_async=True)
            if peer.name in BESIDE
        }

        def together(check: Callable[[str], Awaitable[object]]) -> Scheduler:
            async def task(subjects: Iterator[str], until: float) -> int:
                count = 0
                while perf_counter() < until:
                    for subject in islice(subjects, CHUNK):
                        await check(subject)
                    count += CHUNK
                return count

            async def all_tasks(subjects: Iterator[str], seconds: float) -> int:
                until = perf_counter() + seconds
                return sum(await asyncio.gather(*(task(subjects, until) for _ in range(tasks))))

            return lambda subjects, seconds: runner.run(all_tasks(subjects, seconds))

        yield {name: together(limiter.check) for name, limiter in limiters.items()} | {
            name: together(peer.check) for name, peer in peers.items()
        }
        for limiter in limiters.values():
            decided(runner.run(limiter.check("user-1")))
            runner.run(limiter.close())
        for peer in peers.values():
            runner.run(closed(peer))


async def closed(peer: AsyncContender) -> None:
    await peer.close()


def decided(decision: Decision) -> None:
    """Makes sure that it is the store that decides: a failure mode would be quick."""
    if decision.reason != "within_limit":
        raise RuntimeError(f"it did not decide as it should: {decision.reason}")


def rule(algorithm: str, sync: Any) -> Rule:
    return Rule(id=f"{algorithm}-{sync}", quota=Quota(LIMIT, 3_600, algorithm=algorithm), sync=sync)  # type: ignore[arg-type]


def zipf() -> list[str]:
    """Subjects, the n-th of which is n times less frequent than the first."""
    weights = list(accumulate(1 / rank for rank in range(1, KEYS + 1)))
    return Random(1).choices([f"user-{number}" for number in range(KEYS)], cum_weights=weights, k=DRAWN)


def spent(algorithm: str, server: Server) -> list[Row]:
    """What eight processes let in of one limit."""
    window = calm_window()
    with tempfile.NamedTemporaryFile() as tally, server.client() as client:
        Path(tally.name).write_bytes(bytes(SIZE * PROCESSES))
        client.config_resetstat()
        workers = Workers("tests.integration.leaser", PROCESSES)
        shared = {
            "url": server.url + "?timeout=5",
            "rule": f"spent-{algorithm}",
            "algorithm": algorithm,
            "limit": SPENT,
            "window": window,
            "first": int(time.time()) // window,
            "tally": tally.name,
            "bursts": 5,
            "pause": 0.2,
            "tasks": 0,
            "checks_per_task": SPENT * 3 // 2 // PROCESSES // 5,
        }
        try:
            answers = workers.run([shared | {"place": place} for place in range(PROCESSES)])
        finally:
            workers.close()
        admitted = sum(struct.unpack(f"<{PROCESSES * WINDOWS}q", Path(tally.name).read_bytes()))
        calls = script_calls(client) / sum(answer["checks"] for answer in answers)
    work, over, used = f"{algorithm}, {PROCESSES} processes", max(0, admitted - SPENT), min(admitted, SPENT) / SPENT
    return [
        Row(f"{work}: over-admission", LEASED, over, "checks", 0.0, over, Target(0, "checks", at_least=False)),
        Row(f"{work}: usable", LEASED, 100 * used, "%", 0.0, 100 * used, Target(95, "%")),
        Row(f"{work}: calls", LEASED, calls, "a check", 0.0, calls, Target(0.05, "calls", at_least=False)),
    ]


def spent_exactly(peer: str, server: Server) -> list[Row]:
    """The same of those who ask Redis each time, in windows of an hour."""
    with server.client() as client:
        client.flushdb()
        workers = Workers("benchmarks.spender", PROCESSES)
        shared = {
            "peer": peer,
            "algorithm": "fixed_window",
            "limit": SPENT_EXACT,
            "url": server.url,
            "bursts": 5,
            "pause": 0.2,
            "checks": SPENT_EXACT * 3 // 2 // PROCESSES // 5,
        }
        client.config_resetstat()
        try:
            answers = workers.run([shared | {"place": place} for place in range(PROCESSES)])
        finally:
            workers.close()
        admitted = sum(answer["admitted"] for answer in answers)
        calls = calls_of(client) / sum(answer["checks"] for answer in answers)
    work, name = f"fixed_window, {PROCESSES} processes", EXACT if peer == "headgate" else peer
    return [
        Row(f"{work}: over-admission", name, max(0, admitted - SPENT_EXACT), "checks"),
        Row(f"{work}: usable", name, 100 * min(admitted, SPENT_EXACT) / SPENT_EXACT, "%"),
        Row(f"{work}: calls", name, calls, "a check"),
    ]


def calls_of(client: Any) -> int:
    """How often Redis was called since its statistics were reset, whatever with: by how often it has read something."""
    told: dict[str, int] = client.info("stats")
    return told["total_reads_processed"] - 1  # this one


def script_calls(client: Any) -> int:
    stats: dict[str, dict[str, int]] = client.info("commandstats")
    return sum(stats[name]["calls"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)
