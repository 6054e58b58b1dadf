"""The path of one check: CPU time in memory, for the numbers of rules that people have.

`check`: `check(user=…, tenant=…, endpoint=…)` where 1, 3 and 10 rules apply, a `subject` alone, and a user with an
override beside a user without one. `asgi`: what the middleware adds to an app that answers at once, in a loop without a
server. `rebuild`: a snapshot of many rules of which one has changed.

CPU time is what this process used, whatever else the machine does. Each figure is the least of some turns.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import replace
from itertools import repeat
from time import process_time
from typing import Any

from benchmarks.plan import Plan
from benchmarks.report import Row, Section, Target
from headgate import AsyncLimiter, Limiter, Rule
from headgate.http.asgi import RateLimitMiddleware
from headgate.rules import Override, Snapshot, User

AMPLE = "1_000_000_000/hour"
CALLS = 5_000
REBUILD_MS = {10_000: 20.0, 100_000: 200.0}
CHECK_US = {1: 2.5, 3: 7.0, 10: 15.0}
DIMENSIONS = (
    *("user", "tenant", "global", "user+endpoint", "user", "tenant+endpoint", "user+tenant", "tenant", "user"),
    "global",
)


def run(plan: Plan) -> Section:
    section = Section(
        "path",
        "10. The path of one check: CPU time in memory",
        "times",
        notes=[
            "check: facts user, tenant, endpoint; asgi: added to a bare app in a loop; rebuild: one rule has changed."
        ],
    )
    rounds = plan.memory_rounds
    for number, most in CHECK_US.items():
        section.rows.append(_row("check", f"{number} rules", checked(number, rounds), most))
    section.rows.append(_row("check", "subject", subject(rounds)))
    plain, own = overridden(rounds)
    section.rows.append(_row("override", "plain user", plain))
    section.rows.append(
        Row("override", "own limit", own, "µs/check", 0.0, own / plain, Target(1.5, at_least=False)),
    )
    bare = answered(None, rounds)
    for number, limit in ((1, None), (3, 12.0)):
        section.rows.append(_row("asgi", f"{number} rules", answered(number, rounds) - bare, limit))
    for number, most in REBUILD_MS.items():
        section.rows.append(_row("rebuild", f"{number:,} rules", rebuilt(number, rounds) * 1_000, most, unit="ms"))
    return section


def _row(work: str, name: str, figure: float, most: float | None = None, *, unit: str = "µs/check") -> Row:
    target = None if most is None else Target(most, unit=unit, at_least=False)
    return Row(work, name, figure, unit, 0.0, None if most is None else figure, target)


def rules(number: int) -> list[Rule]:
    """Rules that all apply to a request to /api/search; every second one names the endpoint."""
    return [
        Rule(id=f"rule-{place}", quota=AMPLE, dimension=dimension, endpoints=["/api/*"] if place % 2 else [])
        for place, dimension in enumerate(DIMENSIONS[:number])
    ]


def checked(number: int, rounds: int) -> float:
    limiter = Limiter(rules(number))
    if len(limiter.check(user="alice", tenant="acme", endpoint="/api/search").limits) != number:
        raise RuntimeError(f"{number} rules were to apply")
    return least(lambda: limiter.check(user="alice", tenant="acme", endpoint="/api/search"), rounds)


def subject(rounds: int) -> float:
    limiter = Limiter(AMPLE)
    return least(lambda: limiter.check("alice"), rounds)


def overridden(rounds: int) -> tuple[float, float]:
    own = User(id="bob", overrides=[Override(rule="rule-0", limit=2_000_000_000)])
    limiter = Limiter(Snapshot(rules(1), users=[own]))
    if limiter.check(user="bob").limit != 2_000_000_000:
        raise RuntimeError("the override was to apply")
    return least(lambda: limiter.check(user="alice"), rounds), least(lambda: limiter.check(user="bob"), rounds)


def answered(number: int | None, rounds: int) -> float:
    """A request through an app, behind the middleware if there are rules."""

    async def app(_scope: Any, _receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def send(_message: MutableMapping[str, Any]) -> None:
        pass

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    def scope() -> dict[str, Any]:
        return {
            "type": "http",
            "method": "GET",
            "path": "/api/search",
            "headers": [(b"host", b"example.com"), (b"user-agent", b"bench")],
            "client": ("192.0.2.7", 1234),
        }

    async def turns() -> float:
        wrapped: Any = app
        if number is not None:
            asked = [replace_dimension(rule) for rule in rules(number)]
            wrapped = RateLimitMiddleware(app, limiter=AsyncLimiter(asked))
        best = float("inf")
        for _ in range(rounds + 1):
            gc.collect()
            start = process_time()
            for _ in repeat(None, CALLS):
                await wrapped(scope(), receive, send)
            best = min(best, (process_time() - start) / CALLS)
        return best * 1e6

    return asyncio.run(turns())


def replace_dimension(rule: Rule) -> Rule:
    """The same rule by what middleware knows of every request: the address in place of user and tenant."""
    facts = ["ip" if fact in ("user", "tenant") else fact for fact in rule.dimension.split("+")]
    return Rule(id=rule.id, quota=rule.quota, dimension="+".join(dict.fromkeys(facts)), endpoints=rule.endpoints)


def rebuilt(number: int, rounds: int) -> float:
    """Seconds from a changed rule to a snapshot in force that has planned a request."""
    listed = [Rule(id=f"rule-{place}", quota=AMPLE, endpoints=[f"/api/{place}/*"]) for place in range(number)]
    snapshot = Snapshot(listed)
    best = float("inf")
    for turn in range(rounds):
        changed = Rule(id="rule-7", quota=f"{turn + 1}/hour", endpoints=["/api/7/*"])
        gc.collect()
        start = process_time()
        snapshot = changed_snapshot(snapshot, changed)
        best = min(best, process_time() - start)
    return best


def changed_snapshot(snapshot: Snapshot, rule: Rule) -> Snapshot:
    rules = list(snapshot.rules)
    rules[7] = rule
    return replace(snapshot, rules=rules, previous=snapshot)


def least(call: Callable[[], object], rounds: int) -> float:
    """Microseconds of CPU time of one call."""
    best = float("inf")
    for _ in range(rounds + 1):
        gc.collect()
        start = process_time()
        for _ in repeat(None, CALLS):
            call()
        best = min(best, (process_time() - start) / CALLS)
    return best * 1e6
