"""Converts rows to rules and users, and back, and to the rules file's form for the change log."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from headgate.core.quota import MICROSECONDS, Quota
from headgate.db import schema
from headgate.errors import InvalidQuota, InvalidRule, Problem
from headgate.rules.description import FIELDS, QUOTA_FIELDS, RuleField, rule_table
from headgate.rules.directory import Directory
from headgate.rules.exemptions import Exemption
from headgate.rules.penalties import Penalties
from headgate.rules.rule import Rule
from headgate.rules.snapshot import SETTING_NAMES, Snapshot
from headgate.rules.users import MAX_ID, Override, Tier, User

Row = Mapping[str, Any]
Table = dict[str, Any]

SECTIONS: Final = ("headgate", "penalties")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMNS: Final = frozenset(column.name for column in schema.rules.c)
_OTHERS: Final = "more"  # the column for fields without their own column


class RuleRecord(NamedTuple):
    """A stored rule. `version` changes whenever the rule does; None: it is in a file."""

    rule: Rule
    version: int | None


@dataclass
class Content:
    """The content of a snapshot while it is read or changed."""

    rules: dict[str, RuleRecord] = dataclasses.field(default_factory=dict)  # in order
    tiers: list[str] = dataclasses.field(default_factory=list)
    exemptions: list[Exemption] = dataclasses.field(default_factory=list)
    settings: dict[str, Table] = dataclasses.field(default_factory=dict)  # by section

    def snapshot(self, version: int, directory: Directory | None = None, previous: Snapshot | None = None) -> Snapshot:
        """Return the snapshot that replaces `previous`. Raises `InvalidRule` with every problem."""
        problems: list[Problem] = []
        parts: Table = {}
        settings = self.settings.get("headgate", {})
        unknown = [name for name in settings if name not in SETTING_NAMES]
        problems += [Problem("[headgate]", name, "unknown setting") for name in unknown]
        try:
            parts["tiers"] = [Tier(name=name) for name in self.tiers]
            parts["penalties"] = penalties_of(self.settings.get("penalties", {}))
        except InvalidRule as error:
            problems += error.problems
        try:
            snapshot = Snapshot(
                [entry.rule for entry in self.rules.values()],
                exemptions=self.exemptions,
                version=str(version),
                directory=directory,
                previous=previous,
                **parts,
                **{name: value for name, value in settings.items() if name not in unknown},
            )
        except InvalidRule as error:
            problems += error.problems
        if problems:
            raise InvalidRule(*problems)
        return snapshot


def rule_row(rule: Rule) -> Table:
    """Return a rule's columns, without position and version. `more` holds only values that differ from the default."""
    table = rule_table(rule)
    row: Table = {_OTHERS: {}}
    for field in FIELDS:
        value, column = table.get(field.name), _column(field)
        if column not in _COLUMNS:
            if value is not None and value != field.default:
                row[_OTHERS][field.name] = value
        elif isinstance(value, str) and field.kind.type == "duration":
            row[_OTHERS][field.name] = value  # a calendar period
        elif value is not None and field.kind.type == "duration":
            row[column] = round(value * MICROSECONDS)
        else:
            row[column] = value
    row[_OTHERS].pop("ttl", None)  # stored in the window's column
    row["window_us"] = rule.quota.window_us
    return row


def rule_of(row: Row) -> Rule:
    """Return the rule of a row. Raises `InvalidRule`."""
    table = {name: value for name, value in row[_OTHERS].items() if value is not None}
    for field in FIELDS:
        value = row.get(_column(field))
        if value is not None and field.name not in table:
            table[field.name] = timedelta(microseconds=value) if field.kind.type == "duration" else value
    where = f"rule {row['id']!r}"
    known = {field.name for field in FIELDS}
    problems = [
        Problem(where, name, "unknown field; a newer Headgate has written it: upgrade this one")
        for name in table
        if name not in known
    ]
    quota = Quota(1, 1)
    try:
        quota = Quota(**{field.name: table.pop(field.name) for field in QUOTA_FIELDS if field.name in table})
    except InvalidQuota as error:
        name, _, message = str(error).partition(": ")
        problems.append(Problem(where, name, message))
    try:
        rule = Rule(quota=quota, **{name: value for name, value in table.items() if name in known})
    except InvalidRule as error:
        problems += error.problems
    if problems:
        raise InvalidRule(*problems)
    return rule


def _column(field: RuleField) -> str:
    return f"{field.name}_us" if field.kind.type == "duration" else field.name


