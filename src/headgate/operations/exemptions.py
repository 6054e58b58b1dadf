"""Exemptions: clients that are never limited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headgate.errors import InvalidRule, Problem
from headgate.operations.caller import Caller
from headgate.operations.storage import Storage, page_of
from headgate.rules.exemptions import Exemption

FIELDS: Final = ("type", "value")


class Exemptions:
    """Operations on exemptions. Reading needs the scope `rules`; changing also the role `admin`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def page(
        self, caller: Caller, *, after: tuple[str, str] | None = None, max_items: int = 100
    ) -> Sequence[Exemption]:
        """Return exemptions by type and value. For the next page, pass the last one's as `after`."""
        caller.require("rules")
        changes = self._storage.changes
        found = self._storage.snapshot.exemptions if changes is None else changes.exemptions()
        return page_of(set(found), lambda one: (one.type, one.value), after, max_items)

    def create(self, caller: Caller, table: dict[str, Any]) -> tuple[Exemption, bool]:
        """Add an exemption, with `type` and `value` as in a rules file. Returns it, and whether it is new.

        Raises `InvalidRule`.
        """
        caller.require("rules", "admin")
        changes, exemption = self._storage.writable, exemption_from(table)
        with changes.begin(caller.name, reason=caller.reason) as change:
            change.create_exemption(exemption)
            is_new = bool(change.differences)
        return exemption, is_new

    def delete(self, caller: Caller, table: dict[str, Any]) -> None:
        """Delete an exemption. Raises `NotFound`, `InvalidRule`."""
        caller.require("rules", "admin")
        changes, exemption = self._storage.writable, exemption_from(table)
        with changes.begin(caller.name, reason=caller.reason) as change:
            change.delete_exemption(exemption)


def exemption_from(table: dict[str, Any]) -> Exemption:
    """Read an exemption from a rules file's table. Raises `InvalidRule` with every problem."""
    problems = [Problem("exemption", name, "unknown key") for name in table if name not in FIELDS]
    problems += [Problem("exemption", name, "is missing") for name in FIELDS if name not in table]
    if problems:
        raise InvalidRule(*problems)
    return Exemption(**table)
