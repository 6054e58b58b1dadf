"""Database queries. Each takes a connection, and leaves transactions to its caller."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

from sqlalchemy import Connection, exists, func, or_, select, text
from sqlalchemy.sql import Select

from headgate.db import schema
from headgate.db.records import Content, RuleRecord, entries_of, override_of
from headgate.errors import InvalidRule
from headgate.rules.exemptions import Exemption
from headgate.rules.users import Override, User

CHANNEL: Final = "headgate"  # of PostgreSQL's NOTIFY

FIRST_VERSION: Final = 1  # of a database without any changes
OUTSIDE: Final = ("token", "counts")  # kinds of changes that are not part of a snapshot, and make no new version
MAX_CHANGED: Final = 500  # changed rules that are read by id; if more have changed, all rules are read
MAX_IDS: Final = 10_000  # users in one query: databases limit its parameters

log = logging.getLogger("headgate")


class Versions(NamedTuple):
    """The versions of the database's state."""

    version: int  # of everything
    rules_version: int  # of everything except users


class UserOverride(NamedTuple):
    """An override with its user."""

    user: str
    override: Override


class Change(NamedTuple):
    """A row of the change log. `before` and `after` are as in a rules file; None: there was or is none."""

    id: int
    version: int  # of the snapshot after it
    at_us: int
    actor: str
    action: str  # "create", "update", "delete"
    kind: str  # "rule", "tier", "user", "exemption", "settings", "token"
    subject: str  # its id or name
    reason: str  # empty: none
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def versions(connection: Connection, *, lock: bool = False) -> Versions:
    """Return the current versions. `lock` blocks all other changes until the transaction ends."""
    query = select(schema.snapshot.c.version, schema.snapshot.c.rules_version)
    if lock:
        query = query.with_for_update()  # SQLite's write transactions have locked everything already
    return Versions(*connection.execute(query).one())


def content(connection: Connection, known: Mapping[str, RuleRecord] | None = None) -> Content:
    """Return everything except users. Rules `known` in the same version are not read again.

    Raises `InvalidRule` with the problems of single rules and exemptions.
    """
    return Content(
        rules=_all_rules(connection) if not known else _changed_rules(connection, known),
        tiers=tiers(connection),
        exemptions=[
            Exemption(type=row.type, value=row.value)
            for row in connection.execute(select(schema.exemptions).order_by(*schema.exemptions.primary_key))
        ],
        settings={row.section: row.value for row in connection.execute(select(schema.settings))},
    )


def _all_rules(connection: Connection) -> dict[str, RuleRecord]:
    query = select(schema.rules).order_by(schema.rules.c.position, schema.rules.c.id)
    return read_rules(connection, query)


def _changed_rules(connection: Connection, known: Mapping[str, RuleRecord]) -> dict[str, RuleRecord]:
    table = schema.rules
    query = select(table.c.id, table.c.version).order_by(table.c.position, table.c.id)
    now = connection.execute(query).all()
    changed = [row.id for row in now if row.id not in known or known[row.id].version != row.version]
    if len(changed) > MAX_CHANGED:
        return _all_rules(connection)
    read = read_rules(connection, select(table).where(table.c.id.in_(changed)))
    return {row.id: read.get(row.id) or known[row.id] for row in now}


def read_rules(connection: Connection, query: Select[Any]) -> dict[str, RuleRecord]:
    """Return the rules that a query finds, by id. Raises `InvalidRule` with every problem."""
    return entries_of(cast("Sequence[Mapping[str, Any]]", connection.execute(query).mappings().all()))


def tiers(connection: Connection) -> list[str]:
    """Return the names of the tiers, in order."""
    return list(connection.scalars(select(schema.tiers.c.name).order_by(schema.tiers.c.position)))


def rule(connection: Connection, rule_id: str) -> RuleRecord | None:
    """Return one rule; None if it does not exist. Raises `InvalidRule`."""
    return read_rules(connection, select(schema.rules).where(schema.rules.c.id == rule_id)).get(rule_id)


def users(connection: Connection, ids: Collection[str]) -> dict[str, User]:
    """Return those of some users who have a tier or overrides, with both, including expired overrides.

    Invalid overrides are ignored. Only a program that bypasses `Changes` can have written one.
    """
    found: dict[str, tuple[str | None, int | str | None]] = {}  # tier and anchor
    overrides: dict[str, list[Override]] = {}
    for part in parts(list(ids)):
        for row in connection.execute(_users(part)).mappings():
            found[row["id"]] = row["tier"], row["anchor"]
            kept = overrides.setdefault(row["id"], [])
            if row["rule"] is not None:
                try:
                    kept.append(override_of(dict(row)))
                except InvalidRule as error:
                    log.warning("user %r: %s: ignored", row["id"], error)
    return {
        name: User(id=name, tier=tier, anchor=anchor, overrides=sorted(overrides[name], key=attrgetter("rule")))
        for name, (tier, anchor) in found.items()
    }


