"""Changes of rules in readable form: one line each, with the differing fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import typer

from headgate.cli.client import Json
from headgate.cli.output import emit, on_terminal, say
from headgate.core.cost import REQUESTS
from headgate.core.quota import MICROSECONDS, Quota, duration_text
from headgate.errors import InvalidQuota

_MARKS: Final = {"create": ("+", "green"), "update": ("~", "yellow"), "delete": ("-", "red")}
_QUOTA: Final = ("burst", "algorithm", "ttl", "calendar", "tz", "anchor")
_SECONDS: Final = ("window", "ttl", "max_delay", "detection_window")


class StyledLine(NamedTuple):
    """A line of text, and the style to print it in."""

    text: str
    style: str


def lines_of(changes: list[Json]) -> Iterator[StyledLine]:
    """Yield a line for each change, `+` (new), `~` (changed, with its fields) or `-` (deleted); then their number."""
    for change in changes:
        mark, style = _MARKS.get(change["action"], ("?", ""))
        about = " ".join(part for part in (change["kind"], change["subject"]) if part)
        before, after = change.get("before") or {}, change.get("after") or {}
        if change["action"] == "update":
            yield StyledLine(f"{mark} {about}: {', '.join(differences(before, after))}", style)
        else:
            yield StyledLine(f"{mark} {about}{_describe(change['kind'], before or after)}", style)
    count = len(changes)
    yield StyledLine("no difference" if count == 0 else f"{count:,} change{'' if count == 1 else 's'}", "bold")


def show_changes(changes: list[Json]) -> None:
    """Print a line for each change, and their number."""
    for text, style in lines_of(changes):
        say(text, style)


def apply_planned(
    planned: Json, apply: Callable[[], Json], *, words: tuple[str, str], dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Show planned changes and, unless it is a dry run or there are none, ask for confirmation and apply them.

    `words` are the question, and how to report that it is done.
    """
    question, done = words
    if not as_json:
        show_changes(planned["changes"])
    if planned["changes"] and not dry_run:
        if not yes and on_terminal():
            typer.confirm(question, abort=True, err=True)
        planned = apply()
        if not as_json:
            say(f"{done}: version {planned['version']}")
    if as_json:
        emit(planned)


def differences(before: Json, after: Json) -> list[str]:
    """Return the fields that differ: `limit 100 → 200`."""
    names = dict.fromkeys((*before, *after))
    return [
        f"{name} {value_text(name, before.get(name))} → {value_text(name, after.get(name))}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def quota_of(rule: Json) -> str:
    """Return a rule's quota in notation, with its unit if it is not requests."""
    limit, window = rule.get("limit"), rule.get("window")
    options: dict[str, Any] = {name: rule[name] for name in _QUOTA if rule.get(name) is not None}
    try:
        text = str(Quota(limit, window, **options))  # type: ignore[arg-type]
    except (InvalidQuota, TypeError):  # from a newer service
        text = f"{limit}/{window}"
    unit = rule.get("unit", REQUESTS)
    return text if unit == REQUESTS else f"{text} ({unit})"


def value_text(name: str, value: Any) -> str:
    """Return a field's value, much as in a rules file."""
    if value is None:
        return "none"
    if name in _SECONDS and isinstance(value, int | float):
        return duration_text(round(value * MICROSECONDS))
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _describe(kind: str, table: Json) -> str:
    if kind == "rule":
        return f": {quota_of(table)}, by {table.get('dimension', 'user')}"
    if kind == "user" and table.get("tier"):
        return f": tier {table['tier']}"
    return ""
