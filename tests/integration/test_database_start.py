"""How a source of rules begins: with a database that is away, broken, or empty."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import update

from headgate import Limiter, Rule
from headgate.db import Changes, Database, migrate, schema
from headgate.errors import DatabaseUnavailable
from headgate.rules import Snapshot
from headgate.rules.sources.database import DatabaseSource
from tests.integration.test_database import until
from tests.postgres import Postgres

FALLBACK = Snapshot([Rule(id="last-good", quota="3/hour")], version="of the disk")
SEED = Snapshot([Rule(id="sample", quota="5/hour")])


def ids(source: DatabaseSource) -> list[str]:
    return [rule.id for rule in source.holder.current.rules]


def test_with_a_fallback_it_begins_without_the_database_and_catches_up() -> None:
    server = Postgres()
    with pytest.raises(DatabaseUnavailable):
        DatabaseSource(server.url)
    source = DatabaseSource(server.url, fallback=FALLBACK, seed=SEED)
    try:
        limiter = Limiter(source)
        assert limiter.check(user="alice").rule == "last-good"
        assert source.status().failing
        with server:
            until(lambda: not source.status().failing)
            assert ids(source) == ["sample"]
            assert limiter.check(user="alice").rule == "sample"
            with source.changes().begin("alice") as change:
                change.create_rule(Rule(id="new", quota="5/hour"))
            assert ids(source) == ["sample", "new"]
    finally:
        source.close()


def test_rules_that_are_no_good_leave_the_fallback_in_force(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    migrate(database_url)
    with Changes(database_url) as changes, changes.begin("alice") as change:
        change.create_rule(Rule(id="r", quota="5/hour"))
    database = Database(database_url)
    with database.write() as connection:
        connection.execute(update(schema.rules).values(limit=-1))
    with caplog.at_level(logging.ERROR, "headgate"):
        source = DatabaseSource(database, fallback=FALLBACK, poll=0.1)  # the tables are changed without a notification
    assert ids(source) == ["last-good"]
    assert source.status().stale
    assert "limit" in caplog.text
    with database.write() as connection:
        connection.execute(update(schema.rules).values(limit=7))
        connection.execute(update(schema.snapshot).values(version=9, rules_version=9))
    until(lambda: ids(source) == ["r"])
    until(lambda: not source.status().stale)
    source.close()
    assert Changes(database).version() == 9, "a database that it was given is its owner's to close"
    database.close()


def test_only_a_database_that_never_held_anything_is_seeded(database_url: str) -> None:
    source = DatabaseSource(database_url, seed=SEED)
    assert ids(source) == ["sample"]
    assert [change.actor for change in source.changes().log()] == ["headgate"]
    with source.changes().begin("alice") as change:
        change.delete_rule("sample")
    source.close()
    again = DatabaseSource(database_url, seed=SEED)
    assert ids(again) == []
    again.close()
