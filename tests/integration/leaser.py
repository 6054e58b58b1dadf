"""A process that spends leases in bursts. Run by test_leases.py as `python -m`, never collected.

It reads jobs from standard input, as hammer.py does. What it lets in is counted in a file, by window, as it happens: so
it is known of a process that is killed, too.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import random
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from headgate import AsyncLimiter, Limiter, Quota, Rule
from headgate.features.leases.status import LeaseStatus

WINDOWS = 64  # that are counted apart
SIZE = 8 * WINDOWS


class Tally:
    """Counts by window, in the place of one process in a file that all of them share."""

    def __init__(self, job: dict[str, Any]) -> None:
        with Path(job["tally"]).open("r+b") as file:
            self._counts = mmap.mmap(file.fileno(), 0)
        self._start, self._window_us, self._first = job["place"] * SIZE, job["window"] * 1_000_000, job["first"]

    def add(self, at_us: int) -> None:
        at = self._start + 8 * min(WINDOWS - 1, at_us // self._window_us - self._first)
        struct.pack_into("<q", self._counts, at, struct.unpack_from("<q", self._counts, at)[0] + 1)


def rule_of(job: dict[str, Any]) -> Rule:
    quota = Quota(job["limit"], job["window"], algorithm=job["algorithm"])
    return Rule(id=job["rule"], quota=quota, sync="leased", dimension="global")


async def work(job: dict[str, Any]) -> dict[str, Any]:
    """Bursts of so many tasks with so many checks each, and pauses of some length in between."""
    tally, chance, checks = Tally(job), random.Random(job["place"]), 0
    async with AsyncLimiter([rule_of(job)], store=job["url"]) as limiter:

        async def task() -> None:
            nonlocal checks
            for _ in range(job["checks_per_task"]):
                decision = await limiter.check()
                checks += 1
                if decision.allowed:
                    tally.add(decision.at_us)

        await limiter.peek()
        say("ready")
        sys.stdin.readline()
        for _ in range(job["bursts"]):
            await asyncio.sleep(chance.uniform(0, job["pause"]))
            await asyncio.gather(*(task() for _ in range(job["tasks"])))
    return answer(checks, limiter.leases())


def work_in_thread(job: dict[str, Any]) -> dict[str, Any]:
    """The same, by one thread."""
    tally, chance, checks = Tally(job), random.Random(job["place"]), 0
    with Limiter([rule_of(job)], store=job["url"]) as limiter:
        limiter.peek()
        say("ready")
        sys.stdin.readline()
        for _ in range(job["bursts"]):
            limiter.clock.sleep(chance.uniform(0, job["pause"]))
            for _ in range(job["checks_per_task"]):
                decision = limiter.check()
                checks += 1
                if decision.allowed:
                    tally.add(decision.at_us)
    return answer(checks, limiter.leases())


def answer(checks: int, status: LeaseStatus) -> dict[str, Any]:
    return {"checks": checks, "hits": status.hits, "calls": status.calls, "stranded": status.stranded}


def say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        while line := sys.stdin.readline():
            job = json.loads(line)
            say(work_in_thread(job) if job["tasks"] == 0 else asyncio.run(work(job)))
