"""Converts a rule to a form's inputs, and the form back to a table."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from starlette.datastructures import FormData

from headgate.core.quota import BUCKETS, CONCURRENCY, WINDOWS, duration_text
from headgate.errors import InvalidRule, Problem
from headgate.rules.description import FIELDS, RuleField, rule_table
from headgate.rules.rule import Rule

Table = dict[str, Any]

_SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "What it limits": ("id", "name", "enabled", "dimension", "endpoints", "methods", "tiers", "match"),
    "How much": (*("limit", "unit", "algorithm", "window", "burst", "ttl", "cost"), *("calendar", "tz", "anchor")),
    "What happens beyond it": ("action", "max_delay", "status", "message", "failure_mode"),
}
REST: Final = "How it is counted"
_WHEN: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {  # fields that need certain values of another field
    "window": ("algorithm", (*WINDOWS, *BUCKETS)),
    "burst": ("algorithm", BUCKETS),
    "ttl": ("algorithm", (CONCURRENCY,)),
    "calendar": ("algorithm", ("fixed_window",)),
    "tz": ("calendar", ("on",)),
    "anchor": ("calendar", ("on",)),
    "max_delay": ("action", ("throttle",)),
}
_DEFAULTS: Final = {field.name: field.default for field in FIELDS}
_DURATIONS: Final = ("window", "ttl")  # a quota has one of them


class Input(NamedTuple):
    """One field of the form."""

    field: RuleField
    value: Any  # a string; for a flag, whether it is set
    problem: str
    depends_on: str  # another field; empty: none
    on_values: tuple[str, ...]  # values of that field for which this one is relevant
    is_relevant: bool  # whether the other field has one of them

    @property
    def kind(self) -> str:
        """The kind of input: `choice`, `flag`, `lines`, `long` or `short`."""
        kind = self.field.kind
        if kind.choices:
            return "choice"
        if kind.type in ("texts", "table"):
            return "lines"
        if kind.type == "flag":
            return "flag"
        return "long" if self.field.name == "message" else "short"


def sections_of(table: Table, problems: Sequence[Problem] = ()) -> dict[str, list[Input]]:
    """Return the inputs of a form for a table, with its problems, by section."""
    wrong = {problem.field: problem.message for problem in problems}
    named = {name for names in _SECTIONS.values() for name in names}
    by_name = {field.name: field for field in FIELDS}
    rest = tuple(name for name in by_name if name not in named)
    return {
        title: [_input(by_name[name], table, wrong.get(name, "")) for name in names if name in by_name]
        for title, names in (*_SECTIONS.items(), (REST, rest))
    }


def _input(field: RuleField, table: Table, problem: str) -> Input:
    other, values = _WHEN.get(field.name, ("", ()))
    value: Any = table.get(other, _DEFAULTS.get(other))
    value = ("on" if value else "") if isinstance(value, bool) else value
    return Input(
        field, _input_value(field, table.get(field.name)), problem, other, values, not other or value in values
    )


def form_table(rule: Rule) -> Table:
    """Return a rule as a table, with readable durations."""
    table = rule_table(rule)
    return table | {name: duration_text(rule.quota.window_us) for name in _DURATIONS if _is_seconds(table.get(name))}


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float)  # the window of a calendar is a word


def _input_value(field: RuleField, value: Any) -> Any:
    if field.kind.type == "flag":
        return field.default if value is None else bool(value)
    if value is None:
        return "" if field.default in (None, ()) else str(field.default)
    if isinstance(value, Mapping):
        return "\n".join(f"{name} = {one}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value))
    return str(int(value)) if isinstance(value, float) and value == int(value) else str(value)


def table_of(form: FormData) -> Table:
    """Read a table from a form. Empty fields are left out; an invalid number stays, for the rule's check to reject."""
    table: Table = {}
    for field in FIELDS:
        value = form.get(field.name)
        if field.kind.type == "flag":
            table[field.name] = value is not None
            continue
        text = value.strip() if isinstance(value, str) else ""
        if not text:
            continue
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        match field.kind.type:
            case "whole" | "duration" | "anchor":
                table[field.name] = _whole(text)
            case "texts":
                table[field.name] = lines
            case "table":
                pairs = (line.partition("=") for line in lines)
                table[field.name] = {name.strip(): value.strip() for name, _, value in pairs}
            case _:
                table[field.name] = text
    return table


def table_of_toml(text: str) -> Table:
    """Read the table of the only rule in TOML. Raises `InvalidRule`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRule(Problem("TOML", "", str(error))) from error
    rules = data.get("rules")
    if set(data) - {"rules"} or not isinstance(rules, list) or len(rules) != 1 or not isinstance(rules[0], dict):
        raise InvalidRule(Problem("TOML", "", "must hold one [[rules]] table, and nothing else"))
    return dict(rules[0])


def _whole(text: str) -> int | str:
    plain = text.replace("_", "").replace(",", "")
    return int(plain) if plain.isascii() and plain.isdigit() else text
