"""The schema of a rules file: its tables, their keys, and the types of their values.

Only types: `Rule` and the other classes check the values themselves, wherever they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.functional_validators import AfterValidator
from pydantic_core import ErrorDetails

from headgate.core.quota import CONCURRENCY, Quota, duration_text
from headgate.core.suggestion import did_you_mean
from headgate.errors import InvalidQuota, Problem
from headgate.rules.description import FIELDS
from headgate.rules.fields import Type

Location = tuple[str | int, ...]


def _duration(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"must be seconds, or a string like '15m', got {_short(value)}")  # noqa: TRY004
    return value


def _scalar(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"must be an integer or a string, got {_short(value)}")  # noqa: TRY004
    return value


Duration = Annotated[Any, AfterValidator(_duration)]
Scalar = Annotated[Any, AfterValidator(_scalar)]


class _Table(BaseModel):
    """A table in which every key is known and every value has exactly its type. Nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SettingsTable(_Table):
    enabled: bool = True
    failure_mode: str | None = None
    trusted_proxies: list[str] = []
    trusted_proxy_depth: int = 1
    warning_at: int | None = None
    warning_until: int | None = None
    default_tier: str | None = None
    regions: str | None = None
    decision_header: bool = False
    headers: str = "both"
    facts: list[str] = []
    unmatched: str = "allow"


_TYPES: Final[dict[Type, Any]] = {
    "text": str,
    "whole": int,
    "flag": bool,
    "duration": Duration,
    "texts": list[str],
    "table": dict[str, Any],
    "anchor": Scalar,
}
_RULE_KEYS: Final[dict[str, Any]] = {
    field.name: (_TYPES[field.kind.type], ... if field.is_required else None) for field in FIELDS
}
RuleTable: Final[type[_Table]] = create_model("RuleTable", __base__=_Table, **_RULE_KEYS)


class TierTable(_Table):
    name: str


class OverrideTable(_Table):
    rule: str
    limit: int
    window: Duration = 0
    burst: int = 0
    expires: datetime | None = None


class UserTable(_Table):
    id: str
    tier: str = ""
    anchor: Scalar = 0
    overrides: list[OverrideTable] = []


class ExemptionTable(_Table):
    type: str
    value: str


class PenaltiesTable(_Table):
    enabled: bool = False
    detection_window: Duration = 0
    violation_threshold: int = 0
    multipliers: list[int] = []


class Document(_Table):
    """A whole rules file."""

    headgate: SettingsTable = Field(default_factory=SettingsTable)
    rules: list[RuleTable] = []  # type: ignore[valid-type]
    tiers: list[TierTable] = []
    users: list[UserTable] = []
    exemptions: list[ExemptionTable] = []
    penalties: PenaltiesTable = Field(default_factory=PenaltiesTable)


SECTIONS: Final = tuple(Document.model_fields)
_ENTRIES: Final[dict[str, tuple[str, str, type[_Table]]]] = {  # the name of an entry, and its identifying key
    "rules": ("rule", "id", RuleTable),
    "tiers": ("tier", "name", TierTable),
    "users": ("user", "id", UserTable),
    "exemptions": ("exemption", "", ExemptionTable),
}
_TABLES: Final[dict[str, type[_Table]]] = {"headgate": SettingsTable, "penalties": PenaltiesTable}
_WRONG: Final = {
    "bool_type": "must be true or false",
    "datetime_type": "must be a time like 2027-01-01T00:00:00Z",
    "dict_type": "must be a table",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "model_type": "must be a table",
    "string_type": "must be a string",
}


def mistakes(data: Mapping[str, Any]) -> list[tuple[Location, Problem]]:
    """Return mistakes in the keys and types of a file's data, with their locations."""
    found: list[tuple[Location, Problem]] = []
    try:
        Document.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        found = [(detail["loc"], _problem(detail, data)) for detail in details]
    rules = data.get("rules")
    for index, entry in enumerate(rules if isinstance(rules, list) else ()):
        if isinstance(entry, Mapping) and "window" not in entry and entry.get("algorithm") != CONCURRENCY:
            found.append(
                (("rules", index, "window"), Problem(entry_name("rules", index, entry), "window", "is missing"))
            )
    return found


def entry_name(section: str, index: int, entry: Any) -> str:
    """Return the name of a list entry for messages: its id if it has one, else its number, from 1."""
    what, key, _ = _ENTRIES[section]
    name = entry.get(key) if isinstance(entry, Mapping) else None
    return f"{what} {name!r}" if isinstance(name, str) and name else f"{what} {index + 1}"


def override_name(index: int, override: Any) -> str:
    """Return the name of a user's override for messages."""
    rule = override.get("rule") if isinstance(override, Mapping) else None
    return f"override of rule {rule!r}" if isinstance(rule, str) and rule else f"override {index + 1}"


def _problem(detail: ErrorDetails, data: Mapping[str, Any]) -> Problem:
    where, field, table = _describe_location(detail["loc"], data)
    kind, value = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        return Problem(where, field, f"unknown key{_as_fields(value) or did_you_mean(field, table.model_fields)}")
    if kind == "missing":
        return Problem(where, field, "is missing")
    if kind == "list_type" and table is Document:
        return Problem(where, field, f"must be a list of tables: write [[{field}]], got {_short(value)}")
    if kind in _WRONG:
        return Problem(where, field, f"{_WRONG[kind]}, got {_short(value)}{_as_fields(value)}")
    return Problem(where, field, detail["msg"].removeprefix("Value error, "))


def _as_fields(value: object) -> str:
    """Return `"; write limit = 60, window = '1m'"` for a quota written as one string, else an empty string."""
    try:
        quota = Quota.parse(value) if isinstance(value, str) else None
    except InvalidQuota:
        return ""
    if quota is None or quota.calendar is not None or quota.algorithm == CONCURRENCY:
        return ""
    return f"; write limit = {quota.limit}, window = '{duration_text(quota.window_us)}'"


def _describe_location(location: Location, data: Mapping[str, Any]) -> tuple[str, str, type[_Table]]:
    """Return the name of a location for messages, its field, and the table that the field belongs to."""
    section, *rest = location
    if section in _TABLES and rest:
        return f"[{section}]", str(rest[0]), _TABLES[str(section)]
    if section not in _ENTRIES or not rest:
        return "", str(section), Document
    index, *rest = rest
    entry = data[str(section)][index]
    where, table = entry_name(str(section), int(index), entry), _ENTRIES[str(section)][2]
    if len(rest) > 1 and rest[0] == "overrides":
        index, *rest = rest[1:]
        where += ": " + override_name(int(index), entry["overrides"][index])
        table = OverrideTable
    return where, str(rest[0]) if rest else "", table


def _short(value: Any) -> str:
    """Return a value roughly as TOML writes it, shortened if it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    text = value.isoformat() if isinstance(value, date | time) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
