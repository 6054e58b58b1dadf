"""A process that settles reservations. Run by test_reservations.py as `python -m`, never collected.

It reads a job from standard input, says when it is ready, and, after a line that says to start, how many it settled.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from headgate import AsyncLimiter
from tests.integration.hammer import rules_of, say


async def settle(job: dict[str, Any]) -> int:
    """Settle every id of the job, each with its cost, in many tasks; all other processes do the same."""
    async with AsyncLimiter(rules_of(job), store=job["url"]) as limiter:
        await limiter.peek("nobody")
        say("ready")
        sys.stdin.readline()
        settlements = await asyncio.gather(*(limiter.settle(name, cost) for name, cost in job["costs"].items()))
    assert all(settlement.reason in ("settled", "gone") for settlement in settlements)
    return sum(map(bool, settlements))


if __name__ == "__main__":
    while line := sys.stdin.readline():
        say(asyncio.run(settle(json.loads(line))))
