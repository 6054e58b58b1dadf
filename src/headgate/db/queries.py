"""Database queries. Each takes a connection, and leaves transactions to its caller."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

from sqlalchemy import Connection, RowMapping, exists, func, or_, select, text, tuple_
from sqlalchemy.sql import Select

from headgate.db import schema
from headgate.db.records import Content, RuleRecord, entries_of, override_of, rule_of
from headgate.errors import InvalidRule
from headgate.rules.exemptions import Exemption
from headgate.rules.users import Override, User

CHANNEL: Final = "headgate"  # of PostgreSQL's NOTIFY

FIRST_VERSION: Final = 1  # of a database without any changes
OUTSIDE: Final = ("token", "counts")  # kinds of changes that are not part of a snapshot, and make no new version
MOST_CHANGED: Final = 500  # changed rules that are read by id; if more have changed, all rules are read
MOST_NAMED: Final = 10_000  # users in one query: databases limit its parameters

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
    return entries_of(_rows(connection.execute(query).mappings().all()))


def _changed_rules(connection: Connection, known: Mapping[str, RuleRecord]) -> dict[str, RuleRecord]:
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
    """Cast rows to mappings by column name, for the type checker."""
    return cast("Sequence[Mapping[str, Any]]", found)


def tiers(connection: Connection) -> list[str]:
    """Return the names of the tiers, in order."""
    return list(connection.scalars(select(schema.tiers.c.name).order_by(schema.tiers.c.position)))


def rule(connection: Connection, rule_id: str) -> RuleRecord | None:
    """Return one rule; None if it does not exist. Raises `InvalidRule`."""
    row = connection.execute(select(schema.rules).where(schema.rules.c.id == rule_id)).mappings().first()
    return None if row is None else RuleRecord(rule_of(*_rows([row])), row["version"])


def rules(connection: Connection, *, after: str | None, most: int) -> list[RuleRecord]:
    """Return a page of rules by id, after the id `after`. Raises `InvalidRule`."""
    table = schema.rules
    query = select(table).order_by(table.c.id).limit(most)
    if after is not None:
        query = query.where(table.c.id > after)
    return list(entries_of(_rows(connection.execute(query).mappings().all())).values())


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
    for start in range(0, len(ids), MOST_NAMED):
        yield ids[start : start + MOST_NAMED]


def user(connection: Connection, user_id: str) -> User | None:
    """Return one user with a tier or overrides; None otherwise."""
    return users(connection, [user_id]).get(user_id)


def users_page(connection: Connection, *, tier: str | None, after: str | None, most: int) -> list[User]:
    """Return a page of users with a tier or overrides by id, after the id `after`."""
    table = schema.users
    query = select(table.c.id).order_by(table.c.id).limit(most)
    if tier is not None:
        query = query.where(table.c.tier == tier)
    if after is not None:
        query = query.where(table.c.id > after)
    ids = connection.scalars(query).all()
    found = users(connection, ids)
    return [found[user_id] for user_id in ids]


def overrides_page(
    connection: Connection,
    *,
    user: str | None,
    rule: str | None,
    expired: bool | None,
    now_us: int,
    after: tuple[str, str] | None,
    most: int,
) -> list[UserOverride]:
    """Return a page of overrides by user and rule, after the user and rule `after`. Raises `InvalidRule`."""
    table = schema.overrides
    query = select(table).order_by(table.c.user_id, table.c.rule).limit(most)
    if user is not None:
        query = query.where(table.c.user_id == user)
    if rule is not None:
        query = query.where(table.c.rule == rule)
    if expired is not None:
        query = query.where(table.c.expires_us <= now_us if expired else _has_not_expired(now_us))
    if after is not None:
        query = query.where(tuple_(table.c.user_id, table.c.rule) > tuple_(*after))
    return [UserOverride(row["user_id"], override_of(dict(row))) for row in connection.execute(query).mappings()]


def _has_not_expired(now_us: int) -> Any:
    expires_us = schema.overrides.c.expires_us
    return or_(expires_us.is_(None), expires_us > now_us)


def has_users(connection: Connection) -> tuple[bool, bool]:
    """Return whether any user has a tier, and whether any has an override or an anchor."""
    tiers = exists().where(schema.users.c.tier.is_not(None))
    anchors = exists().where(schema.users.c.anchor.is_not(None))
    row = connection.execute(select(tiers, exists(select(schema.overrides.c.rule)), anchors)).one()
    return bool(row[0]), bool(row[1] or row[2])


def users_changed(connection: Connection, after: int, *, most: int) -> Collection[str] | None:
    """Return the users who changed after a version; None if more than `most`."""
    table = schema.changes
    query = select(table.c.subject).where(table.c.version > after, table.c.kind == "user").distinct().limit(most + 1)
    found = connection.scalars(query).all()
    return None if len(found) > most else found


def users_version(connection: Connection, ids: Sequence[str]) -> int:
    """Return the version in which any of these users last changed; 0 if none did."""
    table = schema.changes
    query = select(func.max(table.c.version)).where(table.c.kind == "user")
    return max((connection.scalar(query.where(table.c.subject.in_(part))) or 0 for part in parts(ids)), default=0)


def changes(
    connection: Connection,
    *,
    kinds: Collection[str] | None,
    subject: str | None,
    before: int | None,
    most: int,
) -> list[Change]:
    """Return a page of the change log, the latest first, before the id `before`."""
    table = schema.changes
    query = _changes().order_by(table.c.id.desc()).limit(most)
    if kinds is not None:
        query = query.where(table.c.kind.in_(kinds))
    if subject is not None:
        query = query.where(table.c.subject == subject)
    if before is not None:
        query = query.where(table.c.id < before)
    return [Change(*row) for row in connection.execute(query)]


def change(connection: Connection, change_id: int) -> Change | None:
    """Return one row of the change log; None if it does not exist."""
    row = connection.execute(_changes().where(schema.changes.c.id == change_id)).first()
    return None if row is None else Change(*row)


def changes_of(connection: Connection, version: int) -> list[Change]:
    """Return the changes of a version in order, without those of kinds in `OUTSIDE`, which make no version."""
    table = schema.changes
    query = _changes().where(table.c.version == version, table.c.kind.not_in(OUTSIDE)).order_by(table.c.id)
    return [Change(*row) for row in connection.execute(query)]


def change_after(connection: Connection, first: Change, *, together: bool) -> Change | None:
    """Return the latest later change of what `first` changed or, with `together`, of anything that its transaction
    changed; None if there is none."""
    own, later = schema.changes.alias("own"), schema.changes.alias("later")
    same = (own.c.kind == later.c.kind) & (own.c.subject == later.c.subject)
    if together:
        condition = (own.c.version == first.version) & (own.c.kind.not_in(OUTSIDE)) & (later.c.version > first.version)
    else:
        condition = (own.c.id == first.id) & (later.c.id > first.id)
    query = select(*(later.c[name] for name in Change._fields)).join_from(own, later, same).where(condition)
    row = connection.execute(query.order_by(later.c.id.desc()).limit(1)).first()
    return None if row is None else Change(*row)


def _changes() -> Select[Any]:
    return select(*(schema.changes.c[name] for name in Change._fields))


def notify(connection: Connection, version: int) -> None:
    """Notify listeners when the transaction commits. PostgreSQL only."""
    connection.execute(text("SELECT pg_notify(:channel, :version)"), {"channel": CHANNEL, "version": str(version)})


def overridden(connection: Connection, rule_id: str) -> list[str]:
    """Return the users with an override of a rule, expired or not."""
    table = schema.overrides
    return list(connection.scalars(select(table.c.user_id).where(table.c.rule == rule_id).order_by(table.c.user_id)))


def kinds_of_override(connection: Connection, rule_id: str, now_us: int) -> list[dict[str, Any]]:
    """Return the distinct current overrides of a rule, each with one of its users as `user_id`."""
    table = schema.overrides
    figures = (table.c.limit, table.c.window_us, table.c.burst)
    query = (
        select(func.min(table.c.user_id).label("user_id"), *figures)
        .where(table.c.rule == rule_id, _has_not_expired(now_us))
        .group_by(*figures)
    )
    return [{**row, "rule": rule_id, "expires_us": None} for row in connection.execute(query).mappings()]


def on_tier(connection: Connection, tier: str) -> str | None:
    """Return any user on a tier; None if there is none."""
    table = schema.users
    return connection.scalars(select(table.c.id).where(table.c.tier == tier).limit(1)).first()
