"""From a snapshot back to a rules file's data: the other way of `headgate.rules.sources.document`."""

from __future__ import annotations

from datetime import UTC
from typing import Any, Final

from headgate.core.quota import Quota
from headgate.db.records import exemption_table, penalties_table, rule_table, settings_table
from headgate.rules.penalties import Penalties
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import Override, User

Table = dict[str, Any]

_DEFAULTS: Final = {**rule_table(Rule(id="-", quota=Quota(1, 1))), "id": None, "limit": None, "window": None}


def document_of(snapshot: Snapshot) -> Table:
    """What a rules file holds that means this snapshot, but for what is as it would be without being said.

    Users who are in a directory, and not listed, are not in it.
    """
    document: Table = {}
    settings = settings_table(snapshot)
    if settings or not snapshot.rules:  # a file without any rule has to say that it means it
        document["headgate"] = settings
    sections = {
        "rules": [_rule(rule) for rule in snapshot.rules],
        "tiers": [{"name": tier.name} for tier in snapshot.tiers],
        "users": [_user(user) for user in snapshot.users],
        "exemptions": [exemption_table(exemption) for exemption in snapshot.exemptions],
    }
    document |= {name: entries for name, entries in sections.items() if entries}
    if snapshot.penalties != Penalties():
        table = penalties_table(snapshot.penalties)
        document["penalties"] = {name: _plain(value) for name, value in table.items()}
    return document


def _rule(rule: Rule) -> Table:
    table = {name: value for name, value in rule_table(rule).items() if value != _DEFAULTS.get(name)}
    if "burst" in table:
        table["algorithm"] = rule.quota.algorithm  # a burst alone would mean another
    return {name: _plain(value) for name, value in table.items()}


def _user(user: User) -> Table:
    table: Table = {"id": user.id}
    if user.tier is not None:
        table["tier"] = user.tier
    if user.overrides:
        table["overrides"] = [_override(override) for override in user.overrides]
    return table


def _override(override: Override) -> Table:
    values = {
        "rule": override.rule,
        "limit": override.limit,
        "window": override.window,
        "burst": override.burst,
        "expires": None if override.expires is None else override.expires.astimezone(UTC),
    }
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    """Whole seconds as whole numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
