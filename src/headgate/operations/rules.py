"""Operations on rules: singly, or all at once as a rules file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from headgate.db import RuleRecord
from headgate.db.records import time_of
from headgate.errors import Forbidden, InvalidRule, NotFound, Problem
from headgate.operations.caller import Caller
from headgate.operations.storage import Storage, page_of
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot
from headgate.rules.sources.collection import collection_paused
from headgate.rules.sources.document import parse_toml, rule_from, snapshot_of

__all__ = ["AppliedChange", "Expect", "RuleRecord", "Rules", "Table"]

Table = dict[str, Any]
Expect = Callable[[int | None], None]  # raises unless the caller expects this version; None: no rule exists


class AppliedChange(NamedTuple):
    """The result of a change of several things, or with `dry_run` its preview."""

    dry_run: bool
    version: int  # the new version; with `dry_run`, the current one
    changes: list[Table]  # `action`, `kind`, `subject`, `before`, `after`


def expect_anything(_version: int | None) -> None:
    """Accept any version."""


class Rules:
    """Operations on rules. Reading needs the scope `rules`; changing also the role `admin`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def page(self, caller: Caller, *, after: str | None = None, max_items: int = 100) -> Sequence[RuleRecord]:
        """Return rules by id. For the next page, pass the last one's id as `after`."""
        caller.require("rules")
        if self._storage.changes is not None:
            return self._storage.changes.rules(after=after, max_items=max_items)
        found = [RuleRecord(rule, None) for rule in self._storage.snapshot.rules]
        return page_of(found, lambda stored: stored.rule.id, after, max_items)

    def get(self, caller: Caller, rule_id: str) -> RuleRecord:
        """Return one rule. Raises `NotFound`."""
        caller.require("rules")
        if self._storage.changes is not None:
            found = self._storage.changes.rule(rule_id)
        else:
            found = next((RuleRecord(rule, None) for rule in self._storage.snapshot.rules if rule.id == rule_id), None)
        if found is None:
            raise NotFound(f"there is no rule {rule_id!r}")
        return found

    def create(self, caller: Caller, table: Table) -> RuleRecord:
        """Create a rule from a rules file's table. Raises `InvalidRule`, and `ChangeConflict` if its id exists."""
        caller.require("rules", "admin")
        changes, rule = self._storage.writable, _rule(table)
        with changes.begin(caller.name, reason=caller.reason) as change:
            change.create_rule(rule)
        return RuleRecord(rule, change.version)

    def put(
        self, caller: Caller, rule_id: str, table: Table, *, expect: Expect = expect_anything
    ) -> tuple[RuleRecord, bool]:
        """Create or replace a rule. Returns it, and whether it is new. Raises `InvalidRule`, and what `expect` does."""
        caller.require("rules", "admin")
        changes = self._storage.writable
        if table.setdefault("id", rule_id) != rule_id:
            message = f"must be that of the path, or be left out, got {table['id']!r}"
            raise InvalidRule(Problem(f"rule {rule_id!r}", "id", message))
        rule = _rule(table)
        with changes.begin(caller.name, reason=caller.reason) as change:
            before = change.entry(rule_id)
            expect(None if before is None else before.version)
            if before is None:
                change.create_rule(rule)
            else:
                change.update_rule(rule)
            after = change.entry(rule_id)
        assert after is not None
        return after, before is None

    def delete(
        self, caller: Caller, rule_id: str, *, with_overrides: bool = False, expect: Expect = expect_anything
    ) -> None:
        """Delete a rule. Raises `NotFound`, `InvalidRule` if users have overrides of it, and what `expect` raises."""
        caller.require("rules", "admin")
        with self._storage.writable.begin(caller.name, reason=caller.reason) as change:
            before = change.entry(rule_id)
            if before is not None:
                expect(before.version)
            change.delete_rule(rule_id, with_overrides=with_overrides)

    # All at once

    def ruleset(self, caller: Caller) -> tuple[Snapshot, str]:
        """Return rules, tiers, exemptions, penalties and settings, with their version, without a database's users."""
        caller.require("rules")
        if self._storage.changes is None:
            return self._storage.snapshot, self._storage.snapshot.version
        content, version = self._storage.changes.content_and_version()
        with collection_paused():
            return content.snapshot(version), str(version)

    def apply(
        self, caller: Caller, content: bytes, *, dry_run: bool = False, expect: Expect = expect_anything
    ) -> AppliedChange:
        """Replace all rules by those of a rules file, all or nothing.

        Users that it lists are replaced; others stay, except for their overrides of deleted rules. Changing users needs
        the scope `users`, too. Raises `InvalidRule`, `Forbidden`, and what `expect` raises for the version of what may
        change.
        """
        caller.require("rules", "admin")
        changes = self._storage.writable
        with collection_paused():
            snapshot = snapshot_of(parse_toml(content), version="")
        if snapshot.users:  # even without changes: that, too, would reveal users
            _require_users(caller, "it has users")
        with changes.begin(caller.name, reason=caller.reason, dry_run=dry_run) as change:
            version = change.version_under(snapshot)
            expect(version)
            change.apply(snapshot)
            differences = change.differences
            if any(_takes_override(difference, time_of(change.at_us)) for difference in differences):
                _require_users(caller, "users have overrides of rules that it deletes")
        if differences and not dry_run:
            version = change.version
        return AppliedChange(dry_run, version, differences)

    def snapshot(self, caller: Caller) -> Snapshot:
        """Return the current snapshot."""
        caller.require("rules")
        return self._storage.snapshot


def _rule(table: Table) -> Rule:
    table.pop("version", None)  # ignored: callers may send back a rule that they read
    return rule_from(table)


def _takes_override(difference: Table, at: datetime) -> bool:
    """Return whether a change affects more of a user than expired overrides."""
    if difference["kind"] != "user":
        return False
    before, after = (_effective_user(difference[name], at) for name in ("before", "after"))
    return before != after


def _effective_user(user: Table | None, at: datetime) -> tuple[Any, list[Table]]:
    """Return a user's tier and current overrides."""
    table = user or {}
    overrides = [
        one for one in table.get("overrides", ()) if "expires" not in one or datetime.fromisoformat(one["expires"]) > at
    ]
    return table.get("tier"), overrides


def _require_users(caller: Caller, why: str) -> None:
    """Raise `Forbidden` unless the caller may change users."""
    if not caller.may("users", "operator"):
        scopes = ", ".join(sorted(caller.scopes))
        raise Forbidden(f"this rule set needs the scope users, as {why}: the token's scopes are {scopes}")
