"""A process that checks one key from many tasks or threads at once, its first call included. Run as `python -m`.

It reads jobs from standard input, one JSON object per line, and answers each twice: `"ready"` before it has made a
call, and, after a line that says to start, how often each reason was given and how long the checks took.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from threading import Barrier, Thread
from typing import Any

from headgate import AsyncLimiter, Limiter, Quota

SUBJECT = "everybody"


class Tally:
    """What came of the checks of one process."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.times: list[float] = []

    def answer(self) -> dict[str, Any]:
        times = sorted(self.times)
        return {
            "reasons": self.reasons,
            "p99_ms": 1_000 * times[int(0.99 * len(times))],
            "slowest_ms": 1_000 * times[-1],
        }


def run_tasks(job: dict[str, Any], tally: Tally) -> None:
    async def main() -> None:
        async with AsyncLimiter(quota_of(job), store=job["url"]) as limiter:

            async def task() -> None:
                for _ in range(job["checks"]):
                    began = time.monotonic()
                    decision = await limiter.check(SUBJECT)
                    tally.times.append(time.monotonic() - began)
                    tally.reasons[decision.reason] += 1

            await wait_for_start_in_thread()
            await asyncio.gather(*(task() for _ in range(job["callers"])))

    asyncio.run(main())


def run_threads(job: dict[str, Any], tally: Tally) -> None:
    together = Barrier(job["callers"] + 1)

    def work() -> None:
        together.wait()
        reasons: Counter[str] = Counter()
        times = []
        for _ in range(job["checks"]):
            began = time.monotonic()
            decision = limiter.check(SUBJECT)
            times.append(time.monotonic() - began)
            reasons[decision.reason] += 1
        results.append((reasons, times))

    results: list[tuple[Counter[str], list[float]]] = []
    with Limiter(quota_of(job), store=job["url"]) as limiter:
        threads = [Thread(target=work) for _ in range(job["callers"])]
        for thread in threads:
            thread.start()
        wait_for_start()
        together.wait()
        for thread in threads:
            thread.join()
    for reasons, times in results:
        tally.reasons += reasons
        tally.times += times


def quota_of(job: dict[str, Any]) -> Quota:
    return Quota(job["limit"], job["window"], algorithm="fixed_window")


def wait_for_start() -> None:
    say("ready")
    sys.stdin.readline()


async def wait_for_start_in_thread() -> None:
    await asyncio.to_thread(wait_for_start)


def say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    while line := sys.stdin.readline():
        job, tally = json.loads(line), Tally()
        (run_tasks if job["kind"] == "tasks" else run_threads)(job, tally)
        say(tally.answer())
