"""Reads and writes users' rows in bulk. `headgate.db.transaction` decides what is valid."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from sqlalchemy import Connection, bindparam, delete, insert, update

from headgate.db import queries, schema
from headgate.db.queries import parts
from headgate.db.records import override_row, require_short, require_storable
from headgate.errors import Problem
from headgate.rules.rule import Rule
from headgate.rules.users import MAX_ID, User, misfit

Pair = tuple[User | None, User | None]  # a user before and after; None: no record


def read_users(connection: Connection, ids: Collection[str]) -> dict[str, User]:
    """Return those of these users who have a tier or overrides. Raises `InvalidRule` for an invalid id."""
    for user_id in ids:
        require_short(f"user {user_id!r}", "id", user_id)
    return queries.users(connection, ids)


def changed_users(users: Iterable[Pair]) -> Iterator[Pair]:
    """Yield the users that change. Overrides are in the order of their rules, as the database returns them."""
    for before, user in users:
        after = None
        if user is not None and (user.tier is not None or user.anchor is not None or user.overrides):
            after = replace(user, overrides=sorted(user.overrides, key=attrgetter("rule")))
        if before != after:
            yield before, after


def user_problems(
    user: User, before: User | None, tiers: Collection[str], rule_of: Callable[[str], Rule | None], now_us: int
) -> Iterator[Problem]:
    """Yield the problems of a changed user. Unchanged values are not checked again."""
    where = f"user {user.id!r}"
    if user.tier is not None and (before is None or user.tier != before.tier):
        if tiers and user.tier not in tiers:
            yield Problem(where, "tier", f"{user.tier!r} is not one of the tiers ({', '.join(sorted(tiers))})")
        elif len(user.tier) > MAX_ID:
            yield Problem(where, "tier", f"must have from 1 to {MAX_ID} characters")
    for override in user.overrides:
        if before is not None and override in before.overrides:
            continue
        problem = misfit(override, rule_of(override.rule))
        if problem is None and override.has_expired(now_us):
            problem = "expires", f"{override.expires} is in the past: give a later time, or leave it out"
        if problem is not None:
            yield Problem(f"{where}: override of rule {override.rule!r}", *problem)


def write_users(connection: Connection, changed: Sequence[Pair]) -> None:
    """Write changed users. Raises `InvalidRule` for a text that no database can store."""
    for _, after in changed:
        if after is not None:
            require_storable(f"user {after.id!r}", [after.tier, *(one.rule for one in after.overrides)])
    overridden = [before.id for before, _ in changed if before is not None and before.overrides]
    gone = [before.id for before, after in changed if before is not None and after is None]
    new = [
        {"id": after.id, "tier": after.tier, "anchor": after.anchor}
        for before, after in changed
        if before is None and after is not None
    ]
    moved = [
        {"moved": after.id, "tier": after.tier, "anchor": after.anchor}
        for before, after in changed
        if before is not None and after is not None and (before.tier, before.anchor) != (after.tier, after.anchor)
    ]
    overrides = [
        {"user_id": after.id, **override_row(override)}
        for _, after in changed
        if after is not None
        for override in after.overrides
    ]
    for part in parts(overridden):
        connection.execute(delete(schema.overrides).where(schema.overrides.c.user_id.in_(part)))
    for part in parts(gone):
        connection.execute(delete(schema.users).where(schema.users.c.id.in_(part)))
    if new:
        connection.execute(insert(schema.users), new)
    if moved:
        connection.execute(update(schema.users).where(schema.users.c.id == bindparam("moved")), moved)
    if overrides:
        connection.execute(insert(schema.overrides), overrides)