def _users(ids: Collection[str]) -> Select[Any]:
    table = schema.overrides
    joined = table.c.user_id == schema.users.c.id
    query = select(*schema.users.c, *table.c).outerjoin_from(schema.users, table, joined)
    return query.where(schema.users.c.id.in_(ids))


def parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Split ids into parts that each fit into one query."""
    for start in range(0, len(ids), MAX_IDS):
        yield ids[start : start + MAX_IDS]


def user(connection: Connection, user_id: str) -> User | None:
    """Return one user with a tier or overrides; None otherwise."""
    return users(connection, [user_id]).get(user_id)


def has_not_expired(now_us: int) -> Any:
    expires_us = schema.overrides.c.expires_us
    return or_(expires_us.is_(None), expires_us > now_us)


def has_users(connection: Connection) -> tuple[bool, bool]:
    """Return whether any user has a tier, and whether any has an override or an anchor."""
    tiers = exists().where(schema.users.c.tier.is_not(None))
    anchors = exists().where(schema.users.c.anchor.is_not(None))
    row = connection.execute(select(tiers, exists(select(schema.overrides.c.rule)), anchors)).one()
    return bool(row[0]), bool(row[1] or row[2])


def find_changed_users(connection: Connection, after: int, *, max_items: int) -> Collection[str] | None:
    """Return the users who changed after a version; None if more than `max_items`."""
    table = schema.changes
    query = (
        select(table.c.subject).where(table.c.version > after, table.c.kind == "user").distinct().limit(max_items + 1)
    )
    found = connection.scalars(query).all()
    return None if len(found) > max_items else found


def users_version(connection: Connection, ids: Sequence[str]) -> int:
    """Return the version in which any of these users last changed; 0 if none did."""
    table = schema.changes
    query = select(func.max(table.c.version)).where(table.c.kind == "user")
    return max((connection.scalar(query.where(table.c.subject.in_(part))) or 0 for part in parts(ids)), default=0)


def change(connection: Connection, change_id: int) -> Change | None:
    """Return one row of the change log; None if it does not exist."""
    row = connection.execute(select_changes().where(schema.changes.c.id == change_id)).first()
    return None if row is None else Change(*row)


def changes_of(connection: Connection, version: int) -> list[Change]:
    """Return the changes of a version in order, without those of kinds in `OUTSIDE`, which make no version."""
    table = schema.changes
    query = select_changes().where(table.c.version == version, table.c.kind.not_in(OUTSIDE)).order_by(table.c.id)
    return [Change(*row) for row in connection.execute(query)]


def change_after(connection: Connection, first: Change, *, together: bool) -> Change | None:
    """Return the latest later change of what `first`, or with `together` its transaction, changed; None without one."""
    own, later = schema.changes.alias("own"), schema.changes.alias("later")
    same = (own.c.kind == later.c.kind) & (own.c.subject == later.c.subject)
    if together:
        condition = (own.c.version == first.version) & (own.c.kind.not_in(OUTSIDE)) & (later.c.version > first.version)
    else:
        condition = (own.c.id == first.id) & (later.c.id > first.id)
    query = select(*(later.c[name] for name in Change._fields)).join_from(own, later, same).where(condition)
    row = connection.execute(query.order_by(later.c.id.desc()).limit(1)).first()
    return None if row is None else Change(*row)


def select_changes() -> Select[Any]:
    """Return a query for rows of the change log."""
    return select(*(schema.changes.c[name] for name in Change._fields))


def notify(connection: Connection, version: int) -> None:
    """Notify listeners when the transaction commits. PostgreSQL only."""
    connection.execute(text("SELECT pg_notify(:channel, :version)"), {"channel": CHANNEL, "version": str(version)})


def users_with_override(connection: Connection, rule_id: str) -> list[str]:
    """Return the users with an override of a rule, expired or not."""
    table = schema.overrides
    return list(connection.scalars(select(table.c.user_id).where(table.c.rule == rule_id).order_by(table.c.user_id)))


def kinds_of_override(connection: Connection, rule_id: str, now_us: int) -> list[dict[str, Any]]:
    """Return the distinct current overrides of a rule, each with one of its users as `user_id`."""
    table = schema.overrides
    figures = (table.c.limit, table.c.window_us, table.c.burst)
    query = (
        select(func.min(table.c.user_id).label("user_id"), *figures)
        .where(table.c.rule == rule_id, has_not_expired(now_us))
        .group_by(*figures)
    )
    return [{**row, "rule": rule_id, "expires_us": None} for row in connection.execute(query).mappings()]


def find_user_on_tier(connection: Connection, tier: str) -> str | None:
    """Return any user on a tier; None if there is none."""
    table = schema.users
    return connection.scalars(select(table.c.id).where(table.c.tier == tier).limit(1)).first()
