"""The console's pages with 10,000 rules: when the first byte comes, and what a page costs the service.

A real service in memory, its rules on SQLite and on PostgreSQL, a day of usage and events of its busiest rules, and
one operator who opens one page after the other. CPU time is the service's own, the database's not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, time

import httpx

from benchmarks.measure import Series
from benchmarks.plan import Plan
from benchmarks.report import Row, Section, Target
from benchmarks.web import cpu_seconds
from headgate.db import Database
from headgate.db.events import Count, EventBatch, Events
from headgate.db.usage import FIGURES, UsageCount
from tests.console import Visitor
from tests.postgres import Postgres
from tests.service import running_service

RULES = 10_000
BUSY = 100  # rules with traffic in every minute of the last day
MINUTES = 24 * 60
MINUTE_US = 60_000_000
AT_ONCE = 60  # minutes that are written in one transaction
WARM = 3  # calls that are not measured
MOST = Target(50, "ms", at_least=False)
FACTS = "user=alice&ip=192.0.2.7&endpoint=/api/77/items&method=GET"
PAGES = {
    "overview": "/",
    "overview of a day": "/?range=24h",
    "rules": "/rules",
    "rules, searched": "/rules?q=rule-0777",
    "rule": "/rules/show?id=rule-00077",
    "rule's editor": "/rules/edit?id=rule-00077",
    "subject": "/subject?type=user&id=alice",
    "explain, allowed": f"/explain?{FACTS}",
    "explain, refused": f"/explain?{FACTS}&cost=1000",
    "events": "/events",
    "changes": "/changes",
    "tokens": "/tokens",
    "regions": "/regions",
}
PARTS = {  # that pages load by themselves, when they are shown: no target
    "part: charts of a day": "/overview/data?range=24h",
    "part: who is refused most in a day": "/overview/tops?range=24h",
    "part: sparklines": "/rules/sparklines",
}


def run(plan: Plan) -> Section:
    section = Section(
        "console",
        f"15. The console's pages with {RULES:,} rules",
        "first byte, ms",
        notes=["one operator; the median time until the first byte, and the service's CPU time per page."],
    )
    calls = 10 if plan.brief else 50
    with TemporaryDirectory() as folder:
        measure(section, "SQLite", f"sqlite:///{folder}/headgate.db", calls)
    if not plan.brief:
        with Postgres() as server:
            measure(section, "PostgreSQL", server.url, calls)
    return section


def measure(section: Section, name: str, database_url: str, calls: int) -> None:
    """Add rows for each page of a service on a database."""
    with (
        TemporaryDirectory() as folder,
        running_service(Path(folder), database_url=database_url, samples=False) as service,
    ):
        headers = {**service.headers, "Content-Type": "application/toml"}
        answer = httpx.put(f"{service.url}/api/v1/ruleset", content=ruleset(), headers=headers, timeout=300)
        assert answer.is_success, answer.text
        fill(database_url)
        visitor = Visitor(service)
        for page, path in (PAGES | PARTS).items():
            cpu, times = cost_of(visitor.client, path, calls, lambda: cpu_seconds(service.process.pid))
            first = Series(tuple(times))
            work, goal = f"{name}: {page}", (first.median, MOST) if page in PAGES else (None, None)
            section.rows.append(Row(work, "first byte", first.median, "ms", first.spread, *goal))
            section.rows.append(Row(work, "CPU", cpu, "ms"))
        visitor.close()


def cost_of(client: httpx.Client, path: str, calls: int, spent: Callable[[], float]) -> tuple[float, list[float]]:
    """Return the CPU time of a page, and the times until its first byte, in milliseconds."""
    for _ in range(WARM):
        assert client.get(path).status_code == 200, path
    times = []
    before = spent()
    for _ in range(calls):
        begun = perf_counter()
        with client.stream("GET", path) as answer:  # its head is here
            times.append((perf_counter() - begun) * 1_000)
            answer.read()
    return (spent() - before) / calls * 1_000, times


def ruleset() -> str:
    """Return rules as a large API would have them: by user, address and tenant, of tiers, methods and endpoints."""
    dimensions = ("user", "ip", "tenant", "user+endpoint")
    tiers = ("free", "pro", "enterprise")
    tables = []
    for number in range(RULES):
        lines = [
            f'id = "rule-{number:05}"',
            f'name = "Endpoint {number}"',
            f'dimension = "{dimensions[number % 4]}"',
            f'endpoints = ["/api/{number}", "/api/{number}/*"]',
            "limit = 100",
            'window = "1m"',
        ]
        if number % 2:
            lines.append('methods = ["GET", "POST"]')
        if number % 3 == 0:
            lines.append(f'tiers = ["{tiers[number // 3 % 3]}"]')
        tables.append("[[rules]]\n" + "\n".join(lines) + "\n")
    return "\n".join(tables)


def fill(database_url: str) -> None:
    """Give the busiest rules a day of usage and refusals."""
    now_us = int(time() * 1e6)
    first_us = now_us - now_us % MINUTE_US - MINUTES * MINUTE_US
    names = [f"rule-{one:05}" for one in range(BUSY)]
    figures = {"allowed": 90, "refused": 10, "cost": 100, "us_250": 100}
    values = [figures.get(one, 0) for one in FIGURES]
    batches = []
    for minute in range(MINUTES):
        at_us = first_us + minute * MINUTE_US
        usage = [UsageCount(at_us, name, values) for name in ("", *names)]
        counts = [
            Count(at_us, name, "over_limit", "user", f"user-{one % 50}", True, 10, 10) for one, name in enumerate(names)
        ]
        batches.append(EventBatch(minute + 1, [], counts, usage))
    database = Database(database_url)
    for begin in range(0, MINUTES, AT_ONCE):
        Events(database).write("benchmark", batches[begin : begin + AT_ONCE], now_us)
    database.close()
