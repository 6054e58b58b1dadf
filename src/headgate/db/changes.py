"""Changes the rules and users in the database, and logs who changed what.

    changes = Changes("postgresql://…")
    with changes.begin("alice") as change:
        change.create_rule(Rule(id="search", quota="100/minute"))
        change.set_tier("bob", "premium")
    change.version                                      # of the snapshot that holds them

All changes of a `with` are one transaction, together with their rows in the change log and the new version. It is
committed when the `with` ends without an exception, and only if the rules are valid.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import select, tuple_

from headgate.core.clock import Clock, SystemClock
from headgate.db import queries, schema
from headgate.db.connection import LARGE_SECONDS, Database
from headgate.db.queries import Change, UserOverride
from headgate.db.records import Content, RuleRecord, override_of, unstorable
from headgate.db.transaction import Transaction
from headgate.rules.exemptions import Exemption
from headgate.rules.users import User

__all__ = ["Change", "Changes", "RuleRecord", "Transaction", "UserOverride"]


ChangeListener = Callable[[int, int, str, list[dict[str, Any]]], None]


class Changes:
    """Reads and changes the rules in a database. Safe to share between threads.

    `announce` is called with the new version after each commit, for listeners that the database cannot notify, and
    `listener` with the version, its time in microseconds, who made the changes, and the changes themselves.
    `clock` dates the changes. Every method raises `DatabaseError` if the database fails.
    """

    def __init__(
        self,
        database: str | Database,
        *,
        announce: Callable[[int], None] | None = None,
        listener: ChangeListener | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._owned = isinstance(database, str)
        self._database = Database(database) if isinstance(database, str) else database
        self._announce = announce
        self._listener = listener
        self._clock: Clock = clock or SystemClock()

    @contextmanager
    def begin(self, actor: str, *, reason: str = "", dry_run: bool = False) -> Iterator[Transaction]:
        """Begin a transaction of changes by `actor`, for a `reason` that the change log shows.

        Other transactions that make changes wait until it ends.

        With `dry_run`, all changes are made and checked, and then rolled back.

        Raises what its methods raise; `InvalidRule`, with every problem, if the resulting rules would be invalid; and
        `DatabaseError`. Then nothing has changed, with one exception: if the connection breaks during the commit, the
        outcome is unknown.
        """
        with self._database.write() as connection:
            transaction = Transaction(connection, actor, self._clock.now_us(), reason=reason)
            yield transaction
            changed = transaction.finish(notify=self._database.kind == "postgresql" and not dry_run)
            if dry_run:
                connection.rollback()
                return
        if changed and self._announce is not None:
            self._announce(transaction.version)
        if changed and self._listener is not None:
            self._listener(transaction.version, transaction.at_us, actor, transaction.differences)

    def log_reset(self, actor: str, subject: str, *, reason: str = "") -> None:
        """Log that `actor` has reset the counts of a subject."""
        with self._database.write() as connection:
            Transaction(connection, actor, self._clock.now_us(), reason=reason).log_reset(subject)

    def version(self) -> int:
        """Return the version of the snapshot."""
        with self._database.read() as connection:
            return queries.versions(connection).version

    def content(self) -> Content:
        """Return all rules, tiers, exemptions and settings. Raises `InvalidRule` if a stored one is invalid."""
        return self.content_and_version()[0]

    def content_and_version(self) -> tuple[Content, int]:
        """Return all rules, tiers, exemptions and settings, and the version in which any of them last changed."""
        with self._database.read(seconds=LARGE_SECONDS) as connection:
            return queries.content(connection), queries.versions(connection).rules_version

    def rules(self, *, after: str | None = None, max_items: int = 100) -> list[RuleRecord]:
        """Return rules by id, with their versions. For the next page, pass the last one's id as `after`."""
        table = schema.rules
        query = select(table).order_by(table.c.id).limit(max_items)
        if after is not None:
            query = query.where(table.c.id > after)
        with self._database.read() as connection:
            return list(queries.read_rules(connection, query).values())

    def rule(self, rule_id: str) -> RuleRecord | None:
        """Return one rule with its version; None if it does not exist."""
        if unstorable(rule_id):
            return None
        with self._database.read() as connection:
            return queries.rule(connection, rule_id)

    def user(self, user_id: str) -> User | None:
        """Return a user's tier and overrides."""
        if unstorable(user_id):
            return None
        with self._database.read() as connection:
            return queries.user(connection, user_id)

    def users(self, *, tier: str | None = None, after: str | None = None, max_items: int = 100) -> list[User]:
        """Return users with a tier or overrides, by id. For the next page, pass the last one's id as `after`."""
        table = schema.users
        query = select(table.c.id).order_by(table.c.id).limit(max_items)
        if tier is not None:
            query = query.where(table.c.tier == tier)
        if after is not None:
            query = query.where(table.c.id > after)
        with self._database.read(seconds=LARGE_SECONDS) as connection:
            ids = connection.scalars(query).all()
            found = queries.users(connection, ids)
        return [found[user_id] for user_id in ids]

    def overrides(
        self,
        *,
        user: str | None = None,
        rule: str | None = None,
        expired: bool | None = None,
        after: tuple[str, str] | None = None,
        max_items: int = 100,
    ) -> list[UserOverride]:
        """Return overrides by user and rule: all, or those of one user, of one rule, or only expired or current ones.

        For the next page, pass the last one's user and rule as `after`.
        """
        now_us, table = self._clock.now_us(), schema.overrides
        query = select(table).order_by(table.c.user_id, table.c.rule).limit(max_items)
        if user is not None:
            query = query.where(table.c.user_id == user)
        if rule is not None:
            query = query.where(table.c.rule == rule)
        if expired is not None:
            query = query.where(table.c.expires_us <= now_us if expired else queries.has_not_expired(now_us))
        if after is not None:
            query = query.where(tuple_(table.c.user_id, table.c.rule) > tuple_(*after))
        with self._database.read(seconds=LARGE_SECONDS) as connection:
            rows = connection.execute(query).mappings()
            return [UserOverride(row["user_id"], override_of(dict(row))) for row in rows]

    def exemptions(self) -> list[Exemption]:
        """Return all exemptions."""
        return self.content().exemptions

    def log(
        self,
        *,
        kind: str | Collection[str] | None = None,
        subject: str | None = None,
        before: int | None = None,
        max_items: int = 100,
    ) -> list[Change]:
        """Return the change log, the latest first: all of it, or only some kinds, or only one `subject`.

        For the next page, pass the last one's `id` as `before`.
        """
        table = schema.changes
        query = queries.select_changes().order_by(table.c.id.desc()).limit(max_items)
        if kind is not None:
            query = query.where(table.c.kind.in_([kind] if isinstance(kind, str) else kind))
        if subject is not None:
            query = query.where(table.c.subject == subject)
        if before is not None:
            query = query.where(table.c.id < before)
        with self._database.read(seconds=LARGE_SECONDS) as connection:
            return [Change(*row) for row in connection.execute(query)]

    def close(self) -> None:
        """Close the connections, if this was created from a URL."""
        if self._owned:
            self._database.close()

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()
