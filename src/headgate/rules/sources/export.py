"""Convert a snapshot to a rules file: the inverse of `headgate.rules.sources.document`. Needs tomli-w."""

from __future__ import annotations

from datetime import UTC
from typing import Any, Final

import tomli_w

from headgate.core.quota import duration_text
from headgate.db.records import exemption_table, penalties_table, settings_table, user_table
from headgate.rules.description import FIELDS, rule_table
from headgate.rules.penalties import Penalties
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import User

Table = dict[str, Any]

_ALWAYS: Final = ("id", "dimension", "limit", "window", "ttl", "algorithm")  # fields to always show
_DEFAULTS: Final = rule_table(Rule(id="?", quota="1/s"))  # of all fields that have a default
_ORDER: Final = (
    *("id", "name", "dimension", "endpoints", "methods", "tiers", "match", "limit", "window", "ttl", "burst"),
)
_FIRST_TO_LAST: Final = tuple(dict.fromkeys((*_ORDER, *(field.name for field in FIELDS))))


def text_of(snapshot: Snapshot) -> str:
    """Return a rules file for this snapshot, without the users in a directory."""
    return tomli_w.dumps(document_of(snapshot), multiline_strings=False)


def rule_text(rule: Rule) -> str:
    """Return a rules file with this rule alone."""
    return tomli_w.dumps({"rules": [_rule_entry(rule)]}, multiline_strings=False)


def document_of(snapshot: Snapshot) -> Table:
    """Return a rules file as data. It always has `[headgate]`, which marks a file without rules as intended."""
    data: Table = {"headgate": settings_table(snapshot)}
    if snapshot.penalties != Penalties():
        data["penalties"] = penalties_table(snapshot.penalties)
    data["tiers"] = [{"name": tier.name} for tier in snapshot.tiers]
    data["rules"] = [_rule_entry(rule) for rule in snapshot.rules]
    data["users"] = [_user_entry(user) for user in snapshot.users]
    data["exemptions"] = [exemption_table(exemption) for exemption in snapshot.exemptions]
    return {name: part for name, part in data.items() if part or name == "headgate"}


def _rule_entry(rule: Rule) -> Table:
    """Return a rule without the fields that have their default."""
    table = rule_table(rule)
    if rule.quota.calendar is None:
        table["window" if "window" in table else "ttl"] = duration_text(rule.quota.window_us)
    return {
        name: table[name]
        for name in _FIRST_TO_LAST
        if name in table and (name in _ALWAYS or table[name] != _DEFAULTS.get(name))
    }


def _user_entry(user: User) -> Table:
    table = user_table(user) or {}
    for entry, override in zip(table.get("overrides", ()), user.overrides, strict=True):
        if override.expires is not None:
            entry["expires"] = override.expires.astimezone(UTC)
    return table
