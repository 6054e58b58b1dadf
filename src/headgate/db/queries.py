"""What is asked of the database. Each takes a connection, and leaves transactions to its caller."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from sqlalchemy import Connection, RowMapping, exists, func, select, text

from headgate.db import schema
from headgate.db.records import Content, Entry, entries_of, override_of, rule_of
from headgate.errors import InvalidRule
from headgate.rules.exemptions import Exemption
from headgate.rules.users import Override, User

CHANNEL: Final = "headgate"  # of PostgreSQL's NOTIFY

FIRST_VERSION: Final = 1  # of a database in which nothing was ever changed
MOST_CHANGED: Final = 500  # rules that are read one by one; when more have changed, all are
MOST_NAMED: Final = 10_000  # users in one query: databases count its parameters, and have a limit

log = logging.getLogger("headgate")


class Versions(NamedTuple):
    """Which state of the database this is."""

    version: int  # of everything
    rules_version: int  # of everything but users


class Change(NamedTuple):
    """A row of the change log. `before` and `after` are as in a rules file; None: there was or is none."""

    id: int
    version: int  # of the snapshot that it made
    at_us: int
    actor: str
    action: str  # "create", "update", "delete"
    kind: str  # "rule", "tier", "user", "exemption", "settings", "token"
    subject: str  # which one
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def versions(connection: Connection, *, lock: bool = False) -> Versions:
    """The version now. `lock` keeps all others from changing anything until the transaction ends."""
    query = select(schema.snapshot.c.version, schema.snapshot.c.rules_version)
    if lock:
        query = query.with_for_update()  # SQLite's transactions that write have locked everything already
    return Versions(*connection.execute(query).one())


def content(connection: Connection, known: Mapping[str, Entry] | None = None) -> Content:
    """Everything but users. Rules that are `known` in the same version are not read again.

    Raises `InvalidRule` with what is wrong with single rules and exemptions.
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


def _all_rules(connection: Connection) -> dict[str, Entry]:
    query = select(schema.rules).order_by(schema.rules.c.position, schema.rules.c.id)
    return entries_of(_rows(connection.execute(query).mappings().all()))


def _changed_rules(connection: Connection, known: Mapping[str, Entry]) -> dict[str, Entry]:
    table = schema.rules
    query = select(table.c.id, table.c.version).order_by(table.c.position, table.c.id)
    now = connection.execute(query).all()
    changed = [row.id for row in now if row.id not in known or known[row.id].version != row.version]
    if len(changed) > MOST_CHANGED:
        return _all_rules(connection)
    query = select(table).where(table.c.id.in_(changed))
    read = entries_of(_rows(connection.execute(query).mappings().all()))
    return {row.id: read.get(row.id) or known[row.id] for row in now}


def _rows(found: Sequence[RowMapping]) -> Sequence[Mapping[str, Any]]:
    """Rows by the names of their columns. They are that already, but for their type."""
    return cast("Sequence[Mapping[str, Any]]", found)


def tiers(connection: Connection) -> list[str]:
    """The names of the tiers, in order."""
    return list(connection.scalars(select(schema.tiers.c.name).order_by(schema.tiers.c.position)))


def rule(connection: Connection, rule_id: str) -> Entry | None:
    """One rule. Raises `InvalidRule`."""
    row = connection.execute(select(schema.rules).where(schema.rules.c.id == rule_id)).mappings().first()
    return None if row is None else Entry(rule_of(*_rows([row])), row["version"])


def rules(connection: Connection, *, after: str | None, most: int) -> list[Entry]:
    """Some rules, by id; `after` is the id at which to go on. Raises `InvalidRule`."""
    table = schema.rules
    query = select(table).order_by(table.c.id).limit(most)
    if after is not None:
        query = query.where(table.c.id > after)
    return list(entries_of(_rows(connection.execute(query).mappings().all())).values())


