"""What counting usage adds to a check of the service: 10,000 rules with traffic, over HTTP without sockets.

Beside the service as it is, one whose counter does nothing. Each turn is ten seconds of a service that has 5,000 checks
a second: it checks every rule five times, ticks ten times, and works out what each rule had of the window. CPU time is
what this process used.
"""

from __future__ import annotations

import asyncio
import gc
import json
from statistics import median
from time import process_time
from typing import Any

from benchmarks.measure import interleave
from benchmarks.plan import Plan
from benchmarks.report import Row, Section, Target
from headgate import AsyncLimiter, Rule
from headgate.audit.usage import UsageCounter
from headgate.core.decision import Decision
from headgate.core.plan import Plan as CheckPlan
from headgate.service.access import Access
from headgate.service.data_plane import DataPlane
from headgate.service.http.app import HttpApp

RULES = 10_000
TURNS = 5  # checks of each rule
ROUNDS = 5
MOST = 1.01  # times a service that counts nothing


class Nothing(UsageCounter):
    """Counts nothing."""

    def add(self, cost: Any, decision: Decision) -> None: ...

    def add_time(self, plan: CheckPlan, seconds: float) -> None:
        self.untimed = 1 << 60

    def tick(self) -> None: ...


def run(_: Plan) -> Section:
    section = Section(
        "usage",
        "13. What counting usage adds to a check of the service",
        "times",
        notes=["10,000 rules with traffic, HTTP without sockets; beside a counter that does nothing."],
    )
    turns = {name: _Service(counter).turn for name, counter in (("without", Nothing()), ("with", UsageCounter()))}
    gc.collect()
    gc.freeze()  # as the service does when it has started
    found = interleave(turns, ROUNDS)
    pairs = zip(found["with"].values, found["without"].values, strict=True)
    ratio = median(mine / other for mine, other in pairs)
    for name in ("without", "with"):
        target = Target(MOST, at_least=False) if name == "with" else None
        row = Row("usage", name, found[name].median, "µs/check", found[name].spread, ratio if target else None, target)
        section.rows.append(row)
    return section


class _Service:
    """The HTTP app of a service in memory."""

    def __init__(self, usage: UsageCounter) -> None:
        self._usage = usage
        self._loop = asyncio.new_event_loop()
        rules = [
            Rule(id=f"rule-{one}", quota="1_000_000_000/hour", dimension="user", endpoints=[f"/api/{one}"])
            for one in range(RULES)
        ]
        limiter = AsyncLimiter(rules)
        states: Any = None  # health and metrics, which nobody asks for
        self._app = HttpApp(DataPlane(limiter, usage=usage), Access(), health=states, metrics=states)
        self._bodies = [json.dumps({"user": "alice", "endpoint": f"/api/{one}"}).encode() for one in range(RULES)]

    def turn(self) -> float:
        begun = process_time()
        self._loop.run_until_complete(self._checks())
        self._usage.rotate()
        json.dumps(self._usage.take())
        return (process_time() - begun) / (RULES * TURNS) * 1e6

    async def _checks(self) -> None:
        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/check", "headers": headers, "query_string": b""}
        app = self._app
        for _ in range(TURNS):
            for number, body in enumerate(self._bodies):
                if number % (RULES * TURNS // 10) == 0:
                    self._usage.tick()
                message = {"type": "http.request", "body": body, "more_body": False}

                async def receive(message: Any = message) -> Any:
                    return message

                await app({**scope}, receive, _ignore)


async def _ignore(_: Any) -> None: ...