def entries_of(rows: Iterable[Row]) -> dict[str, RuleRecord]:
    """Return the rules of all rows, by id. Raises `InvalidRule` with every problem of all of them."""
    entries: dict[str, RuleRecord] = {}
    problems: list[Problem] = []
    for row in rows:
        try:
            entries[row["id"]] = RuleRecord(rule_of(row), row["version"])
        except InvalidRule as error:
            problems += error.problems
    if problems:
        raise InvalidRule(*problems)
    return entries


def override_row(override: Override) -> Table:
    """Return an override's columns, without its user."""
    window = override.window
    return {
        "rule": override.rule,
        "limit": override.limit,
        "window_us": round(window * MICROSECONDS) if isinstance(window, float | int) else None,
        "burst": override.burst,
        "expires_us": override.expires_us,
    }


def override_of(row: Row) -> Override:
    """Return the override of a row. Raises `InvalidRule`."""
    window_us, expires_us = row["window_us"], row["expires_us"]
    return Override(
        rule=row["rule"],
        limit=row["limit"],
        window=None if window_us is None else timedelta(microseconds=window_us),
        burst=row["burst"],
        expires=None if expires_us is None else time_of(expires_us),
    )


def user_table(user: User | None) -> Table | None:
    """Return a user as in a rules file."""
    if user is None:
        return None
    table: Table = {"id": user.id}
    if user.tier is not None:
        table["tier"] = user.tier
    if user.anchor is not None:
        table["anchor"] = user.anchor
    if user.overrides:
        table["overrides"] = [override_table(override) for override in user.overrides]
    return table


def override_table(override: Override) -> Table:
    """Return an override as in a rules file, except that its time is a string."""
    table = {
        "rule": override.rule,
        "limit": override.limit,
        "window": override.window,
        "burst": override.burst,
        "expires": None if override.expires is None else override.expires.astimezone(UTC).isoformat(),
    }
    return {name: value for name, value in table.items() if value is not None}


def exemption_table(exemption: Exemption) -> Table:
    return {"type": exemption.type, "value": exemption.value}


def settings_table(snapshot: Snapshot) -> Table:
    """Return a snapshot's settings as in a rules file: those that differ from the defaults."""
    defaults = Snapshot(())
    table = {}
    for name in SETTING_NAMES:
        value = getattr(snapshot, name)
        if value != getattr(defaults, name):
            table[name] = plain(value)
    return table


def penalties_table(penalties: Penalties) -> Table:
    return {one.name: plain(getattr(penalties, one.name)) for one in fields(penalties)}


def penalties_of(table: Table) -> Penalties:
    known = {one.name for one in fields(Penalties)}
    unknown = [Problem("[penalties]", name, "unknown setting") for name in table if name not in known]
    if unknown:
        raise InvalidRule(*unknown)
    return Penalties(**table)


def plain(value: Any) -> Any:
    """Return a setting's value as JSON data, with networks as strings."""
    if isinstance(value, tuple | list):
        return [plain(member) for member in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def time_of(us: int) -> datetime:
    """Convert a time in microseconds to a datetime."""
    return _EPOCH + timedelta(microseconds=us)


def time_text(us: int) -> str:
    """Format a time in microseconds, as `2027-01-01T00:00:00+00:00`."""
    return time_of(us).isoformat()


def require_short(where: str, field: str, value: str) -> None:
    """Raise `InvalidRule` for a text that a database cannot store, or that is too long for PostgreSQL's indexes."""
    require_storable(where, value)
    if not 1 <= len(value) <= MAX_ID:
        raise InvalidRule(Problem(where, field, f"must have from 1 to {MAX_ID} characters"))


def require_storable(where: str, value: Any) -> None:
    """Raise `InvalidRule` if a value contains a text that a database cannot store."""
    if isinstance(value, str):
        problem = unstorable(value)
        if problem is not None:
            raise InvalidRule(Problem(where, "", problem))
    elif isinstance(value, Mapping | list | tuple):
        for member in value if not isinstance(value, Mapping) else (*value, *value.values()):
            require_storable(where, member)


def unstorable(value: str) -> str | None:
    """Return why a database cannot store a text; None if it can."""
    if "\0" in value:
        return f"{value!r} has a NUL character, which databases cannot keep"
    try:
        value.encode()
    except UnicodeEncodeError:
        return f"{value!r} is not a text that UTF-8 can write"
    return None
