"""Tokens in a database: only their hashes, each with its rows in the change log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from sqlalchemy import select

from headgate import Rule
from headgate.db import Changes, Database, Token, TokenTable, schema
from headgate.db.tokens import hash_of
from headgate.errors import ChangeConflict, DatabaseUnavailable, InvalidRule, NotFound
from headgate.rules.sources.database import DatabaseSource
from headgate.testing import FakeClock

DAY = 86_400


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(start=1_700_000_000.0)


@pytest.fixture
def database(migrated_url: str) -> Iterator[Database]:
    opened = Database(migrated_url)
    yield opened
    opened.close()


@pytest.fixture
def tokens(database: Database, clock: FakeClock) -> TokenTable:
    return TokenTable(database, clock=clock)


@pytest.fixture
def changes(database: Database) -> Changes:
    return Changes(database)


def create(tokens: TokenTable, name: str = "ci") -> tuple[Token, str]:
    return tokens.create(name, role="operator", scopes=["users", "check"], seconds=DAY, actor="alice")


def test_a_token_is_found_by_its_hash(tokens: TokenTable, clock: FakeClock) -> None:
    token, secret = create(tokens)
    assert re.fullmatch(r"hg_[A-Za-z0-9_-]{43}", secret)
    assert tokens.find([hash_of(secret), hash_of("other")]) == {hash_of(secret): token}
    assert (token.name, token.role, token.scopes) == ("ci", "operator", ("check", "users"))
    assert (token.created_us, token.created_by) == (clock.now_us(), "alice")
    assert token.expires_us == clock.now_us() + DAY * 1_000_000
    assert token.is_good(clock.now_us())
    assert not token.is_good(token.expires_us)


def test_no_two_are_alike(tokens: TokenTable) -> None:
    made = [create(tokens, f"t{number}") for number in range(20)]
    assert len({secret for _, secret in made}) == len({token.id for token, _ in made}) == 20


def test_the_secret_is_nowhere_in_the_database(tokens: TokenTable, database: Database) -> None:
    token, secret = create(tokens)
    tokens.revoke(token.id, actor="alice")
    with database.read() as connection:
        rows = {name: connection.execute(select(table)).all() for name, table in schema.metadata.tables.items()}
    assert secret not in repr(rows)
    assert secret.removeprefix("hg_") not in repr(rows)
    assert hash_of(secret) not in repr(rows["headgate_changes"])
    assert hash_of(secret) in repr(rows["headgate_tokens"])


def test_being_made_and_being_revoked_are_in_the_change_log_once(tokens: TokenTable, changes: Changes) -> None:
    token, _ = create(tokens)
    revoked = tokens.revoke(token.id, actor="bob")
    assert tokens.revoke(token.id, actor="carol") == revoked
    ended, made = changes.log()
    assert (*made[3:8], made.before) == ("alice", "create", "token", token.id, "", None)
    assert (*ended[3:7], ended.after) == ("bob", "delete", "token", token.id, None)
    assert made.after == ended.before
    assert made.after is not None
    assert made.after["name"] == "ci"
    assert not revoked.is_good(revoked.created_us)


def test_tokens_change_neither_version_nor_rules(tokens: TokenTable, changes: Changes, migrated_url: str) -> None:
    with changes.begin("alice") as change:
        change.create_rule(Rule(id="r", quota="1/s"))
    source = DatabaseSource(migrated_url)
    snapshot, loads = source.holder.current, source.status().loads
    token, _ = create(tokens)
    tokens.revoke(token.id, actor="alice")
    source.refresh()
    assert source.holder.current is snapshot
    assert source.status().loads == loads
    assert changes.version() == change.version
    source.close()


def test_a_name_is_free_again_once_its_token_is_no_longer_good(tokens: TokenTable, clock: FakeClock) -> None:
    first, _ = create(tokens)
    with pytest.raises(ChangeConflict, match="'ci' exists already"):
        create(tokens)
    tokens.revoke(first.id, actor="alice")
    create(tokens)
    clock.advance(DAY)
    create(tokens)
    assert [token.name for token in tokens.all()] == ["ci"] * 3


def test_of_several_who_make_a_token_of_one_name_one_does(tokens: TokenTable) -> None:
    start = Barrier(4)

    def attempt(_: int) -> bool:
        start.wait()
        try:
            create(tokens)
        except ChangeConflict:
            return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(attempt, range(4))) == [False, False, False, True]
    assert len(tokens.all()) == 1


def test_the_list_comes_in_pages_the_oldest_first(tokens: TokenTable, clock: FakeClock) -> None:
    made = []
    for number in range(5):
        made.append(create(tokens, f"t{number}")[0])
        clock.advance(1)
    first = tokens.all(max_items=2)
    assert first == made[:2]
    assert tokens.all(after=first[-1].id, max_items=2) == made[2:4]
    assert tokens.all(after=made[-1].id) == []


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb", "a\0b"])
def test_names_that_cannot_be(tokens: TokenTable, name: str) -> None:
    with pytest.raises(InvalidRule, match="name: must be a string of 1 to 100"):
        create(tokens, name)


@pytest.mark.parametrize("seconds", [0, 59.9, 11 * 366 * DAY, float("inf")])
def test_times_that_cannot_be(tokens: TokenTable, seconds: float) -> None:
    with pytest.raises(InvalidRule, match="expires_in: must be from 1 minute to 10 years"):
        tokens.create("ci", role="viewer", scopes=["check"], seconds=seconds, actor="alice")


@pytest.mark.parametrize("token_id", ["nobody", "a\0b", "\ud800"])
def test_one_that_is_not_there_cannot_be_revoked(tokens: TokenTable, token_id: str) -> None:
    with pytest.raises(NotFound, match="there is no token"):
        tokens.revoke(token_id, actor="alice")


def test_without_a_database(tmp_path: object) -> None:
    tokens = TokenTable(f"sqlite:///{tmp_path}/nowhere/x.db")
    with pytest.raises(DatabaseUnavailable):
        tokens.find([hash_of("x")])
    tokens.close()
