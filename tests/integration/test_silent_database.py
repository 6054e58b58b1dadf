"""A PostgreSQL that is there and says nothing, as when its disk stalls: no call waits for it for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from sqlalchemy import insert, text

from headgate import Rule
from headgate.db import Changes, Database, migrate, schema
from headgate.db.bound import ANSWER_SECONDS
from headgate.db.connection import POSTGRES
from headgate.errors import DatabaseUnavailable
from headgate.rules.sources.database import DatabaseSource
from tests.postgres import Postgres
from tests.waiting import until

STUCK = 30.0
BOUND = ANSWER_SECONDS + POSTGRES["connect_timeout"] + 3  # to see that it is silent, and a new connection too


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    migrate(postgres_url)
    with closing(Database(postgres_url)) as database:
        yield database


def version(database: Database) -> int:
    return Changes(database).version()


def test_a_connection_of_the_pool_that_is_silent(postgres: Postgres, database: Database) -> None:
    before = version(database)
    with postgres.frozen():
        began = time.monotonic()
        with pytest.raises(DatabaseUnavailable):
            version(database)
        assert time.monotonic() - began < BOUND
    assert version(database) == before


def test_silence_within_a_transaction(postgres: Postgres, database: Database) -> None:
    rows = [{"type": "user", "value": f"u{number}"} for number in range(1_000)]

    def write() -> None:
        with database.write(seconds=0.5) as connection:
            connection.execute(insert(schema.exemptions), rows[:1])
            with postgres.frozen():
                connection.execute(insert(schema.exemptions), rows[1:])

    with pytest.raises(DatabaseUnavailable, match=r"no answer within 0\.5 s"):
        write()
    assert Changes(database).exemptions() == []


def test_silence_while_committing(postgres: Postgres, database: Database) -> None:
    def write(stack: ExitStack) -> None:
        with database.write(seconds=0.5) as connection:
            connection.execute(insert(schema.exemptions), [{"type": "user", "value": "u"}])
            stack.enter_context(postgres.frozen())

    with ExitStack() as stack, pytest.raises(DatabaseUnavailable, match=r"no answer within 0\.5 s"):
        write(stack)
    assert version(database) == 1


def test_more_to_send_than_a_socket_takes(postgres: Postgres, database: Database) -> None:
    large = "x" * 50_000_000
    with (
        pytest.raises(DatabaseUnavailable, match=r"no answer within 0\.5 s"),
        database.read(seconds=0.5) as connection,
        postgres.frozen(),
    ):
        connection.execute(text("SELECT length(:large)"), {"large": large})


def test_rows_that_keep_coming_are_no_silence(database: Database) -> None:
    slowly = text("SELECT repeat('x', 20000), pg_sleep(0.3) FROM generate_series(1, 8)")
    with database.read(seconds=1.0) as connection:
        began = time.monotonic()
        assert len(connection.execute(slowly).all()) == 8
        assert time.monotonic() - began > 2.0


def test_a_longer_silence_is_for_those_who_ask_for_it_alone(database: Database) -> None:
    pause = text("SELECT pg_sleep(1)")
    with database.read(seconds=STUCK) as connection:
        connection.execute(pause)
    with pytest.raises(DatabaseUnavailable), database.read(seconds=0.2) as connection:
        connection.execute(pause)
    with database.read() as connection:
        connection.execute(pause)


def test_closing_ends_what_waits(database: Database) -> None:
    def wait() -> None:
        with database.read(seconds=STUCK) as connection:
            started.append(True)
            connection.execute(text("SELECT pg_sleep(20)"))

    started: list[bool] = []
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait)
        until(lambda: started)
        began = time.monotonic()
        database.close()
        with pytest.raises(DatabaseUnavailable, match="was closed"):
            waiting.result(STUCK)
        assert time.monotonic() - began < 5


def test_a_source_sees_by_its_poll_that_the_database_is_silent_and_is_back_by_itself(
    postgres: Postgres, postgres_url: str
) -> None:
    source = DatabaseSource(postgres_url, poll=0.2)
    try:
        until(lambda: source._listener is not None)
        with postgres.frozen():
            until(lambda: source.status().failing, seconds=BOUND)
        until(lambda: not source.status().failing)
        with Changes(postgres_url) as changes, changes.begin("alice") as change:
            change.create_rule(Rule(id="r", quota="5/hour"))
        until(lambda: source.holder.current.version == str(change.version))
    finally:
        source.close()


@pytest.mark.parametrize("wait", [0.0, 1.0])
def test_a_source_can_be_closed_while_the_database_is_silent(
    postgres: Postgres, postgres_url: str, wait: float, caplog: pytest.LogCaptureFixture
) -> None:
    source = DatabaseSource(postgres_url, poll=0.2)
    until(lambda: source._listener is not None)
    caplog.clear()
    with postgres.frozen():
        time.sleep(wait)  # for its thread to ask
        began = time.monotonic()
        source.close()
        assert time.monotonic() - began < 3
        source._thread.join(BOUND)
    assert not source._thread.is_alive()
    assert caplog.messages == []
