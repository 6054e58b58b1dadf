"""One suite for every source of rules: a file, SQLite, PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import update

from headgate import AsyncLimiter, Limiter, Rule
from headgate.db import Changes, Database, migrate, queries, schema
from headgate.errors import InvalidRule
from headgate.rules import Source
from headgate.rules.sources.database import DatabaseSource
from headgate.rules.sources.file import FileSource

FOLLOWED = 1.0  # seconds in which a change is in force
LATEST = 10.0  # seconds after which a test gives up


@dataclass
class Made:
    """A source, and who changes its rules behind its back."""

    source: Source
    put: Callable[[int], None]  # make the limit of the only rule this
    spoil: Callable[[], None]  # make the rules nonsense
    url: str

    def limit(self) -> int:
        return self.source.holder.current.rules[0].quota.limit


@pytest.fixture(params=["file", "sqlite", "postgresql"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Made]:
    if request.param == "file":
        path = tmp_path / "rules.toml"

        def write(text: str) -> None:
            fresh = path.with_suffix(".new")
            fresh.write_text(text)
            fresh.replace(path)

        def put(limit: int) -> None:
            write(f'[[rules]]\nid = "r"\nlimit = {limit}\nwindow = "1h"\n')

        put(5)
        opened = Made(FileSource(path, watch=True), put, lambda: write("[[rules]]\nid = 'r'\nlimit = -1"), str(path))
        yield opened
        opened.source.close()
        return
    url = f"sqlite:///{tmp_path}/rules.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    migrate(url)
    with Changes(url) as changes:

        def put(limit: int) -> None:
            rule = Rule(id="r", quota=f"{limit}/hour")
            with changes.begin("test") as change:
                if changes.rule("r") is None:
                    change.create_rule(rule)
                else:
                    change.update_rule(rule)

        put(5)
        opened = Made(DatabaseSource(url), put, lambda: spoil(url), url)
        yield opened
        opened.source.close()


def spoil(url: str) -> None:
    """What `Changes` would never do."""
    database = Database(url)
    with database.write() as connection:
        connection.execute(update(schema.rules).values(limit=-1, version=1000))
        connection.execute(update(schema.snapshot).values(version=1000, rules_version=1000))
        if database.kind == "postgresql":
            queries.notify(connection, 1000)
    database.close()


def until(condition: Callable[[], bool]) -> float:
    """How long it took, in seconds, until a condition held."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < LATEST, "it never came true"
        time.sleep(0.005)
    return time.monotonic() - start


def test_it_is_a_source_with_a_good_snapshot(made: Made) -> None:
    assert isinstance(made.source, Source)
    assert made.limit() == 5


def test_a_change_is_in_force_within_a_second(made: Made) -> None:
    holder, version = made.source.holder, made.source.holder.current.version
    made.put(7)
    assert until(lambda: made.limit() == 7) <= FOLLOWED
    assert made.source.holder is holder
    assert holder.current.version != version


def test_reload_puts_what_is_there_in_force_and_returns_it(made: Made) -> None:
    made.put(8)
    snapshot = made.source.reload()
    assert snapshot.rules[0].quota.limit == 8
    assert made.source.holder.current.rules == snapshot.rules


def test_rules_that_are_not_good_never_replace_good_ones(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "headgate"):
        made.spoil()
        until(lambda: "limit" in caplog.text)
        assert "stays in force" in caplog.text
        with pytest.raises(InvalidRule, match="limit"):
            made.source.reload()
    assert made.limit() == 5


def test_a_limiter_takes_its_path_or_url(made: Made) -> None:
    with Limiter(made.url) as limiter:
        assert limiter.check("alice").limit == 5
        made.put(6)
        limiter.reload()
        assert limiter.check("alice").limit == 6
        assert limiter.check("alice").remaining == 3  # what was counted stays counted


async def _limit_of(url: str) -> int | None:
    async with AsyncLimiter(url) as limiter:
        return (await limiter.check("alice")).limit


def test_an_async_limiter_too(made: Made) -> None:
    assert asyncio.run(_limit_of(made.url)) == 5


def test_a_closed_source_keeps_its_rules_and_follows_no_more(made: Made) -> None:
    made.source.close()
    made.put(9)
    assert made.limit() == 5
