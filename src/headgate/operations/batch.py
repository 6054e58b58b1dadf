"""Reads users and overrides as callers send them, singly or in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from headgate.errors import InvalidRule, Problem
from headgate.rules.sources.document import users_from
from headgate.rules.users import Override, User

Table = dict[str, Any]

MAX_IN_BATCH: Final = 10_000  # users and overrides in one transaction
_BATCH: Final = ("users", "overrides")


def users_of(entries: list[Any]) -> list[User]:
    """Read users from JSON tables, as in the change log; strings that are times become times. Raises `InvalidRule`."""
    for entry in entries:
        overrides = entry.get("overrides") if isinstance(entry, dict) else None
        if isinstance(overrides, list):
            entry["overrides"] = [_with_time(one) if isinstance(one, dict) else one for one in overrides]
    return users_from(entries)


def _with_time(table: Table) -> Table:
    """Convert an override from JSON: parse its time, and drop nulls, which TOML cannot express."""
    table = {name: value for name, value in table.items() if value is not None}
    if isinstance(table.get("expires"), str):
        with suppress(ValueError):  # the field's own check reports it
            table["expires"] = datetime.fromisoformat(table["expires"])
    return table


def batch_of(table: Table) -> tuple[list[User], dict[str, list[Override]]]:
    """Read the users of a batch, and its overrides by user. Raises `InvalidRule` with every problem."""
    lists = {name: [] if table.get(name) is None else table[name] for name in _BATCH}
    problems = [
        Problem("batch", name, "unknown key; expected users and overrides") for name in table if name not in _BATCH
    ]
    problems += [
        Problem("batch", name, f"must be a list, got {value!r:.80}")
        for name, value in lists.items()
        if not isinstance(value, list)
    ]
    if problems:
        raise InvalidRule(*problems)
    size = sum(map(len, lists.values()))
    if size > MAX_IN_BATCH:
        raise InvalidRule(Problem("batch", "", f"must have at most {MAX_IN_BATCH:,} users and overrides, got {size:,}"))
    entries = [_without_nulls(entry) for entry in lists["users"]]
    for number, entry in enumerate(lists["overrides"], start=1):
        own = dict(entry) if isinstance(entry, dict) else {}
        user_id = own.pop("user", None)
        if not isinstance(user_id, str) or not user_id:
            problems.append(Problem(f"override number {number}", "user", "must be the id of a user"))
        else:
            entries.append({"id": user_id, "overrides": [own]})
    users = users_of(entries) if not problems else []
    problems += _find_repetitions(users, len(lists["users"]))
    if problems:
        raise InvalidRule(*problems)
    overrides: dict[str, list[Override]] = {}
    for user in users[len(lists["users"]) :]:
        overrides.setdefault(user.id, []).extend(user.overrides)
    return users[: len(lists["users"])], overrides


def _without_nulls(entry: Any) -> Any:
    return {name: value for name, value in entry.items() if value is not None} if isinstance(entry, dict) else entry


def _find_repetitions(users: Sequence[User], whole: int) -> Iterator[Problem]:
    """Yield a problem for everything that a batch contains twice. The first `whole` users are complete ones."""
    seen: set[str] = set()
    for user in users[:whole]:
        if user.id in seen:
            yield Problem(f"user {user.id!r}", "", "is there twice")
        seen.add(user.id)
    pairs: set[tuple[str, str]] = set()
    for user in users:
        for override in user.overrides:
            if (user.id, override.rule) in pairs:
                yield Problem(f"user {user.id!r}: override of rule {override.rule!r}", "", "is there twice")
            pairs.add((user.id, override.rule))
    for user_id in dict.fromkeys(user.id for user in users[whole:] if user.id in seen):
        yield Problem(f"user {user_id!r}", "", "is among users and overrides: put the overrides into the user's")
