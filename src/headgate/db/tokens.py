"""Tokens of the service's callers: creates, finds and revokes them. The database has only their hashes.

A token is 256 random bits, so one round of SHA-256 is enough: a slower hash only protects what can be guessed. Creating
and revoking a token each write a row of the change log in the same transaction. As neither changes a rule or a user,
the snapshot's version stays, and no source has anything to load.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from hashlib import sha256
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, RowMapping, insert, select, update

from headgate.core.clock import Clock, SystemClock
from headgate.core.quota import MICROSECONDS
from headgate.db import queries, schema
from headgate.db.changes import ChangeListener
from headgate.db.connection import Database
from headgate.db.records import Table, time_text, unstorable
from headgate.errors import ChangeConflict, InvalidRule, NotFound, Problem

PREFIX: Final = "hg_"  # lets secret scanners recognize tokens
MAX_NAME: Final = 100  # characters
SHORTEST_SECONDS: Final = 60
LONGEST_SECONDS: Final = 10 * 366 * 86_400


class Token(NamedTuple):
    """The record of a token: everything but the secret."""

    id: str
    name: str  # shown in the change log
    role: str
    scopes: tuple[str, ...]
    created_us: int
    created_by: str
    expires_us: int
    revoked_us: int | None

    def is_good(self, now_us: int) -> bool:
        """Return whether the token is neither revoked nor expired."""
        return self.revoked_us is None and now_us < self.expires_us


class TokenTable:
    """The tokens in a database. Safe to share between threads. Every method raises `DatabaseError`.

    `listener` is called when a token is created or revoked, as in `Changes`.
    """

    def __init__(
        self, database: str | Database, *, listener: ChangeListener | None = None, clock: Clock | None = None
    ) -> None:
        self._owned = isinstance(database, str)
        self._database = Database(database) if isinstance(database, str) else database
        self._listener = listener
        self._clock: Clock = clock or SystemClock()

    def create(self, name: str, *, role: str, scopes: Iterable[str], seconds: float, actor: str) -> tuple[Token, str]:
        """Create a token that is valid for `seconds`. Return its record, and the secret, which is never shown again.

        Raises `InvalidRule` for an invalid name or time, and `ChangeConflict` if a valid token has that name, which the
        change log shows. The caller validates roles and scopes.
        """
        _validate(name, seconds)
        secret = PREFIX + secrets.token_urlsafe(32)
        now_us = self._clock.now_us()
        token = Token(
            id=f"{now_us // 1_000:011x}{secrets.token_hex(3)}",  # sorts by time
            name=name,
            role=role,
            scopes=tuple(sorted(set(scopes))),
            created_us=now_us,
            created_by=actor,
            expires_us=now_us + round(seconds * MICROSECONDS),
            revoked_us=None,
        )
        with self._database.write() as connection:
            version = queries.versions(connection, lock=True).version  # locks: two tokens must not get one name
            if any(one.is_good(now_us) for one in _tokens(connection, schema.tokens.c.name == name)):
                raise ChangeConflict(f"token {name!r} exists already: choose another name, or revoke it first")
            row = {**token._asdict(), "scopes": list(token.scopes), "hash": hash_of(secret)}
            connection.execute(insert(schema.tokens), row)
            change = _log_change(connection, version, now_us, actor, before=None, after=token)
        self._notify_listener(version, now_us, actor, change)
        return token, secret

    def revoke(self, token_id: str, *, actor: str) -> Token:
        """Revoke a token. Does nothing if it is revoked already. Raises `NotFound`."""
        now_us = self._clock.now_us()
        with self._database.write() as connection:
            version = queries.versions(connection, lock=True).version
            found = [] if unstorable(token_id) else _tokens(connection, schema.tokens.c.id == token_id)
            if not found:
                raise NotFound(f"there is no token {token_id!r}")
            before = found[0]
            if before.revoked_us is not None:
                return before
            after = before._replace(revoked_us=now_us)
            table = schema.tokens
            connection.execute(update(table).where(table.c.id == token_id).values(revoked_us=now_us))
            change = _log_change(connection, version, now_us, actor, before=before, after=None)
        self._notify_listener(version, now_us, actor, change)
        return after

    def all(self, *, after: str | None = None, max_items: int = 100) -> list[Token]:
        """Return all tokens, valid or not, the oldest first; for the next page, pass the last one's `id` as `after`."""
        table = schema.tokens
        query = select(table).order_by(table.c.id).limit(max_items)
        if after is not None:
            query = query.where(table.c.id > after)
        with self._database.read() as connection:
            return [_token(row) for row in connection.execute(query).mappings()]

    def valid_tokens(self, max_items: int) -> list[Token]:
        """Return the valid tokens, in order of their expiry."""
        table, now_us = schema.tokens, self._clock.now_us()
        query = select(table).where(table.c.revoked_us.is_(None), table.c.expires_us > now_us)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(table.c.expires_us).limit(max_items)).mappings()
            return [_token(row) for row in rows]

    def find(self, hashes: Collection[str]) -> dict[str, Token]:
        """Return the tokens with these hashes, valid or not, by hash."""
        table = schema.tokens
        with self._database.read() as connection:
            rows = connection.execute(select(table).where(table.c.hash.in_(hashes))).mappings()
            return {row["hash"]: _token(row) for row in rows}

    def close(self) -> None:
        """Close the connections, if this was created from a URL."""
        if self._owned:
            self._database.close()

    def _notify_listener(self, version: int, at_us: int, actor: str, change: Table) -> None:
        if self._listener is not None:
            self._listener(version, at_us, actor, [change])


def hash_of(secret: str) -> str:
    """Return the hash of a token's secret, as stored."""
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def token_table(token: Token) -> Table:
    """Return a token as the change log and the API show it."""
    return {
        "id": token.id,
        "name": token.name,
        "role": token.role,
        "scopes": list(token.scopes),
        "created": time_text(token.created_us),
        "created_by": token.created_by,
        "expires": time_text(token.expires_us),
        "revoked": None if token.revoked_us is None else time_text(token.revoked_us),
    }


def _validate(name: str, seconds: float) -> None:
    problems = []
    where = f"token {name!r}"
    if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= MAX_NAME or unstorable(name):
        message = f"must be a string of 1 to {MAX_NAME} characters without control characters, got {name!r}"
        problems.append(Problem(where, "name", message))
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        problems.append(Problem(where, "expires_in", f"must be from 1 minute to 10 years, got {seconds:g} s"))
    if problems:
        raise InvalidRule(*problems)


def _tokens(connection: Connection, condition: Any) -> list[Token]:
    return [_token(row) for row in connection.execute(select(schema.tokens).where(condition)).mappings()]


def _token(row: RowMapping) -> Token:
    values = {name: row[name] for name in Token._fields}
    return Token(**{**values, "scopes": tuple(values["scopes"])})


def _log_change(
    connection: Connection, version: int, at_us: int, actor: str, *, before: Token | None, after: Token | None
) -> Table:
    """Log the creation or revocation of a token, and return the change."""
    known = before or after
    assert known is not None
    change = {
        "action": "create" if before is None else "delete",
        "kind": "token",
        "subject": known.id,
        "before": None if before is None else token_table(before),
        "after": None if after is None else token_table(after),
    }
    connection.execute(insert(schema.changes), {"version": version, "at_us": at_us, "actor": actor, **change})
    return change
