"""A process that holds slots with many tasks, until it is told to stop, or killed. Run by test_slot_kills.py as
`python -m tests.integration.slot_holder`, never collected.

It writes a line when a slot is held (its number, and when the store took it) and one right before it is released, at
once and by itself, so that nothing is lost when the process is killed. Tasks are cancelled at random, wherever they
are.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from contextlib import suppress
from typing import Any

from headgate import AsyncLimiter, RateLimited, Rule

_numbers = iter(range(sys.maxsize))


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def hold(limiter: AsyncLimiter) -> None:
    """Hold one slot for a moment."""
    async with limiter.acquire(user="alice", wait=random.choice([0, 0.05]), renew=random.random() < 0.5) as slot:
        number = next(_numbers)
        say("held", number, slot.decision.at_us)
        try:
            await asyncio.sleep(random.random() * 0.02)
        finally:
            say("done", number, time.time_ns() // 1_000)


async def work(limiter: AsyncLimiter, until: float) -> None:
    while time.monotonic() < until:
        with suppress(RateLimited):
            await hold(limiter)
        await asyncio.sleep(0.001)


async def main(job: dict[str, Any]) -> None:
    random.seed(job["seed"])
    rules = [Rule(id="slots", quota=job["quota"]), Rule(id="rate", quota="1000000/minute gcra")]
    # Closed: a request that passes because the store is late holds no slot, and would be counted as if it did.
    async with AsyncLimiter(rules, store=job["url"], failure_mode="closed") as limiter:
        await limiter.peek(user="alice")  # connecting takes a while
        until = time.monotonic() + job["seconds"]
        tasks = [asyncio.create_task(work(limiter, until)) for _ in range(job["tasks"])]
        say("ready")
        while time.monotonic() < until:
            await asyncio.sleep(random.random() * 0.004)
            place = random.randrange(len(tasks))
            tasks[place].cancel()
            await asyncio.gather(tasks[place], return_exceptions=True)
            tasks[place] = asyncio.create_task(work(limiter, until))
        for failed in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(failed, Exception):
                raise failed


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
