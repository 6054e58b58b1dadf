"""Usage on real databases: added up over nodes, each batch once, by minutes and hours, and over HTTP."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from headgate import Limiter, Rule
from headgate.audit.auditor import Auditor
from headgate.audit.options import AuditOptions
from headgate.audit.usage import UsageCounter
from headgate.db import Database, schema
from headgate.db.events import EventBatch, Events
from headgate.db.usage import ALL, FIGURES, UsageCount, UsageHistory, quantile
from headgate.testing import FakeClock
from tests.service import warm_service
from tests.waiting import until

START = 1_699_999_200.0  # the beginning of an hour
START_US = 1_699_999_200_000_000
MINUTE_US = 60_000_000
HOUR_US = 3_600_000_000


@pytest.fixture
def database(migrated_url: str) -> Iterator[Database]:
    database = Database(migrated_url)
    yield database
    database.close()


def count(minute: int, rule: str, **counted: int) -> UsageCount:
    figures = dict.fromkeys(FIGURES, 0) | counted
    return UsageCount(START_US + minute * MINUTE_US, rule, list(figures.values()))


def shown(database: Database, rule: str, step: int, minutes: int = 10_000) -> list[tuple[int, int, int]]:
    """Minute since the start, allowed and refused, of each step."""
    history = UsageHistory(database)
    found = history.series([rule], since_us=START_US, until_us=START_US + minutes * MINUTE_US, step=step)
    return [((one.at_us - START_US) // MINUTE_US, one.allowed, one.refused) for one in found]


def test_counts_of_all_nodes_and_windows_add_up(database: Database) -> None:
    events = Events(database)
    for run in ("one", "two"):
        batches = [
            EventBatch(1, [], [], [count(0, "search", allowed=2, refused=1), count(0, ALL, allowed=5)]),
            EventBatch(
                2,
                [],
                [],
                [count(0, "search", allowed=3), count(7, "search", refused=4), count(61, "search", allowed=1)],
            ),
        ]
        for _ in range(2):  # written again, it counts once
            events.write(run, batches, START_US)
    assert shown(database, "search", 60) == [(0, 10, 2), (7, 0, 8), (61, 2, 0)]
    assert shown(database, "search", 300) == [(0, 10, 2), (5, 0, 8), (60, 2, 0)]
    assert shown(database, "search", 3_600) == [(0, 10, 10), (60, 2, 0)]
    assert shown(database, "search", 7_200) == [(0, 12, 10)]
    assert shown(database, "search", 60, minutes=7) == [(0, 10, 2)]
    assert shown(database, ALL, 60) == [(0, 10, 0)]


def test_traffic_is_the_checks_and_refusals_of_a_series(database: Database) -> None:
    counts = [count(0, "a", allowed=5, refused=2, shadow=1, us_100=8), count(61, "a", refused=3), count(0, "b", cost=1)]
    Events(database).write("one", [EventBatch(1, [], [], counts)], START_US)
    for step in (60, 300, 3_600):
        period = {"since_us": START_US, "until_us": START_US + 2 * HOUR_US, "step": step}
        history = UsageHistory(database)
        series = [(one.at_us, one.rule, one.checks, one.refused) for one in history.series(["a", "b"], **period)]
        assert history.traffic(["a", "b"], **period) == series
        assert (series[0][2], series[-1][3]) == (8, 3)


def test_the_rules_that_refused_most(database: Database) -> None:
    counts = [count(0, ALL, refused=99), count(0, "(other)", refused=50)]
    counts += [count(minute, f"rule-{number}", refused=number) for number in range(5) for minute in (0, 1)]
    Events(database).write("one", [EventBatch(1, [], [], counts)], START_US)
    found = UsageHistory(database).top(since_us=START_US, until_us=START_US + 2 * MINUTE_US, max_items=3)
    assert [(one.rule, one.refused) for one in found] == [("rule-4", 8), ("rule-3", 6), ("rule-2", 4)]


def test_the_top_of_a_period_takes_whole_hours_and_the_minutes_around_them(database: Database) -> None:
    counts = [count(minute, "search", refused=10**place) for place, minute in enumerate((5, 10, 59, 60, 119, 120, 130))]
    Events(database).write("one", [EventBatch(1, [], [], counts)], START_US)
    for begin, end, expected in (
        (10, 125, 111_110),
        (0, 60, 111),
        (0, 240, 1_111_111),
        (61, 119, 0),
        (60, 120, 11_000),
    ):
        found = UsageHistory(database).top(since_us=START_US + begin * MINUTE_US, until_us=START_US + end * MINUTE_US)
        assert sum(one.refused for one in found) == expected


def test_times_of_checks_are_those_of_all_nodes_together(database: Database) -> None:
    for run, times in (("one", {"us_100": 98}), ("two", {"us_100": 1, "us_1000": 1})):
        Events(database).write(run, [EventBatch(1, [], [], [count(0, ALL, allowed=100, **times)])], START_US)
    (usage,) = UsageHistory(database).series([ALL], since_us=START_US, until_us=START_US + MINUTE_US, step=60)
    assert usage.p50_us == pytest.approx(75, abs=1)
    assert usage.p99_us == pytest.approx(100, abs=1)
    assert quantile([0] * 14, 0.5) is None
    assert quantile([0] * 13 + [1], 0.5) == 250_000


def test_minutes_are_deleted_before_hours_in_small_steps(database: Database, tmp_path: Path) -> None:
    clock = FakeClock(START)
    options = AuditOptions(usage_retention=86_400.0, usage_hourly_retention=10 * 86_400.0)
    auditor = Auditor(database, tmp_path / "spool", options=options, clock=clock)
    counts = [count(minute, f"rule-{number}", allowed=1) for minute in range(4) for number in range(600)]
    Events(database).write("one", [EventBatch(1, [], [], counts)], START_US)

    def kept() -> dict[int, int]:
        table = schema.usage
        with database.read() as connection:
            return dict(connection.execute(select(table.c.step, func.count()).group_by(table.c.step)).all())

    assert kept() == {60: 2_400, 3_600: 600}
    assert auditor.retain() == 0
    clock.advance(86_401 + 240)
    assert [auditor.retain() for _ in range(4)] == [1_000, 1_000, 400, 0]
    assert kept() == {3_600: 600}
    assert shown(database, "rule-7", 3_600) == [(0, 4, 0)]
    clock.advance(10 * 86_400)
    while auditor.retain():
        pass
    assert kept() == {}
    auditor.close()


def test_what_was_counted_goes_by_the_spool_into_the_database(database: Database, tmp_path: Path) -> None:
    clock = FakeClock(START)
    counter = UsageCounter(clock=clock)
    auditor = Auditor(database, tmp_path / "spool", clock=clock, usage=counter)
    limiter = Limiter([Rule(id="all", quota="3/hour", dimension="global")], clock=clock)
    for _ in range(5):
        counter.add(1, limiter.check())
    counter.rotate()
    auditor.flush()
    left = Auditor(database, tmp_path / "other", clock=clock)  # which has nothing to do with it
    left.write()
    assert shown(database, "all", 60) == []
    auditor.write()
    assert shown(database, "all", 60) == [(0, 3, 2)]
    auditor.close()
    left.close()


def test_the_service_tells_what_it_allowed_and_refused(tmp_path: Path) -> None:
    with warm_service(tmp_path) as service, httpx.Client(base_url=service.url, timeout=30) as client:
        facts = {"ip": "192.0.2.7", "endpoint": "/login", "method": "POST"}
        statuses = [client.post("/v1/check", json=facts).status_code for _ in range(8)]
        refused = statuses.count(429)
        assert refused

        def usage(**parameters: Any) -> httpx.Response:
            answer = client.get("/api/v1/usage", params=parameters, headers=service.headers)
            assert answer.status_code == 200, answer.text
            return answer

        def total() -> dict[str, int]:
            found = usage().json()["usage"]
            return {name: sum(one[name] for one in found) for name in ("allowed", "refused")}

        until(lambda: total() == {"allowed": 8 - refused, "refused": refused}, seconds=40.0)
        (rule,) = {event["rule"] for event in client.get("/api/v1/events", headers=service.headers).json()["events"]}
        of_rule = usage(rule=rule, step="1h").json()
        assert (of_rule["rule"], of_rule["step"]) == (rule, 3_600)
        assert sum(one["refused"] for one in of_rule["usage"]) == refused
        assert all(0 < one["p50"] <= one["p99"] < 1 for one in usage().json()["usage"])
        rows = list(csv.DictReader(io.StringIO(usage(format="csv").text, newline="")))
        assert sum(int(row["refused"]) for row in rows) == refused
        for wrong in ({"step": "7s"}, {"step": "90m"}, {"since": "2026-01-01", "until": "2025-01-01"}, {"step": "x"}):
            answer = client.get("/api/v1/usage", params=wrong, headers=service.headers)
            assert answer.status_code == 422, (wrong, answer.text)
        assert client.get("/api/v1/usage").status_code == 401
