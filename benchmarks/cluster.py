"""Exact checks on a cluster of three servers beside one server, all on this machine, under the same load.

Where a machine is shared by all, three servers are no faster than one; what counts is what a check costs. So the figure
is checks per second of processor time, spent by this process and by the servers together: INFO tells of theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle, islice
from time import perf_counter, process_time
from typing import Any

from benchmarks.leases import zipf
from benchmarks.measure import Turn, interleave
from benchmarks.plan import Plan
from benchmarks.report import Section, Target, server_version
from headgate import AsyncLimiter, Limiter, Quota
from tests.servers import Server
from tests.topologies import Cluster, topology_binary

LIMIT = 1_000_000_000  # an hour; not reached
CLUSTER, SINGLE = "3-node cluster", "one server"
SHARE = Target(0.8)
CHUNK = 50
ALGORITHMS = ("gcra", "fixed_window")

Checks = Callable[[Iterator[str], float], int]  # checks these subjects for so many seconds; returns how many it did


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
    binary = topology_binary()
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
        for algorithm in ALGORITHMS:
            for tasks in (64, 256):
                with ExitStack() as stack:
                    subjects = [f"user-{number}" for number in range(tasks)]
                    opened = of_tasks(servers, algorithm, tasks, stack)
                    compare(section, f"{algorithm}, {tasks} tasks", servers, opened, subjects, plan)
        mixed = {"gcra, zipf, 64 tasks": zipf(), "gcra, hot key, 64 tasks": ["user-1"]}
        for work, subjects in mixed.items():
            with ExitStack() as stack:
                compare(section, work, servers, of_tasks(servers, "gcra", 64, stack), subjects, plan)
        with ExitStack() as stack:
            subjects = [f"user-{number}" for number in range(64)]
            compare(section, "gcra, one thread", servers, of_thread(servers, "gcra", stack), subjects, plan)
    return section


def compare(
    section: Section,
    work: str,
    servers: dict[str, tuple[str, list[Server]]],
    opened: dict[str, Checks],
    subjects: list[str],
    plan: Plan,
) -> None:
    works = {name: Work(servers[name][1], check, subjects) for name, check in opened.items()}
    series = interleave({name: one.turn(plan.async_seconds) for name, one in works.items()}, plan.redis_rounds)
    section.compare(work, series, {SINGLE: SHARE}, "checks/CPU s")
    for one in works.values():
        one.close()


def of_tasks(
    servers: dict[str, tuple[str, list[Server]]], algorithm: str, tasks: int, stack: ExitStack
) -> dict[str, Checks]:
    """So many tasks of one event loop, that take turns with the subjects."""
    runner = stack.enter_context(asyncio.Runner())

    def opened(url: str) -> Checks:
        limiter = AsyncLimiter(Quota(LIMIT, 3_600, algorithm=algorithm), store=f"{url}?timeout=5")
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

    return {name: opened(url) for name, (url, _) in servers.items()}


def of_thread(servers: dict[str, tuple[str, list[Server]]], algorithm: str, stack: ExitStack) -> dict[str, Checks]:
    """One thread, which waits for each answer."""

    def opened(url: str) -> Checks:
        limiter = stack.enter_context(Limiter(Quota(LIMIT, 3_600, algorithm=algorithm), store=f"{url}?timeout=5"))

        def checks(subjects: Iterator[str], seconds: float) -> int:
            until, count = perf_counter() + seconds, 0
            while perf_counter() < until:
                for subject in islice(subjects, CHUNK):
                    limiter.check(subject)
                count += CHUNK
            decided(limiter.check(next(subjects)).reason)
            return count

        return checks

    return {name: opened(url) for name, (url, _) in servers.items()}


def decided(reason: str) -> None:
    """Makes sure that it is the store that decides: a failure mode would be quick."""
    if reason != "within_limit":
        raise RuntimeError(f"it did not decide as it should: {reason}")
