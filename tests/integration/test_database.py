"""Rules in a database, with real servers and several processes."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect, select, update

from headgate import AsyncLimiter, Limiter, Rule
from headgate.db import Changes, Database, migrate, schema
from headgate.db.listener import listen
from headgate.errors import DatabaseError, DatabaseUnavailable
from headgate.rules import Exemption, Override, Tier, User
from headgate.rules.sources.database import DatabaseSource
from headgate.testing import FakeClock
from tests.integration import nodes
from tests.postgres import Postgres

FOLLOWED = 1.0  # seconds in which a change is in force
LATEST = 20.0  # seconds after which a test gives up


def until(condition: Callable[[], bool]) -> float:
    """How long it took, in seconds, until a condition held."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < LATEST, "it never came true"
        time.sleep(0.005)
    return time.monotonic() - start


def received(connection: Connection) -> Any:
    assert connection.poll(LATEST), "a process does not answer"
    return connection.recv()


def asked(connection: Connection, what: str, value: object) -> Any:
    connection.send((what, value))
    return received(connection)


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server that a test may kill."""
    with Postgres() as server:
        yield server


# Migrations


def test_migrations_make_the_very_tables_of_the_schema(database_url: str) -> None:
    migrate(database_url)
    database = Database(database_url)
    found = inspect(create_engine(database.url))
    assert {name for name in found.get_table_names() if name != schema.VERSION_TABLE} == set(schema.metadata.tables)
    for name, table in schema.metadata.tables.items():
        columns = {one["name"]: (str(one["type"].compile()), one["nullable"]) for one in found.get_columns(name)}
        dialect = found.dialect
        assert columns == {one.name: (one.type.compile(dialect), bool(one.nullable)) for one in table.columns}, name
        assert {one["name"] for one in found.get_indexes(name)} == {one.name for one in table.indexes}, name
        assert found.get_pk_constraint(name)["constrained_columns"] == [one.name for one in table.primary_key]
    found.bind.dispose()  # type: ignore[union-attr]
    database.close()


def test_migrating_again_changes_nothing(database_url: str) -> None:
    migrate(database_url)
    with Changes(database_url) as changes:
        with changes.begin("alice") as change:
            change.create_rule(Rule(id="r", quota="1/s"))
        migrate(database_url)
        assert changes.version() == change.version
        assert list(changes.content().rules) == ["r"]


def test_several_nodes_migrate_at_once(database_url: str) -> None:
    with ExitStack() as stack:
        pipes = [stack.enter_context(nodes.process(nodes.migrate_together, database_url))[1] for _ in range(4)]
        for pipe in pipes:
            received(pipe)
        for pipe in pipes:
            pipe.send("go")
        assert [received(pipe) for pipe in pipes] == [""] * 4
    with Changes(database_url) as changes:
        assert changes.version() == 1


def test_a_migration_that_fails_half_way_leaves_nothing(database_url: str) -> None:
    database = Database(database_url)
    with database.write() as connection:
        connection.exec_driver_sql("CREATE TABLE headgate_overrides (mine INTEGER)")  # in the way of ours
    with pytest.raises(DatabaseError, match="headgate_overrides"):
        migrate(database)
    found = inspect(create_engine(database.url))
    assert found.get_table_names() == ["headgate_overrides"]
    found.bind.dispose()  # type: ignore[union-attr]
    database.close()


def test_a_newer_database_is_left_alone(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    migrate(database_url)
    database = Database(database_url)
    with database.write() as connection:
        connection.exec_driver_sql(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'")
    migrate(database)
    assert "by a newer Headgate" in caplog.text
    database.close()


# Nodes that follow


def test_a_change_in_one_process_is_enforced_in_another_within_a_second(database_url: str) -> None:
    prepared(database_url)
    with (
        nodes.process(nodes.node, database_url) as (_, first),
        nodes.process(nodes.node, database_url) as (_, second),
    ):
        for pipe in (first, second):
            assert received(pipe) == "ready"
        assert asked(second, "check", "bob") == (True, 5)
        asked(first, "limit", 1)
        assert until(lambda: asked(second, "check", "bob") == (False, 1)) <= FOLLOWED
        assert asked(second, "check", "alice") == (True, 1)
        asked(first, "tier", "premium")
        assert until(lambda: asked(second, "check", "alice")[1] == 100) <= FOLLOWED


def test_forked_processes_follow_and_leave_their_parent_alone(database_url: str) -> None:
    prepared(database_url)
    with nodes.process(nodes.forked_node, database_url) as (_, pipe), Changes(database_url) as changes:
        for limit, stranger in ((2, "bob"), (3, "carol")):  # the child, then the parent
            assert received(pipe) == "ready"
            assert asked(pipe, "check", "zoe")[1] == 100
            with changes.begin("test") as change:
                change.update_rule(Rule(id="r", quota=f"{limit}/hour", group="plan", priority=2))
            assert until(lambda: asked(pipe, "check", stranger)[1] == limit) <= FOLLOWED  # noqa: B023
            pipe.send(("stop", None))


def test_the_same_after_postgresql_was_killed(own_postgres: Postgres) -> None:
    url = own_postgres.url
    prepared(url)
    with nodes.process(nodes.node, url) as (_, first), nodes.process(nodes.node, url) as (_, second):
        for pipe in (first, second):
            assert received(pipe) == "ready"
        own_postgres.kill()
        for pipe in (first, second):
            assert asked(pipe, "check", "bob") == (True, 5)  # the last good rules; bob has the default tier
        own_postgres.start()
        asked(first, "limit", 3)
        assert until(lambda: asked(second, "check", "dave")[1] == 3) <= FOLLOWED
        asked(first, "tier", "premium")
        assert until(lambda: asked(second, "check", "alice")[1] == 100) <= FOLLOWED


def prepared(url: str) -> None:
    """One rule for all, another for the tier premium instead."""
    migrate(url)
    with Changes(url) as changes, changes.begin("test") as change:
        change.create_rule(Rule(id="premium", quota="100/hour", tiers=["premium"], group="plan", priority=1))
        change.create_rule(Rule(id="r", quota="5/hour", group="plan", priority=2))
        change.set_tier("zoe", "premium")


def test_while_the_database_is_away_the_last_good_rules_serve_and_it_heals_by_itself(
    own_postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    url = own_postgres.url
    migrate(url)
    with Changes(url) as changes, changes.begin("test") as change:
        change.create_rule(Rule(id="free", quota="5/hour", tiers=["free"]))
        change.create_rule(Rule(id="premium", quota="100/hour", tiers=["premium"]))
        change.update_settings(default_tier="free")
        change.set_tier("alice", "premium")
        change.set_tier("zoe", "premium")
    source = DatabaseSource(url, poll=0.1)
    caplog.set_level(logging.INFO, "headgate")
    with Limiter(source) as limiter:
        assert limiter.check(user="alice").limit == 100
        own_postgres.kill()
        until(lambda: source.status().failures > 3)
        status = source.status()
        assert status.failing
        assert status.error is not None
        assert status.failing_since == pytest.approx(time.time(), abs=LATEST)
        assert limiter.check(user="alice").limit == 100  # remembered
        assert limiter.check(user="zoe").limit == 5  # not known: the default tier
        assert source.status().users.unanswered == 1
        with pytest.raises(DatabaseUnavailable):
            limiter.reload()

        own_postgres.start()
        until(lambda: not source.status().failing)
        until(lambda: limiter.check(user="zoe").limit == 100)
        assert not source.status().users.failing
    source.close()
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    for level, words in (
        ("ERROR", "stays in force"),
        ("WARNING", "answers again"),
        ("ERROR", "users cannot be looked up"),
        ("WARNING", "users are looked up again"),
    ):
        assert sum(one == level and words in text for one, text in lines) == 1, (words, lines)


def test_a_poll_finds_what_no_notification_told(postgres_url: str) -> None:
    migrate(postgres_url)
    source = DatabaseSource(postgres_url, poll=0.2)
    database = Database(postgres_url)
    with database.write() as connection:  # without NOTIFY
        connection.execute(schema.exemptions.insert(), {"type": "user", "value": "bob"})
        connection.execute(update(schema.snapshot).values(version=2, rules_version=2))
    until(lambda: source.holder.current.exemptions == (Exemption(type="user", value="bob"),))
    source.close()
    database.close()


def test_redis_tells_too(postgres_url: str, redis_url: str) -> None:
    migrate(postgres_url)
    source = DatabaseSource(postgres_url, redis=redis_url)
    other = DatabaseSource(postgres_url, redis=redis_url)
    try:
        for one in (source, other):  # deaf to PostgreSQL's notifications, and none but Redis's left
            until(lambda one=one: one._listener is not None)  # type: ignore[misc]
            listener = one._listener
            assert listener is not None
            listener._heard = lambda: False  # type: ignore[attr-defined]
        with Changes(postgres_url, announce=source._announce) as changes, changes.begin("test") as change:
            change.create_rule(Rule(id="r", quota="1/s"))
        assert source.holder.current.version == str(change.version)
        assert until(lambda: other.holder.current.version == str(change.version)) <= FOLLOWED
    finally:
        source.close()
        other.close()


def test_a_listener_that_is_closed_already_may_be_woken(database_url: str) -> None:
    """As when who closes a source comes after the thread that follows it has seen that it is to end."""
    migrate(database_url)
    with closing(Database(database_url)) as database:
        listener = listen(database)
        listener.close()
        listener.wake()


def test_a_database_that_is_away_to_begin_with_is_an_error() -> None:
    with pytest.raises(DatabaseUnavailable):
        Limiter("postgresql://nobody@127.0.0.1:1/none")


# Users


@pytest.fixture
def plans(database_url: str) -> str:
    """Free and premium; alice is premium, bob has an override."""
    migrate(database_url)
    with Changes(database_url) as changes, changes.begin("test") as change:
        for name, quota in (("free", "5/hour"), ("premium", "100/hour")):
            change.create_tier(Tier(name=name))
            change.create_rule(Rule(id=name, quota=quota, tiers=[name]))
        change.update_settings(default_tier="free")
        change.set_tier("alice", "premium")
        change.put_override("bob", Override(rule="free", limit=50, expires=datetime(2030, 1, 1, tzinfo=UTC)))
    return database_url


def test_tiers_and_overrides_are_looked_up(plans: str) -> None:
    clock = FakeClock(start=datetime(2029, 12, 31, tzinfo=UTC).timestamp())
    with Limiter(plans, clock=clock) as limiter:
        assert limiter.snapshot.users == ()
        assert limiter.check(user="alice").limit == 100
        assert limiter.check(user="alice", tier="free").limit == 5  # what the request says comes first
        assert limiter.check(user="bob").limit == 50
        assert limiter.check(user="carol").limit == 5
        assert limiter.check(user="a\0b").limit == 5
        assert limiter.check(user="a\udc80b").limit == 5
        clock.advance(86_400)
        assert limiter.check(user="bob").limit == 5  # it has expired


def test_a_change_of_a_user_leaves_the_rules_alone(plans: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.rules.sources.database.MAX_FORGOTTEN", 10)
    source = DatabaseSource(plans)
    with Limiter(source) as limiter, Changes(plans) as changes:
        assert limiter.check(user="carol").limit == 5
        loads, planner = source.status().loads, limiter.snapshot.planner
        with changes.begin("test") as change:
            change.set_tier("carol", "premium")
        assert until(lambda: limiter.check(user="carol").limit == 100) <= FOLLOWED
        assert limiter.snapshot.version == str(change.version)
        assert (source.status().loads, limiter.snapshot.planner) == (loads, planner)
        with changes.begin("test") as change:
            for number in range(11):  # more than are forgotten one by one
                change.set_tier(f"user-{number}", "premium")
            change.delete_user("carol")
        assert until(lambda: limiter.check(user="carol").limit == 5) <= FOLLOWED
    source.close()


def test_rules_that_ask_for_no_user_look_none_up(database_url: str) -> None:
    migrate(database_url)
    source = DatabaseSource(database_url)
    with Limiter(source) as limiter, source.changes() as changes:
        with changes.begin("test") as change:
            change.create_rule(Rule(id="r", quota="5/hour"))
        limiter.check(user="alice")
        assert source.status().users.queries == 0  # nobody has a tier or an override
        with changes.begin("test") as change:
            change.set_tier("alice", "premium")
        limiter.check(user="alice")
        assert source.status().users.queries == 0  # no rule asks for a tier
        with changes.begin("test") as change:
            change.put_override("bob", Override(rule="r", limit=7))
        assert limiter.check(user="alice").limit == 5
        assert limiter.check(user="bob").limit == 7
        assert source.status().users.queries == 2
    source.close()


def test_an_async_limiter_looks_users_up_without_blocking_the_event_loop(plans: str) -> None:
    async def main() -> None:
        source = DatabaseSource(plans, users_deadline=LATEST)
        fetch, threads = source._directory._fetch, []

        def slow(ids: Any) -> Any:
            threads.append(1)
            time.sleep(1)
            return fetch(ids)

        source._directory._fetch = slow
        async with AsyncLimiter(source) as limiter:
            longest, ticking = 0.0, True

            async def tick() -> None:
                nonlocal longest
                while ticking:
                    before = time.monotonic()
                    await asyncio.sleep(0.005)
                    longest = max(longest, time.monotonic() - before)

            ticker = asyncio.create_task(tick())
            decisions = await asyncio.gather(*(limiter.check(user="alice") for _ in range(10)))
            assert {decision.limit for decision in decisions} == {100}
            assert len(threads) == 1
            many = await limiter.check_many([{"user": "bob"}, "carol", {"user": "alice", "cost": 2}])
            assert [decision.limit for decision in many] == [50, 5, 100]
            assert (await limiter.peek(user="bob")).limit == 50
            await limiter.reset(user="bob")
            ticking = False
            await ticker
            assert longest < 0.7  # a busy machine may be late, but not by a second
        source.close()

    asyncio.run(main())


def test_a_sync_limiter_waits_no_longer_than_the_deadline(plans: str) -> None:
    source = DatabaseSource(plans, users_deadline=0.05)
    fetch = source._directory._fetch

    def stuck(ids: Any) -> Any:
        time.sleep(0.5)
        return fetch(ids)

    source._directory._fetch = stuck
    with Limiter(source) as limiter:
        start = time.monotonic()
        assert limiter.check(user="alice").limit == 5
        for number in range(100):
            assert limiter.check(user=f"user-{number}").limit == 5
        assert time.monotonic() - start < 0.45  # one deadline, not a hundred
        until(lambda: limiter.check(user="alice").limit == 100)
    source.close()


# Writers that are killed


def test_no_acknowledged_change_is_lost_nor_does_one_stand_without_its_log(database_url: str, thorough: bool) -> None:
    """A writer is killed in a burst of changes, each time at another moment."""
    kills = 20 if thorough else 6
    migrate(database_url)
    moments = random.Random(20)
    acknowledged: dict[str, tuple[int, int]] = {}
    for kill in range(kills):
        name = f"writer{kill}"
        with nodes.process(nodes.write, database_url, name) as (writer, pipe):
            acknowledged[name] = received(pipe)
            time.sleep(moments.uniform(0, 0.03))
            writer.kill()
            writer.join()
            while True:
                try:
                    acknowledged[name] = pipe.recv()
                except EOFError:
                    break
                except OSError:  # cut off in the middle of a message: that one was not received
                    break
    with Changes(database_url) as changes:
        log = changes.log(max_items=1_000_000)[::-1]
        rules = {entry.rule.id: entry for entry in changes.content().rules.values()}
        version = changes.version()
    replayed: dict[str, tuple[int, int]] = {}
    users: dict[str, Any] = {}
    for change in log:
        if change.kind == "user":
            users[change.subject] = change.after
        elif change.after is None:
            del replayed[change.subject]
        else:
            replayed[change.subject] = (change.after["limit"], change.version)
    # What is there is what the log says, no more and no less …
    assert {name: (entry.rule.quota.limit, entry.version) for name, entry in rules.items()} == replayed
    assert user_tiers(database_url) == {name: after["tier"] for name, after in users.items()}
    assert sorted({change.version for change in log}) == list(range(2, version + 1))
    # … each transaction is all there …
    for writer_name, (number, _) in acknowledged.items():
        mine = [change for change in log if change.actor == writer_name]
        last = max(int(change.subject.split("-")[1]) for change in mine if change.kind == "rule")
        assert len(mine) == 4 * last - 3 if last > 1 else 2
        # … and every change that was acknowledged is in it.
        assert last >= number
        assert last - number <= 2  # one under way, and one whose message was cut off
        assert {f"{writer_name}-{last}"} <= rules.keys()
    assert sum(number for number, _ in acknowledged.values()) >= kills


def user_tiers(url: str) -> dict[str, str | None]:
    database = Database(url)
    with database.read() as connection:
        found = {row.id: row.tier for row in connection.execute(select(schema.users))}
    database.close()
    return found


def test_a_sqlite_file_needs_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Limiter("sqlite:///rules.db") as limiter:
        assert limiter.check("alice").reason == "no_rule"
    assert Path("rules.db").exists()


def test_a_user_of_the_database_has_periods_of_their_own(migrated_url: str) -> None:
    clock = FakeClock(datetime(2026, 2, 10, tzinfo=UTC).timestamp())
    with closing(DatabaseSource(migrated_url)) as source, source.changes() as changes:
        with changes.begin("alice") as change:
            change.create_rule(Rule(id="plan", quota="100/calendar month"))
            change.put_users([User(id="bob", anchor=15)])
        with Limiter(source, clock=clock) as limiter:
            assert limiter.check(user="bob").reset_at == datetime(2026, 2, 15, tzinfo=UTC).timestamp()
            assert limiter.check(user="carol").reset_at == datetime(2026, 3, 1, tzinfo=UTC).timestamp()
