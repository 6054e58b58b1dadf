"""Events on real databases: written in batches, each once, whatever happens to the database and to the process."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import func, insert, select

from headgate import AsyncLimiter, Limiter, Rule
from headgate.audit.auditor import Auditor
from headgate.audit.options import AuditOptions
from headgate.audit.spool import Spool
from headgate.core.decision import Decision
from headgate.db import Changes, Database, migrate, schema
from headgate.db.events import Cursor, EventFilter, Events, Top
from headgate.db.usage import UsageHistory
from headgate.errors import DatabaseError, DatabaseUnavailable
from headgate.http.identity import hashed_api_key
from headgate.service.data_plane import BatchedRequest, DataPlane
from headgate.testing import FakeClock
from tests.integration import nodes, recording
from tests.postgres import Postgres
from tests.waiting import until

LATEST = 30.0  # seconds after which a test gives up
START = 1_700_000_000.0
START_US = 1_700_000_000_000_000
MINUTE_US = 60_000_000
DAY = 86_400.0
EVERYTHING = EventFilter()


class World:
    """A limiter that refuses everything, and auditors on one database and one spool."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.directory = directory / "spool"
        self.clock = FakeClock(START)
        self.limiter = Limiter([Rule(id="all", quota="1/day", dimension="global")], clock=self.clock)
        self.database = Database(url)
        self.events = Events(self.database)
        self.auditors: list[Auditor] = []

    def auditor(self, **options: Any) -> Auditor:
        """One more, that has not been started."""
        made = AuditOptions(**{"flush_seconds": 0.01, "write_seconds": 0.01, **options})
        auditor = Auditor(self.database, self.directory, node="node-1", options=made, clock=self.clock)
        self.auditors.append(auditor)
        return auditor

    def refusal(self) -> Decision:
        if decision := self.limiter.check():  # the first of the day
            decision = self.limiter.check()
        assert not decision.allowed
        return decision

    def record(self, auditor: Auditor, *users: str) -> None:
        for user in users:
            auditor.record({"user": user}, 1, self.refusal())

    def users(self) -> list[str]:
        """Of all events, the earliest first."""
        found: list[str] = []
        after: Cursor | None = None
        while page := self.events.page(EVERYTHING, after=after, max_items=500):
            found += [event.user or "" for event in page]
            after = Cursor(page[-1].at_us, page[-1].id)
        return found[::-1]

    def counted(self) -> dict[str, int]:
        return {top.subject: top.events for top in self.events.top(by="user", max_items=1_000_000)}

    def close(self) -> None:
        for auditor in self.auditors:
            auditor.close(timeout=LATEST)
        self.database.close()


