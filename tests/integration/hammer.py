"""A process that hammers one limit with many tasks. Run by test_exactness.py as `python -m`, never collected.

It reads jobs from standard input, one JSON object per line, and answers each twice: `"ready"` when it is connected,
and, after a line that says to start, how often each reason was given.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import Any

from headgate import AsyncLimiter, Quota, Rule


def rules_of(job: dict[str, Any]) -> list[Rule]:
    """The rules that a job describes."""
    return [
        Rule(
            id=rule["id"],
            dimension=rule["dimension"],
            quota=Quota(rule["limit"], rule["window"], algorithm=rule["algorithm"]),
            shards=rule.get("shards", 1),
        )
        for rule in job["rules"]
    ]


async def work(job: dict[str, Any]) -> Counter[str]:
    counted: Counter[str] = Counter()
    async with AsyncLimiter(rules_of(job), store=job["url"]) as limiter:

        async def task() -> None:
            for _ in range(job["checks_per_task"]):
                decision = await limiter.check(**job["facts"])
                counted[decision.reason] += 1

        await limiter.peek(**job["facts"])
        say("ready")
        sys.stdin.readline()
        await asyncio.gather(*(task() for _ in range(job["tasks"])))
    return counted


def say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    while line := sys.stdin.readline():
        say(asyncio.run(work(json.loads(line))))
