"""One transaction of changes: see `headgate.db.changes`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection, delete, insert, update

from headgate.db import queries, schema
from headgate.db.queries import Change
from headgate.db.records import (
    Content,
    RuleRecord,
    Table,
    exemption_table,
    penalties_of,
    penalties_table,
    plain,
    require_short,
    require_storable,
    rule_row,
    settings_table,
    unstorable,
    user_table,
)
from headgate.db.rule_rows import require_fitting_overrides, write_rules
from headgate.db.users import changed_users, read_users, user_problems, write_users
from headgate.errors import ChangeConflict, InvalidRule, NotFound, Problem
from headgate.rules.description import rule_table
from headgate.rules.exemptions import Exemption
from headgate.rules.penalties import Penalties
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import Override, Tier, User

MAX_REASON: Final = 1_000  # characters kept of a reason


class Transaction:
    """Changes that are invisible to others until committed. Do not share one between threads.

    `version` is the version of the snapshot after them. A change that leaves a record as it is writes nothing, not even
    to the change log.
    """

    def __init__(self, connection: Connection, actor: str, at_us: int, *, reason: str = "") -> None:
        if not isinstance(actor, str) or not actor:
            raise ValueError(f"actor: must be a string that names the author of the change, got {actor!r}")
        require_storable(f"actor {actor!r}", actor)
        self._connection = connection
        self._actor = actor
        require_storable("reason", reason)
        self._reason = reason[:MAX_REASON]
        self.at_us = at_us
        self._versions = queries.versions(connection, lock=True)
        self.version = self._versions.version + 1
        self._log: list[Table] = []
        self._loaded: Content | None = None
        self._looked_up: dict[str, RuleRecord | None] = {}  # rules looked up before all were loaded
        self._stored: dict[str, RuleRecord] = {}  # the rules in the database, once loaded
        self._last_position = 0

    @property
    def is_first(self) -> bool:
        """Whether this is the database's first change."""
        return self._versions.version == queries.FIRST_VERSION

    # Rules

    def create_rule(self, rule: Rule) -> None:
        """Create a rule. Raises `ChangeConflict` if its id exists."""
        if rule.id in self._content.rules:
            raise ChangeConflict(f"rule {rule.id!r} exists already")
        self._put_rule(rule, None)

    def update_rule(self, rule: Rule, *, version: int | None = None) -> None:
        """Replace the rule with this id. Counts are kept, unless algorithm or dimension change.

        Raises `NotFound`; `ChangeConflict` if `version` is given and is no longer current; and `InvalidRule` if a
        user's override would not fit it.
        """
        entry = self._entry(rule.id, version)
        if rule != entry.rule:
            require_fitting_overrides(self._connection, rule, self.at_us)
            self._put_rule(rule, entry.rule)

    def delete_rule(self, rule_id: str, *, version: int | None = None, with_overrides: bool = False) -> None:
        """Delete a rule. Raises `NotFound` and `ChangeConflict` like `update_rule`.

        Raises `InvalidRule` if users have overrides of it, unless `with_overrides` deletes them too. Expired overrides
        are always deleted.
        """
        entry = self._entry(rule_id, version)
        changed = []
        for user in self._users(queries.users_with_override(self._connection, rule_id)).values():
            kept = [one for one in user.overrides if one.rule != rule_id]
            changed.append((user, replace(user, overrides=kept)))
        counting = [
            user.id
            for user, _ in changed
            if any(one.rule == rule_id and not one.has_expired(self.at_us) for one in user.overrides)
        ]
        if counting and not with_overrides:
            message = f"has overrides of {len(counting)} users ({counting[0]!r} …): delete those first, or with it"
            raise InvalidRule(Problem(f"rule {rule_id!r}", "", message))
        self._write_users(changed)
        del self._content.rules[rule_id]
        self._log_change("delete", "rule", rule_id, rule_table(entry.rule), None)

    # Tiers, exemptions, settings

    def create_tier(self, tier: Tier) -> None:
        """Create a tier. Raises `ChangeConflict` if its name exists."""
        if tier.name in self._content.tiers:
            raise ChangeConflict(f"tier {tier.name!r} exists already")
        require_short(f"tier {tier.name!r}", "name", tier.name)
        position = 1 + max(
            self._connection.scalars(schema.tiers.select().with_only_columns(schema.tiers.c.position)), default=0
        )
        self._content.tiers.append(tier.name)
        self._connection.execute(insert(schema.tiers), {"name": tier.name, "position": position})
        self._log_change("create", "tier", tier.name, None, {"name": tier.name})

    def delete_tier(self, name: str) -> None:
        """Delete a tier. Raises `NotFound`, and `InvalidRule` if users are on it. No rule may name it at the commit."""
        if name not in self._content.tiers:
            raise NotFound(f"there is no tier {name!r}")
        user = queries.find_user_on_tier(self._connection, name)
        if user is not None:
            raise InvalidRule(Problem(f"tier {name!r}", "", f"users are on it ({user!r} …): move them first"))
        self._content.tiers.remove(name)
        self._connection.execute(delete(schema.tiers).where(schema.tiers.c.name == name))
        self._log_change("delete", "tier", name, {"name": name}, None)

    def create_exemption(self, exemption: Exemption) -> None:
        """Create an exemption. Does nothing if it exists."""
        if exemption in self._content.exemptions:
            return
        table = exemption_table(exemption)
        require_short(f"exemption of {exemption.type} {exemption.value!r}", "value", exemption.value)
        self._content.exemptions.append(exemption)
        self._connection.execute(insert(schema.exemptions), table)
        self._log_change("create", "exemption", f"{exemption.type} {exemption.value}", None, table)

    def delete_exemption(self, exemption: Exemption) -> None:
        """Raises `NotFound`."""
        if exemption not in self._content.exemptions:
            raise NotFound(f"there is no exemption of {exemption.type} {exemption.value!r}")
        table = schema.exemptions
        self._content.exemptions.remove(exemption)
        self._connection.execute(delete(table).where(table.c.type == exemption.type, table.c.value == exemption.value))
        self._log_change("delete", "exemption", f"{exemption.type} {exemption.value}", exemption_table(exemption), None)

    def put_settings(self, section: str, table: Table) -> None:
        """Replace the settings of a rules file's section, `headgate` or `penalties`."""
        before = self._content.settings.get(section)
        if table == (before or {}):
            return
        require_storable(f"[{section}]", table)
        self._content.settings[section] = table
        self._connection.execute(delete(schema.settings).where(schema.settings.c.section == section))
        self._connection.execute(insert(schema.settings), {"section": section, "value": table})
        self._log_change("update", "settings", section, before, table)

    def update_settings(self, **settings: Any) -> None:
        """Set settings of a rules file's `[headgate]`, as `default_tier="free"`. None restores the default."""
        table = {**self._content.settings.get("headgate", {}), **settings}
        self.put_settings("headgate", {name: plain(value) for name, value in table.items() if value is not None})

    def update_penalties(self, penalties: Penalties) -> None:
        """Replace the settings of a rules file's `[penalties]`."""
        if penalties != penalties_of(self._content.settings.get("penalties", {})):
            self.put_settings("penalties", penalties_table(penalties))

    # Users

    def set_tier(self, user_id: str, tier: str | None) -> None:
        """Put a user on a tier; None removes it. Raises `InvalidRule` if tiers are declared, but not this one."""
        user = self.user(user_id)
        self.put_users([replace(user or User(id=user_id), tier=tier)])

    def put_override(self, user_id: str, override: Override) -> None:
        """Set or replace a user's override of a rule.

        Raises `InvalidRule` if the rule does not exist, or the override does not fit it, or has expired.
        """
        self.put_overrides({user_id: [override]})

    def delete_override(self, user_id: str, rule_id: str) -> None:
        """Raises `NotFound`."""
        user = self.user(user_id)
        if user is None or rule_id not in [one.rule for one in user.overrides]:
            raise NotFound(f"user {user_id!r} has no override of rule {rule_id!r}")
        kept = [one for one in user.overrides if one.rule != rule_id]
        self._write_users([(user, replace(user, overrides=kept))])

    def delete_user(self, user_id: str) -> None:
        """Delete a user's tier and overrides. Raises `NotFound`."""
        user = self.user(user_id)
        if user is None:
            raise NotFound(f"user {user_id!r} has no tier, anchor or overrides")
        self._write_users([(user, None)])

    def put_overrides(self, overrides: Mapping[str, Sequence[Override]]) -> None:
        """Set overrides of users, by user id. They replace the users' overrides of the same rules.

        The users' tiers and other overrides stay. Raises `InvalidRule` with every problem.
        """
        before = self._users(overrides)
        users = []
        for user_id, own in overrides.items():
            user = before.get(user_id)
            replaced = {one.rule for one in own}
            kept = [one for one in (user.overrides if user else ()) if one.rule not in replaced]
            users.append(replace(user or User(id=user_id), overrides=[*kept, *own]))
        self.put_users(users)

    def put_users(self, users: Sequence[User]) -> None:
        """Replace users. A user without tier, overrides and anchor is deleted.

        Raises `InvalidRule` with every problem: an unknown tier, an override that fits no rule, or a new override that
        has expired.
        """
        before = self._users([user.id for user in users])
        tiers = self._loaded.tiers if self._loaded else queries.tiers(self._connection)
        problems = [
            problem
            for user in users
            for problem in user_problems(user, before.get(user.id), tiers, self._rule, self.at_us)
        ]
        if problems:
            raise InvalidRule(*problems)
        self._write_users([(before.get(user.id), user) for user in users])

    # All at once

    def apply(self, snapshot: Snapshot) -> None:
        """Replace rules, tiers, exemptions and settings by those of a snapshot.

        Users that it lists are replaced; others stay, except for their overrides of deleted rules.
        """
        content, wanted = self._content, {rule.id: rule for rule in snapshot.rules}
        for tier in snapshot.tiers:
            if tier.name not in content.tiers:
                self.create_tier(tier)
        for rule in snapshot.rules:
            if rule.id in content.rules:
                self.update_rule(rule)
            else:
                self.create_rule(rule)
        self.put_users(snapshot.users)
        for rule_id in [rule_id for rule_id in content.rules if rule_id not in wanted]:
            self.delete_rule(rule_id, with_overrides=True)
        for name in [name for name in content.tiers if name not in {tier.name for tier in snapshot.tiers}]:
            self.delete_tier(name)
        for exemption in [one for one in content.exemptions if one not in snapshot.exemptions]:
            self.delete_exemption(exemption)
        for exemption in snapshot.exemptions:
            self.create_exemption(exemption)
        self.put_settings("headgate", settings_table(snapshot))
        self.update_penalties(snapshot.penalties)

    # Reads, with the changes so far

    @property
    def rules_version(self) -> int:
        """The version of the last change of anything except users, before this transaction."""
        return self._versions.rules_version

    def version_under(self, snapshot: Snapshot) -> int:
        """Return the version of the last change of anything that `apply` of this snapshot could change.

        That is everything except users, the users that it lists, and users with overrides of rules that it lacks.
        """
        wanted = {rule.id for rule in snapshot.rules}
        users = {user.id for user in snapshot.users if unstorable(user.id) is None}
        for rule_id in self._content.rules:
            if rule_id not in wanted:
                users.update(queries.users_with_override(self._connection, rule_id))
        return max(self.rules_version, queries.users_version(self._connection, sorted(users)))

    def entry(self, rule_id: str) -> RuleRecord | None:
        """Return a rule, and its version."""
        return self._content.rules.get(rule_id)

    def user(self, user_id: str) -> User | None:
        """Return a user's tier and overrides. Raises `InvalidRule` for an invalid id."""
        return self._users([user_id]).get(user_id)

    def change(self, change_id: int) -> Change | None:
        """Return a row of the change log, without those of this transaction."""
        return queries.change(self._connection, change_id)

    def changes_of(self, version: int) -> list[Change]:
        """Return the changes of a version in order."""
        return queries.changes_of(self._connection, version)

    def change_after(self, change: Change, *, together: bool = False) -> Change | None:
        """Return the latest later change of the same thing; with `together`, of anything in its transaction."""
        return queries.change_after(self._connection, change, together=together)

    @property
    def differences(self) -> list[Table]:
        """The changes so far in order: `action`, `kind`, `subject`, `before` and `after`."""
        return [{name: row[name] for name in ("action", "kind", "subject", "before", "after")} for row in self._log]

    def finish(self, *, notify: bool) -> bool:
        """Validate the changes, and write the rest of them. Returns whether there were any. The caller commits."""
        if not self._log:
            self.version = self._versions.version
            return False
        rules_version = self._versions.rules_version
        if any(row["kind"] != "user" for row in self._log):
            self._content.snapshot(self.version)
            rules_version = self.version
        self._flush()
        self._connection.execute(insert(schema.changes), self._log)
        self._connection.execute(update(schema.snapshot).values(version=self.version, rules_version=rules_version))
        if notify:
            queries.notify(self._connection, self.version)
        return True

    @property
    def _content(self) -> Content:
        """Everything except users, with the changes so far. Loaded on first use."""
        if self._loaded is None:
            self._loaded = queries.content(self._connection)
            self._stored = dict(self._loaded.rules)
        return self._loaded

    def _entry(self, rule_id: str, version: int | None) -> RuleRecord:
        entry = self._content.rules.get(rule_id)
        if entry is None:
            raise NotFound(f"there is no rule {rule_id!r}")
        if version is not None and version != entry.version:
            raise ChangeConflict(f"rule {rule_id!r} has changed: it has version {entry.version}, not {version}")
        return entry

    def _rule(self, rule_id: str) -> Rule | None:
        """Return a rule, without loading all others."""
        if self._loaded is not None:
            entry = self._loaded.rules.get(rule_id)
        else:
            if rule_id not in self._looked_up:
                self._looked_up[rule_id] = queries.rule(self._connection, rule_id)
            entry = self._looked_up[rule_id]
        return None if entry is None else entry.rule

    def _put_rule(self, rule: Rule, before: Rule | None) -> None:
        row = rule_row(rule)
        require_storable(f"rule {rule.id!r}", row)
        require_short(f"rule {rule.id!r}", "id", rule.id)
        self._content.rules[rule.id] = RuleRecord(rule, self.version)
        action = "create" if before is None else "update"
        self._log_change(action, "rule", rule.id, None if before is None else rule_table(before), rule_table(rule))

    def _users(self, ids: Collection[str]) -> dict[str, User]:
        """Return those of these users who have a tier or overrides. Raises `InvalidRule` for an invalid id."""
        self._flush()
        return read_users(self._connection, ids)

    def _write_users(self, users: Iterable[tuple[User | None, User | None]]) -> None:
        """Write changed users, given before and after. A user without tier and overrides counts as None."""
        changed = list(changed_users(users))
        write_users(self._connection, changed)
        for before, after in changed:
            known = before or after
            assert known is not None
            action = "create" if before is None else "delete" if after is None else "update"
            self._log_change(action, "user", known.id, user_table(before), user_table(after))

    def log_reset(self, subject: str) -> None:
        """Log the reset of a subject's counts at once. It changes no snapshot."""
        self._log_change("reset", "counts", subject, None, None)
        row = {**self._log.pop(), "version": self._versions.version}
        self._connection.execute(insert(schema.changes), row)

    def _log_change(self, action: str, kind: str, subject: str, before: Table | None, after: Table | None) -> None:
        self._log.append(
            {
                **{"version": self.version, "at_us": self.at_us, "actor": self._actor, "action": action},
                "reason": self._reason,
                **{"kind": kind, "subject": subject, "before": before, "after": after},
            }
        )

    def _flush(self) -> None:
        """Write the rules that have changed since they were last written."""
        if self._loaded is None:
            return
        now = self._loaded.rules
        first = self.version * 1_000_000 + self._last_position  # after all existing ones: versions only grow
        self._last_position += write_rules(self._connection, self._stored, now, first)
        self._stored = dict(now)