def users(connection: Connection, ids: Collection[str]) -> dict[str, User]:
    """Those of some users who have a tier or overrides, with both; expired overrides too.

    An override that makes no sense, which only somebody who went around `Changes` can have written, is left out.
    """
    table = schema.overrides
    query = (
        select(schema.users.c.id, schema.users.c.tier, *table.c)
        .outerjoin_from(schema.users, table, table.c.user_id == schema.users.c.id)
        .where(schema.users.c.id.in_(ids))
        .order_by(table.c.rule)
    )
    tiers: dict[str, str | None] = {}
    overrides: dict[str, list[Override]] = {}
    for row in connection.execute(query).mappings():
        tiers[row["id"]] = row["tier"]
        kept = overrides.setdefault(row["id"], [])
        if row["rule"] is not None:
            try:
                kept.append(override_of(dict(row)))
            except InvalidRule as error:
                log.warning("user %r: %s: ignored", row["id"], error)
    return {found: User(id=found, tier=tier, overrides=overrides[found]) for found, tier in tiers.items()}


def user(connection: Connection, user_id: str) -> User | None:
    """One of them."""
    return users(connection, [user_id]).get(user_id)


def users_kept(connection: Connection) -> tuple[bool, bool]:
    """Whether any user has a tier, and whether any has an override."""
    tiers = exists().where(schema.users.c.tier.is_not(None))
    row = connection.execute(select(tiers, exists(select(schema.overrides.c.rule)))).one()
    return bool(row[0]), bool(row[1])


def users_changed(connection: Connection, after: int, *, most: int) -> Collection[str] | None:
    """The users who changed after a version; None: more than `most`."""
    table = schema.changes
    query = select(table.c.subject).where(table.c.version > after, table.c.kind == "user").distinct().limit(most + 1)
    found = connection.scalars(query).all()
    return None if len(found) > most else found


def users_version(connection: Connection, ids: Sequence[str]) -> int:
    """The version in which any of some users last changed; 0: none ever did."""
    table = schema.changes
    query = select(func.max(table.c.version)).where(table.c.kind == "user")
    parts = [ids[start : start + MOST_NAMED] for start in range(0, len(ids), MOST_NAMED)]
    return max((connection.scalar(query.where(table.c.subject.in_(part))) or 0 for part in parts), default=0)


def changes(
    connection: Connection,
    *,
    kinds: Collection[str] | None,
    subject: str | None,
    before: int | None,
    most: int,
) -> list[Change]:
    """The change log, the latest first; `before` is the id of the change at which to go on."""
    table = schema.changes
    query = select(*(table.c[name] for name in Change._fields)).order_by(table.c.id.desc()).limit(most)
    if kinds is not None:
        query = query.where(table.c.kind.in_(kinds))
    if subject is not None:
        query = query.where(table.c.subject == subject)
    if before is not None:
        query = query.where(table.c.id < before)
    return [Change(*row) for row in connection.execute(query)]


def notify(connection: Connection, version: int) -> None:
    """Tell who listens, once the transaction is committed. PostgreSQL only."""
    connection.execute(text("SELECT pg_notify(:channel, :version)"), {"channel": CHANNEL, "version": str(version)})


def overridden(connection: Connection, rule_id: str) -> list[str]:
    """The users who have an override of a rule."""
    table = schema.overrides
    return list(connection.scalars(select(table.c.user_id).where(table.c.rule == rule_id).order_by(table.c.user_id)))


def kinds_of_override(connection: Connection, rule_id: str) -> list[dict[str, Any]]:
    """The overrides of a rule, those that say the same once, each with one of its users as `user_id`."""
    table = schema.overrides
    figures = (table.c.limit, table.c.window_us, table.c.burst)
    query = (
        select(func.min(table.c.user_id).label("user_id"), *figures).where(table.c.rule == rule_id).group_by(*figures)
    )
    return [{**row, "rule": rule_id, "expires_us": None} for row in connection.execute(query).mappings()]


def on_tier(connection: Connection, tier: str) -> str | None:
    """Some user who is on a tier."""
    table = schema.users
    return connection.scalars(select(table.c.id).where(table.c.tier == tier).limit(1)).first()