@pytest.fixture
def world(migrated_url: str, tmp_path: Path) -> Iterator[World]:
    world = World(migrated_url, tmp_path)
    yield world
    world.close()


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server that a test may stop."""
    with Postgres() as server:
        yield server


def test_events_on_their_way_to_the_spool_are_in_the_backlog(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    auditor = world.auditor()
    world.record(auditor, "alice", "bob", "alice")
    batch, seen = auditor._digest.batch, []

    def looked_at(window: Any, usage: Any) -> Any:
        seen.append(auditor.status().backlog)
        return batch(window, usage)

    monkeypatch.setattr(auditor._digest, "batch", looked_at)
    auditor.flush()
    assert [*seen, auditor.status().backlog] == [3, 3]
    auditor.write()
    assert auditor.status().backlog == 0


def test_what_was_recorded_is_in_the_database(world: World) -> None:
    auditor = world.auditor()
    auditor.start()
    world.record(auditor, "alice", "bob", "alice")
    until(lambda: auditor.status().backlog == 0)
    assert world.users() == ["alice", "bob", "alice"]
    assert world.counted() == {"alice": 2, "bob": 1}
    status = auditor.status()
    assert (status.recorded, status.spooled, status.written, status.dropped, status.failed) == (3, 3, 3, 0, 0)
    assert status.error is None
    auditor.close()
    assert list(world.directory.iterdir()) == []


def test_every_column_comes_back_as_it_was(world: World) -> None:
    auditor = world.auditor()
    facts = {"user": "größe", "ip": "2001:db8::1", "api_key": "hash", "tenant": "t", "endpoint": "/x", "method": "GET"}
    facts |= {"tier": "free", "country": "DE", "quote": "\"'\n"}
    auditor.record(facts, 7, world.refusal())
    auditor.flush()
    auditor.write()
    (event,) = world.events.page(EVERYTHING)
    named = {name: getattr(event, name) for name in facts if name in event._fields}
    assert named | event.facts == facts
    assert (event.at_us, event.node, event.rule, event.reason) == (START_US, "node-1", "all", "over_limit")
    assert (event.allowed, event.cost, event.limit, event.remaining, event.weight) == (False, 7, 1, 0, 1)
    assert event.retry_after_us is not None


def test_what_the_data_plane_refuses_becomes_an_event_without_secrets(world: World) -> None:
    auditor = world.auditor()

    async def checks() -> None:
        async with AsyncLimiter([Rule(id="key", quota="1/day", dimension="api_key")], clock=world.clock) as limiter:
            plane = DataPlane(limiter, recorder=auditor)
            await plane.check_many([BatchedRequest({"api_key": "secret"}), BatchedRequest({"api_key": "secret"}, 2)])
            assert not await plane.check({"api_key": "secret"}, idempotency_key="once")
            assert not await plane.peek({"api_key": "secret"})  # leaves no trace

    asyncio.run(checks())
    auditor.flush()
    auditor.write()
    events = world.events.page(EVERYTHING)
    assert [(event.api_key, event.subject, event.cost) for event in events] == [
        (hashed_api_key("secret"), hashed_api_key("secret"), 1),
        (hashed_api_key("secret"), hashed_api_key("secret"), 2),
    ]
    assert "secret" not in str(events)


def test_closing_writes_what_there_is(world: World) -> None:
    auditor = world.auditor(flush_seconds=3_600, write_seconds=3_600)
    auditor.start()
    world.record(auditor, "alice")
    auditor.close()
    assert world.users() == ["alice"]


def test_several_processes_share_a_directory_and_count_together(world: World) -> None:
    auditors = [world.auditor() for _ in range(3)]
    for auditor in auditors:
        auditor.start()
    for _ in range(20):
        for auditor in auditors:
            world.record(auditor, "alice", "bob")
        time.sleep(0.01)  # so that their batches meet
    for auditor in auditors:
        auditor.close()
    assert world.counted() == {"alice": 60, "bob": 60}
    assert sum(auditor.status().written for auditor in auditors) == 120


def test_a_batch_that_is_written_again_counts_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    auditor = world.auditor()
    world.record(auditor, "alice", "alice")
    auditor.flush()
    with monkeypatch.context() as patched:  # the answer to the commit was lost
        patched.setattr(Spool, "remove", _lost)
        with pytest.raises(DatabaseUnavailable):
            auditor.write()
    world.record(auditor, "bob")
    auditor.flush()
    auditor.write()
    assert world.users() == ["alice", "alice", "bob"]
    assert world.counted() == {"alice": 2, "bob": 1}
    assert auditor.status().written == 1  # that it knows of


def _lost(*_: object) -> None:
    raise DatabaseUnavailable("the connection broke")


def test_while_the_database_is_away_events_wait_and_then_come_in_order_once(
    own_postgres: Postgres, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    migrate(own_postgres.url)
    world = World(own_postgres.url, tmp_path)
    auditor = world.auditor()
    auditor.start()
    world.record(auditor, "before")
    until(lambda: auditor.status().backlog == 0)
    with caplog.at_level(logging.WARNING, logger="headgate"):
        own_postgres.stop()
        for number in range(50):
            world.record(auditor, f"during-{number}")
            world.clock.advance(0.001)
            auditor.flush()
        until(lambda: auditor.status().error is not None)
        assert auditor.status().backlog == 50
        own_postgres.start()
        until(lambda: auditor.status().backlog == 0)
    assert world.users() == ["before", *(f"during-{number}" for number in range(50))]
    assert set(world.counted().values()) == {1}
    assert auditor.status().error is None
    told = [record.message for record in caplog.records if record.message.startswith("audit: database")]
    assert len(told) == 2  # that it is away, and that it is not, however often it was tried
    world.close()


def test_events_survive_a_restart_while_the_database_is_away(own_postgres: Postgres, tmp_path: Path) -> None:
    migrate(own_postgres.url)
    world = World(own_postgres.url, tmp_path)
    own_postgres.kill()
    first = world.auditor()
    first.start()
    world.record(first, "alice", "bob")
    first.close(timeout=0.1)
    second = world.auditor()
    second.start()
    world.record(second, "alice")
    own_postgres.start()
    until(lambda: second.status().written == 3)
    assert world.counted() == {"alice": 2, "bob": 1}
    world.close()
    assert list(world.directory.iterdir()) == []


def test_a_database_that_dies_while_it_is_written_to_has_every_event_once(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    migrate(own_postgres.url)
    world = World(own_postgres.url, tmp_path)
    auditor = world.auditor()
    auditor.start()
    recorded = 0
    for _ in range(3):
        for _ in range(100):
            world.record(auditor, f"user-{recorded}")
            recorded += 1
            time.sleep(0.001)
        own_postgres.kill()
        own_postgres.start()
    until(lambda: auditor.status().backlog == 0)
    assert sorted(world.users()) == sorted(f"user-{number}" for number in range(recorded))
    assert Counter(world.counted().values()) == {1: recorded}
    world.close()


def test_without_tables_events_wait_until_there_are_some(database_url: str, tmp_path: Path) -> None:
    world = World(database_url, tmp_path)
    auditor = world.auditor()
    world.record(auditor, "alice")
    auditor.flush()
    with pytest.raises(DatabaseError):
        auditor.write()
    migrate(database_url)
    auditor.write()
    assert world.users() == ["alice"]
    world.close()


def test_what_was_acknowledged_survives_kills(database_url: str, tmp_path: Path, thorough: bool) -> None:
    kills = 20 if thorough else 6
    migrate(database_url)
    chance = random.Random(5)
    acknowledged: set[str] = set()
    for kill in range(kills):
        with nodes.process(recording.record, database_url, str(tmp_path / "spool"), f"p{kill}") as (
            process,
            connection,
        ):
            assert connection.poll(LATEST)
            time.sleep(chance.random() * 0.1)
            process.kill()
            process.join()
            last = -1
            while connection.poll():
                try:
                    last = connection.recv()
                except EOFError:
                    break
        assert last >= 0
        acknowledged |= {f"p{kill}-{number}" for number in range(last + 1)}
    world = World(database_url, tmp_path)
    auditor = world.auditor()
    auditor.adopt()
    auditor.write()
    counts = world.counted()
    assert len(acknowledged) >= kills * 5
    assert acknowledged <= counts.keys()
    assert set(counts.values()) == {1}
    users = world.users()
    assert len(users) == len(set(users))
    assert acknowledged <= set(users)
    (usage,) = UsageHistory(world.database).top(since_us=0, until_us=2**53, by="refused")
    assert len(acknowledged) <= usage.refused <= len(users)  # each once; and what was not handed on yet is lost
    world.close()
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_full_spool_drops_the_oldest_and_says_how_many(world: World) -> None:
    auditor = world.auditor(spool_bytes=65_536)
    for number in range(500):
        world.record(auditor, f"user-{number:04d}")
        auditor.flush()
    status = auditor.status()
    assert (status.recorded, status.backlog + status.dropped) == (500, 500)
    assert status.spool_bytes <= 65_536
    assert status.dropped > 0
    auditor.write()
    assert world.users() == [f"user-{number:04d}" for number in range(status.dropped, 500)]


def test_a_spool_that_cannot_be_written_holds_events_in_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    auditor = world.auditor()
    with monkeypatch.context() as patched:
        patched.setattr("headgate.audit.auditor.MAX_UNSPOOLED", 3)
        patched.setattr(Spool, "append", _broken)
        for number in range(5):
            world.record(auditor, f"user-{number}")
            with pytest.raises(OSError, match="broken disk"):
                auditor.flush()
        status = auditor.status()
        assert (status.backlog, status.dropped) == (3, 2)
    auditor.flush()
    auditor.write()
    assert world.users() == ["user-2", "user-3", "user-4"]


def _broken(*_: object) -> None:
    raise OSError("broken disk")


def test_a_decision_that_cannot_be_recorded_raises_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    auditor = world.auditor()
    facts: Any = {"user": 1}  # no text
    for _ in range(3):
        auditor.record(facts, 1, world.refusal())
    assert auditor.status().failed == 3
    assert caplog.text.count("could not be recorded") == 1


def test_counts_are_exact_when_events_are_sampled(world: World) -> None:
    auditor = world.auditor()
    auditor.start()

    def flood(user: str) -> None:
        for _ in range(3_000):
            world.record(auditor, user)

    threads = [Thread(target=flood, args=(user,)) for user in ("mallory", "mallory", "eve")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    auditor.close()
    assert world.counted() == {"mallory": 6_000, "eve": 3_000}
    rows = world.events.page(EVERYTHING, max_items=10_000)
    assert len(rows) < 9_000
    assert sum(row.weight for row in rows) <= 9_000


def test_texts_that_databases_cannot_keep_stop_nothing(world: World) -> None:
    auditor = world.auditor()
    strange = ["nul\0", "lone \udc80", "\U0001f600" * 5_000, "'; DROP TABLE headgate_events; --", ""]
    for text in strange:
        auditor.record({"user": text, "tenant": text, "endpoint": text, text or "x": text}, 1, world.refusal())
    auditor.flush()
    auditor.write()
    assert len(world.users()) == len(strange)
    for text in strange:
        assert len(world.events.page(EventFilter(user=text))) == 1
    assert sum(world.counted().values()) == len(strange)


# Queries


@pytest.fixture
def filled(world: World) -> World:
    """Events a second apart, over three minutes."""
    rules = [
        Rule(id="search", quota="1/day", endpoints=["/search"]),
        Rule(id="shadow", quota="1/day", dimension="ip", endpoints=["/"], action="log_only"),
    ]
    limiter = Limiter(rules, clock=world.clock)
    auditor = world.auditor(rows=1_000, rows_per_client=1_000)
    for number in range(180):
        facts: dict[str, Any] = {
            "user": f"user-{number % 3}",
            "ip": "192.0.2.7",
            "tenant": "acme" if number % 2 else "umbrella",
        }
        facts |= {"endpoint": "/" if number % 10 == 0 else "/search", "api_key": f"hash-{number % 3}"}
        decision = limiter.check(**facts)
        if not decision.allowed or decision.reason == "shadow":
            auditor.record(facts, 1, decision)
        world.clock.advance(1)
    auditor.flush()
    auditor.write()
    return world


def found(world: World, **wanted: Any) -> int:
    return len(world.events.page(EventFilter(**wanted), max_items=1_000))


def test_filters(filled: World) -> None:
    refused, shadows = 180 - 18 - 3, 18 - 1
    assert found(filled) == refused + shadows
    assert found(filled, rule="search") == found(filled, endpoint="/search") == found(filled, shadow=False) == refused
    assert found(filled, rule="shadow") == found(filled, reason="shadow") == found(filled, shadow=True) == shadows
    assert found(filled, ip="192.0.2.7") == refused + shadows
    assert sum(found(filled, user=f"user-{number}") for number in range(3)) == refused + shadows
    assert (
        found(filled, user="user-1") == found(filled, api_key="hash-1") == found(filled, user="user-1", ip="192.0.2.7")
    )
    assert found(filled, tenant="acme") + found(filled, tenant="umbrella") == refused + shadows
    assert found(filled, since_us=START_US + 170_000_000) == 10
    assert found(filled, since_us=START_US + 170_000_000, until_us=START_US + 172_000_000) == 2
    assert found(filled, rule="no such rule") == 0


def test_what_a_rule_annotates_is_told_from_shadows_and_counted_as_passed(world: World) -> None:
    rules = [Rule(id=action, quota="1/day", action=action) for action in ("annotate", "log_only", "reject")]
    auditor = world.auditor()
    for rule in rules:
        limiter = Limiter([rule], clock=world.clock)
        for _ in range(3):
            decision = limiter.check(user="alice")
            if not decision.allowed or decision.reason == "shadow":
                auditor.record({"user": "alice"}, 1, decision)
    auditor.flush()
    auditor.write()
    assert [event.rule for event in world.events.page(EventFilter(reason="annotate"))] == ["annotate"] * 2
    assert [event.rule for event in world.events.page(EventFilter(reason="shadow"))] == ["log_only"] * 2
    assert found(world, shadow=True) == 4
    figures = {one.rule: (one.refused, one.shadow) for one in world.events.top()}
    assert figures == {"annotate": (0, 2), "log_only": (0, 2), "reject": (2, 0)}
    period = {"since_us": START_US, "until_us": START_US + 60_000_000, "step": 60}
    (steps,) = world.events.refusals("user", "alice", **period)
    assert (steps.refused, steps.shadow) == (2, 4)


def test_pages_go_through_everything_once_the_latest_first(filled: World) -> None:
    whole = filled.events.page(EVERYTHING, max_items=1_000)
    assert [event.at_us for event in whole] == sorted((event.at_us for event in whole), reverse=True)
    paged = []
    after = None
    while page := filled.events.page(EVERYTHING, after=after, max_items=7):
        paged += page
        after = Cursor(page[-1].at_us, page[-1].id)
    assert paged == whole


def test_events_of_the_same_moment_are_paged_once(world: World) -> None:
    auditor = world.auditor()
    world.record(auditor, *(f"user-{number}" for number in range(10)))
    auditor.flush()
    auditor.write()
    first = world.events.page(EVERYTHING, max_items=4)
    rest = world.events.page(EVERYTHING, after=Cursor(first[-1].at_us, first[-1].id))
    assert [event.user for event in first + rest] == [f"user-{number}" for number in reversed(range(10))]


def test_top_tells_who_hit_which_rule_most(filled: World) -> None:
    top = filled.events.top
    assert [(one.rule, one.dimension, one.subject, one.events) for one in top(by="")] == [
        ("search", "", "", 159),
        ("shadow", "", "", 17),
    ]
    own = top()
    assert [(one.rule, one.dimension, one.subject) for one in own] == [
        ("search", "user", "user-0"),
        ("search", "user", "user-1"),
        ("search", "user", "user-2"),
        ("shadow", "ip", "192.0.2.7"),
    ]
    assert own[-1][3:6] == (0, 17, 17)
    assert [one.events for one in top(by="ip", rule="search")] == [159]
    assert [one.subject for one in top(by="tenant", max_items=1)] == ["acme"]
    assert top(by="no such fact") == []


def test_top_is_of_a_period_in_whole_minutes(filled: World) -> None:
    minute_us = START_US - START_US % MINUTE_US
    (whole,) = filled.events.top(by="", rule="search")
    assert (whole.first_us, whole.last_us) == (minute_us, minute_us + 3 * MINUTE_US)
    second = minute_us + MINUTE_US
    (part,) = filled.events.top(by="", rule="search", since_us=second + 5_000_000, until_us=second + MINUTE_US)
    assert part == Top("search", "", "", 54, 0, 54, second, second)


# Retention


def test_what_is_old_is_deleted_in_small_steps(world: World) -> None:
    auditor = world.auditor(retention=90 * DAY)
    rows = [{**dict.fromkeys(schema.events.c.keys(), None), **_row(number), "facts": {}} for number in range(2_500)]
    with world.database.write() as connection:
        connection.execute(insert(schema.events), rows)
    world.record(auditor, "old")
    auditor.flush()
    auditor.write()
    world.clock.advance(90 * DAY + 60)
    world.record(auditor, "new")
    auditor.flush()
    auditor.write()
    steps = []
    while step := auditor.retain():
        steps.append(step)
    assert steps[:3] == [1_000, 1_000, 501]
    assert max(steps[3:]) < 10  # counts; the run that is still at work stays
    assert world.users() == ["new"]
    assert world.counted() == {"new": 1}
    with world.database.read() as connection:
        assert connection.scalar(select(func.count()).select_from(schema.event_counts)) == 3
    assert auditor.status().deleted == sum(steps)


def _row(number: int) -> dict[str, Any]:
    texts = {"id": f"{number:026x}", "node": "n", "rule": "r", "reason": "over_limit", "dimension": "user"}
    figures = {"at_us": number, "cost": 1, "limit": 1, "remaining": 0, "weight": 1}
    return {**texts, **figures, "subject": "s", "allowed": False}


def test_retention_goes_on_by_itself_beside_changes(world: World) -> None:
    with world.database.write() as connection:
        rows = [{**_row(number), "facts": {}} for number in range(3_000)]
        connection.execute(insert(schema.events), rows)
    auditor = world.auditor()
    auditor.start()
    with Changes(world.database) as changes:
        for number in range(10):
            with changes.begin("alice") as change:
                change.create_rule(Rule(id=f"r{number}", quota="1/s"))
    until(lambda: auditor.status().deleted == 3_000)
    assert world.users() == []


def test_without_retention_nothing_is_deleted(world: World) -> None:
    auditor = world.auditor(retention=None)
    world.record(auditor, "old")
    auditor.flush()
    auditor.write()
    world.clock.advance(10_000 * DAY)
    assert auditor.retain() == 0
    assert world.users() == ["old"]
