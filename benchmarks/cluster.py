"""Exact checks on a cluster of three servers beside one server, all on this machine.

Where a machine is shared by all, three servers are no faster than one; what counts is what a check costs. So the figure
is checks per second of processor time, spent by this process and by the servers together: INFO tells of theirs.

Each work is measured twice: with the same load for each server, which is what a cluster is for, and with the same load
in all, a third of which each of its servers gets. A call to a server costs as much as several checks do, and a third of
the load are calls of a third of the size: the second is the harder one. The target is for both.

Bare calls are those of a client that does nothing but send and read them: what is left is what servers and kernel cost
on a cluster and on one server. They have no target; they tell what a client can reach at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle, islice
from time import perf_counter, process_time
from typing import Any, Literal, NamedTuple

from benchmarks.bare import calls_to, in_batches
from benchmarks.leases import zipf
from benchmarks.measure import Turn, interleave
from benchmarks.plan import Plan
from benchmarks.report import Section, server_version
from headgate import AsyncLimiter, Limiter, Quota
from tests.servers import Server, default_binary
from tests.topologies import Cluster

LIMIT = 1_000_000_000  # an hour; not reached
CLUSTER, SINGLE = "3-node cluster", "one server"
CHUNK = 50

Checks = Callable[[Iterator[str], float], int]  # checks these subjects for so many seconds; returns how many it did


class Load(NamedTuple):
    """What is asked of both: by so many tasks of one event loop, or by one thread."""

    work: str
    algorithm: str
    single: int  # tasks; 0: one thread
    cluster: int
    subjects: Literal["own", "zipf", "one"]  # of each task its own; drawn, of 100,000; the same for all
    bare: bool = False  # by nobody: as many checks at a time as there would be tasks


LOADS = (
    Load("gcra, 64 tasks for each server", "gcra", 64, 192, "own"),
    Load("fixed_window, 64 tasks for each server", "fixed_window", 64, 192, "own"),
    Load("gcra, zipf, 64 tasks for each server", "gcra", 64, 192, "zipf"),
    Load("gcra, hot key, 64 tasks", "gcra", 64, 64, "one"),
    Load("gcra, one thread", "gcra", 0, 0, "own"),
    Load("gcra, 64 tasks", "gcra", 64, 64, "own"),
    Load("gcra, 256 tasks", "gcra", 256, 256, "own"),
    Load("gcra, 1,024 tasks", "gcra", 1_024, 1_024, "own"),
    Load("fixed_window, 64 tasks", "fixed_window", 64, 64, "own"),
    Load("fixed_window, 256 tasks", "fixed_window", 256, 256, "own"),
    Load("gcra, zipf, 64 tasks", "gcra", 64, 64, "zipf"),
    Load("bare calls, gcra, 64 checks for each server", "gcra", 64, 192, "own", bare=True),
    Load("bare calls, gcra, 64 checks", "gcra", 64, 64, "own", bare=True),
    Load("bare calls, fixed_window, 64 checks", "fixed_window", 64, 64, "own", bare=True),
    Load("bare calls, gcra, zipf, 64 checks", "gcra", 64, 64, "zipf", bare=True),
)


class Work:
    """The turns of one of the two: checks per second of processor time."""

    def __init__(self, servers: list[Server], check: Checks, subjects: list[str]) -> None:
        self._clients: list[Any] = [server.client() for server in servers]
        self._check = check
        self._subjects = cycle(subjects)

    def turn(self, seconds: float) -> Turn:
        def checks_per_second_of_work() -> float:
            for client in self._clients:
                client.flushall()
            self._check(self._subjects, 0.02)
            before = self._spent()
            checks = self._check(self._subjects, seconds)
            return checks / (self._spent() - before)

        return checks_per_second_of_work

    def _spent(self) -> float:
        told: list[dict[str, float]] = [client.info("cpu") for client in self._clients]
        return process_time() + sum(one["used_cpu_user"] + one["used_cpu_sys"] for one in told)

    def close(self) -> None:
        for client in self._clients:
            client.close()


def run(plan: Plan) -> Section:
    binary = default_binary()
    section = Section(
        "cluster",
        "9. A cluster of three servers beside one, for the same processor time",
        "the cluster is",
        notes=[
            f"{server_version(binary)}, all on this machine; {LIMIT}/hour, not reached;",
            "checks per second of processor time, that of the servers included.",
        ],
    )
    with Server(binary) as single, Cluster() as cluster:
        servers = {CLUSTER: (cluster.url, cluster.masters), SINGLE: (single.url, [single])}
        drawn = zipf()
        for load in LOADS:
            with ExitStack() as stack:
                runner = stack.enter_context(asyncio.Runner())
                works = {}
                for name, tasks in ((CLUSTER, load.cluster), (SINGLE, load.single)):
                    url, those = servers[name]
                    own = [f"user-{number}" for number in range(tasks or 64)]
                    subjects = {"own": own, "zipf": drawn, "one": own[:1]}[load.subjects]
                    if load.bare:
                        check = of_nobody(those, load.algorithm, subjects, tasks, stack)
                    elif tasks:
                        check = of_tasks(url, load.algorithm, tasks, runner, stack)
                    else:
                        check = of_thread(url, load.algorithm, stack)
                    works[name] = Work(those, check, subjects)
                compare(section, load, works, plan)
    return section


def compare(section: Section, load: Load, works: dict[str, Work], plan: Plan) -> None:
    series = interleave({name: one.turn(plan.async_seconds) for name, one in works.items()}, plan.redis_rounds)
    section.compare(load.work, series, {}, "checks/CPU s")
    for one in works.values():
        one.close()


def of_nobody(servers: list[Server], algorithm: str, subjects: list[str], size: int, stack: ExitStack) -> Checks:
    """Bare calls."""
    checks = calls_to(servers, Quota(LIMIT, 3_600, algorithm=algorithm), in_batches(subjects, size), stack)  # type: ignore[arg-type]
    return lambda _, seconds: checks(seconds)


def of_tasks(url: str, algorithm: str, tasks: int, runner: asyncio.Runner, stack: ExitStack) -> Checks:
    """So many tasks of one event loop, that take turns with the subjects."""
    limiter = AsyncLimiter(Quota(LIMIT, 3_600, algorithm=algorithm), store=f"{url}?timeout=5")  # type: ignore[arg-type]
    stack.callback(lambda: runner.run(limiter.close()))

    async def task(subjects: Iterator[str], until: float) -> int:
        count = 0
        while True:
            decision = await limiter.check(next(subjects))
            count += 1
            if perf_counter() >= until:
                break
        decided(decision.reason)
        return count

    async def all_tasks(subjects: Iterator[str], seconds: float) -> int:
        until = perf_counter() + seconds
        return sum(await asyncio.gather(*(task(subjects, until) for _ in range(tasks))))

    return lambda subjects, seconds: runner.run(all_tasks(subjects, seconds))


def of_thread(url: str, algorithm: str, stack: ExitStack) -> Checks:
    """One thread, which waits for each answer."""
    limiter = stack.enter_context(Limiter(Quota(LIMIT, 3_600, algorithm=algorithm), store=f"{url}?timeout=5"))  # type: ignore[arg-type]

    def checks(subjects: Iterator[str], seconds: float) -> int:
        until, count = perf_counter() + seconds, 0
        while perf_counter() < until:
            for subject in islice(subjects, CHUNK):
                limiter.check(subject)
            count += CHUNK
        decided(limiter.check(next(subjects)).reason)
        return count

    return checks


def decided(reason: str) -> None:
    """Makes sure that it is the store that decides: a failure mode would be quick."""
    if reason != "within_limit":
        raise RuntimeError(f"it did not decide as it should: {reason}")
