"""Writes the rows of changed rules, and checks the overrides of a changed rule."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, bindparam, delete, insert, update

from headgate.db import queries, schema
from headgate.db.records import RuleRecord, override_of, rule_row
from headgate.errors import InvalidRule, Problem
from headgate.rules.rule import Rule
from headgate.rules.users import misfit


def write_rules(
    connection: Connection, stored: Mapping[str, RuleRecord], now: Mapping[str, RuleRecord], first: int
) -> int:
    """Write the difference between the stored rules and the new ones. Returns how many rules were added.

    Added rules get positions from `first` on, in their order.
    """
    table = schema.rules
    gone = [{"gone": rule_id} for rule_id in stored if rule_id not in now]
    changed = [entry for rule_id, entry in now.items() if stored.get(rule_id) not in (None, entry)]
    new = [entry for rule_id, entry in now.items() if rule_id not in stored]
    if gone:
        connection.execute(delete(table).where(table.c.id == bindparam("gone")), gone)
    for entry in changed:
        row = {**rule_row(entry.rule), "version": entry.version}
        connection.execute(update(table).where(table.c.id == entry.rule.id).values(**row))
    if new:
        rows = [
            {**rule_row(entry.rule), "version": entry.version, "position": position}
            for position, entry in enumerate(new, start=first)
        ]
        connection.execute(insert(table), rows)
    return len(new)


def require_fitting_overrides(connection: Connection, rule: Rule, at_us: int) -> None:
    """Raise `InvalidRule` if an override does not fit the changed rule."""
    for row in queries.kinds_of_override(connection, rule.id, at_us):
        problem = misfit(override_of(row), rule)
        if problem is not None:
            raise InvalidRule(Problem(f"user {row['user_id']!r}: override of rule {rule.id!r}", *problem))
