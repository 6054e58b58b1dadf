"""From rows to rules and users, and back. Also how the change log shows them: as a rules file would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from headgate.core.quota import MICROSECONDS, Quota
from headgate.errors import InvalidQuota, InvalidRule, Problem
from headgate.rules.directory import Directory
from headgate.rules.exemptions import Exemption
from headgate.rules.penalties import Penalties
from headgate.rules.rule import Rule
from headgate.rules.snapshot import SETTING_NAMES, Snapshot
from headgate.rules.users import Override, Tier, User

Row = Mapping[str, Any]
Table = dict[str, Any]

SECTIONS: Final = ("headgate", "penalties")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SAME: Final = (  # fields of a rule that are columns as they are
    *("id", "name", "dimension", "action", "priority", "group", "sync", "failure_mode", "cost", "status", "message"),
    *("shards", "regions", "enabled"),
)
_LISTS: Final = ("endpoints", "methods", "tiers")


class Entry(NamedTuple):
    """A rule in the database. `version` changes whenever the rule does."""

    rule: Rule
    version: int


@dataclass
class Content:
    """What a snapshot is made of, while it is being read or changed."""

    rules: dict[str, Entry] = field(default_factory=dict)  # in order
    tiers: list[str] = field(default_factory=list)
    exemptions: list[Exemption] = field(default_factory=list)
    settings: dict[str, Table] = field(default_factory=dict)  # by section

    def snapshot(self, version: int, directory: Directory | None = None, previous: Snapshot | None = None) -> Snapshot:
        """The snapshot that replaces `previous`. Raises `InvalidRule` with every problem."""
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
    """A rule's columns, but for its position and version."""
    quota = rule.quota
    return {
        **{name: getattr(rule, name) for name in _SAME},
        **{name: list(getattr(rule, name)) for name in _LISTS},
        "match": dict(rule.match),
        "algorithm": quota.algorithm,
        "limit": quota.limit,
        "window_us": quota.window_us,
        "burst": None if quota.burst == quota.limit else quota.burst,
        "max_delay_us": None if rule.max_delay is None else round(rule.max_delay * MICROSECONDS),
    }


def rule_of(row: Row) -> Rule:
    """The rule of a row. Raises `InvalidRule`."""
    problems: tuple[Problem, ...] = ()
    try:
        quota = Quota(
            row["limit"],
            timedelta(microseconds=row["window_us"]),
            burst=row["burst"],
            algorithm=row["algorithm"],
        )
    except InvalidQuota as error:
        name, _, message = str(error).partition(": ")
        problems = (Problem(f"rule {row['id']!r}", name, message),)
        quota = Quota(1, 1)
    max_delay_us = row["max_delay_us"]
    try:
        rule = Rule(
            quota=quota,
            match=row["match"],
            max_delay=None if max_delay_us is None else max_delay_us / MICROSECONDS,
            **{name: row[name] for name in (*_SAME, *_LISTS)},
        )
    except InvalidRule as error:
        problems += error.problems
    if problems:
        raise InvalidRule(*problems)
    return rule


def entries_of(rows: Iterable[Row]) -> dict[str, Entry]:
    """The rules of all rows, by id. Raises `InvalidRule` with every problem of all of them."""
    entries: dict[str, Entry] = {}
    problems: list[Problem] = []
    for row in rows:
        try:
            entries[row["id"]] = Entry(rule_of(row), row["version"])
        except InvalidRule as error:
            problems += error.problems
    if problems:
        raise InvalidRule(*problems)
    return entries


def rule_table(rule: Rule) -> Table:
    """A rule as a rules file has it, complete but for what it has not."""
    row = rule_row(rule)
    row["window"] = row.pop("window_us") / MICROSECONDS
    row.pop("max_delay_us")
    row["max_delay"] = rule.max_delay
    return {name: value for name, value in row.items() if value is not None}


def override_row(override: Override) -> Table:
    """An override's columns, but for its user."""
    window = override.window
    return {
        "rule": override.rule,
        "limit": override.limit,
        "window_us": round(window * MICROSECONDS) if isinstance(window, float | int) else None,
        "burst": override.burst,
        "expires_us": override.expires_us,
    }


def override_of(row: Row) -> Override:
    """The override of a row. Raises `InvalidRule`."""
    window_us, expires_us = row["window_us"], row["expires_us"]
    return Override(
        rule=row["rule"],
        limit=row["limit"],
        window=None if window_us is None else timedelta(microseconds=window_us),
        burst=row["burst"],
        expires=None if expires_us is None else time_of(expires_us),
    )


def user_table(user: User | None) -> Table | None:
    """A user as a rules file has it."""
    if user is None:
        return None
    table: Table = {"id": user.id}
    if user.tier is not None:
        table["tier"] = user.tier
    if user.overrides:
        table["overrides"] = [_override_table(override) for override in user.overrides]
    return table


def _override_table(override: Override) -> Table:
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
    """The settings of a snapshot as a rules file has them: those that differ from the defaults."""
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
    """A setting's value as JSON has it: networks as text."""
    if isinstance(value, tuple | list):
        return [plain(member) for member in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def time_of(us: int) -> datetime:
    """A time of the database."""
    return _EPOCH + timedelta(microseconds=us)


def time_text(us: int) -> str:
    """The same as text: `2027-01-01T00:00:00+00:00`."""
    return time_of(us).isoformat()


def unstorable(value: str) -> str | None:
    """Why a text cannot be in a database; None: it can."""
    if "\0" in value:
        return f"{value!r} has a NUL character, which databases cannot keep"
    try:
        value.encode()
    except UnicodeEncodeError:
        return f"{value!r} is not a text that UTF-8 can write"
    return None
