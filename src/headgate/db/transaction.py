"""One transaction of changes: see `headgate.db.changes`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, update

from headgate.db import queries, schema
from headgate.db.records import (
    Content,
    Entry,
    Table,
    exemption_table,
    override_of,
    override_row,
    penalties_of,
    penalties_table,
    plain,
    rule_row,
    rule_table,
    settings_table,
    unstorable,
    user_table,
)
from headgate.errors import ChangeConflict, InvalidRule, NotFound, Problem
from headgate.rules.exemptions import Exemption
from headgate.rules.penalties import Penalties
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import MAX_ID, Override, Tier, User, misfit


class Transaction:
    """Changes under way; nobody sees them until they are committed. Not to be shared between threads.

    `version` is the one that the snapshot gets with them. A change to what already is changes nothing, and leaves
    no trace in the change log.
    """

    def __init__(self, connection: Connection, actor: str, at_us: int) -> None:
        if not isinstance(actor, str) or not actor:
            raise ValueError(f"actor: must be a text that says who makes the change, got {actor!r}")
        _storable(f"actor {actor!r}", actor)
        self._connection = connection
        self._actor = actor
        self._at_us = at_us
        self._versions = queries.versions(connection, lock=True)
        self.version = self._versions.version + 1
        self._log: list[Table] = []
        self._loaded: Content | None = None
        self._stored: dict[str, Entry] = {}  # the rules as they are in the database, when they are loaded
        self._last_position = 0

    @property
    def is_first(self) -> bool:
        """Whether nothing was ever changed in this database before."""
        return self._versions.version == queries.FIRST_VERSION

    # Rules

    def create_rule(self, rule: Rule) -> None:
        """Raises `ChangeConflict` when there is a rule of that id."""
        if rule.id in self._content.rules:
            raise ChangeConflict(f"rule {rule.id!r} exists already")
        self._put_rule(rule, None)

    def update_rule(self, rule: Rule, *, version: int | None = None) -> None:
        """Replace the rule of that id. Its subjects' counts stay, unless algorithm or dimension are others.

        Raises `NotFound`; `ChangeConflict` when `version` is given and the rule has another one by now; and
        `InvalidRule` when some user's override would not fit it.
        """
        entry = self._entry(rule.id, version)
        if rule != entry.rule:
            self._check_overrides(rule)
            self._put_rule(rule, entry.rule)

    def delete_rule(self, rule_id: str, *, version: int | None = None, with_overrides: bool = False) -> None:
        """Raises `NotFound` and `ChangeConflict` like `update_rule`.

        Raises `InvalidRule` when users have overrides of it, unless those are to be deleted too.
        """
        entry = self._entry(rule_id, version)
        users = queries.overridden(self._connection, rule_id)
        if users and not with_overrides:
            message = f"has overrides of {len(users)} users ({users[0]!r} …): delete those first, or with it"
            raise InvalidRule(Problem(f"rule {rule_id!r}", "", message))
        for user_id in users:
            self.delete_override(user_id, rule_id)
        del self._content.rules[rule_id]
        self._note("delete", "rule", rule_id, rule_table(entry.rule), None)

    # Tiers, exemptions, settings

    def create_tier(self, tier: Tier) -> None:
        """Raises `ChangeConflict` when there is a tier of that name."""
        if tier.name in self._content.tiers:
            raise ChangeConflict(f"tier {tier.name!r} exists already")
        _storable(f"tier {tier.name!r}", tier.name)
        _short(f"tier {tier.name!r}", "name", tier.name)
        position = 1 + max(
            self._connection.scalars(schema.tiers.select().with_only_columns(schema.tiers.c.position)), default=0
        )
        self._content.tiers.append(tier.name)
        self._connection.execute(insert(schema.tiers), {"name": tier.name, "position": position})
        self._note("create", "tier", tier.name, None, {"name": tier.name})

    def delete_tier(self, name: str) -> None:
        """Raises `NotFound`; `InvalidRule` when users are on it. No rule may name it when the transaction ends."""
        if name not in self._content.tiers:
            raise NotFound(f"there is no tier {name!r}")
        user = queries.on_tier(self._connection, name)
        if user is not None:
            raise InvalidRule(Problem(f"tier {name!r}", "", f"users are on it ({user!r} …): move them first"))
        self._content.tiers.remove(name)
        self._connection.execute(delete(schema.tiers).where(schema.tiers.c.name == name))
        self._note("delete", "tier", name, {"name": name}, None)

    def create_exemption(self, exemption: Exemption) -> None:
        """Exempt somebody. Does nothing when they are, by the same type and value."""
        if exemption in self._content.exemptions:
            return
        table = exemption_table(exemption)
        _storable(f"exemption of {exemption.type} {exemption.value!r}", exemption.value)
        _short(f"exemption of {exemption.type} {exemption.value!r}", "value", exemption.value)
        self._content.exemptions.append(exemption)
        self._connection.execute(insert(schema.exemptions), table)
        self._note("create", "exemption", f"{exemption.type} {exemption.value}", None, table)

    def delete_exemption(self, exemption: Exemption) -> None:
        """Raises `NotFound`."""
        if exemption not in self._content.exemptions:
            raise NotFound(f"there is no exemption of {exemption.type} {exemption.value!r}")
        table = schema.exemptions
        self._content.exemptions.remove(exemption)
        self._connection.execute(delete(table).where(table.c.type == exemption.type, table.c.value == exemption.value))
        self._note("delete", "exemption", f"{exemption.type} {exemption.value}", exemption_table(exemption), None)

    def update_settings(self, **settings: Any) -> None:
        """Set what a rules file has under `[headgate]`: `default_tier="free"`. None sets the default again."""
        table = {**self._content.settings.get("headgate", {}), **settings}
        self._put_settings("headgate", {name: plain(value) for name, value in table.items() if value is not None})

    def update_penalties(self, penalties: Penalties) -> None:
        """Set what a rules file has under `[penalties]`."""
        if penalties != penalties_of(self._content.settings.get("penalties", {})):
            self._put_settings("penalties", penalties_table(penalties))

    # Users

    def set_tier(self, user_id: str, tier: str | None) -> None:
        """Put a user on a tier; None on none of their own. Raises `InvalidRule` when there are tiers, without this."""
        user = self._user(user_id)
        tiers = self._loaded.tiers if self._loaded else queries.tiers(self._connection)
        if tier is not None and tiers and tier not in tiers:
            message = f"{tier!r} is not one of the tiers ({', '.join(sorted(tiers))})"
            raise InvalidRule(Problem(f"user {user_id!r}", "tier", message))
        if tier is not None:
            _short(f"user {user_id!r}", "tier", tier)
        self._put_user(user, User(id=user_id, tier=tier, overrides=user.overrides if user else ()))

    def put_override(self, user_id: str, override: Override) -> None:
        """Give a user their own figures for a rule, in place of those that they may have had.

        Raises `InvalidRule` when there is no such rule, or it has no use for them.
        """
        user = self._user(user_id)
        self._check_override(user_id, override, self._rule(override.rule))
        kept = [one for one in (user.overrides if user else ()) if one.rule != override.rule]
        overrides = sorted([*kept, override], key=lambda one: one.rule)
        self._put_user(user, User(id=user_id, tier=user.tier if user else None, overrides=overrides))

    def delete_override(self, user_id: str, rule_id: str) -> None:
        """Raises `NotFound`."""
        user = self._user(user_id)
        if user is None or rule_id not in [one.rule for one in user.overrides]:
            raise NotFound(f"user {user_id!r} has no override of rule {rule_id!r}")
        kept = [one for one in user.overrides if one.rule != rule_id]
        self._put_user(user, User(id=user_id, tier=user.tier, overrides=kept))

    def delete_user(self, user_id: str) -> None:
        """Delete a user's tier and overrides. Raises `NotFound`."""
        user = self._user(user_id)
        if user is None:
            raise NotFound(f"user {user_id!r} has neither a tier nor overrides")
        self._put_user(user, None)

    # All at once

    def apply(self, snapshot: Snapshot) -> None:
        """Make rules, tiers, exemptions and settings those of a snapshot, whatever they were.

        Users that it lists become what it says; others stay as they are, but for overrides of rules that go.
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
        for user in snapshot.users:
            self._put_user(self._user(user.id), user)
        for rule_id in [rule_id for rule_id in content.rules if rule_id not in wanted]:
            self.delete_rule(rule_id, with_overrides=True)
        for name in [name for name in content.tiers if name not in {tier.name for tier in snapshot.tiers}]:
            self.delete_tier(name)
        for exemption in [one for one in content.exemptions if one not in snapshot.exemptions]:
            self.delete_exemption(exemption)
        for exemption in snapshot.exemptions:
            self.create_exemption(exemption)
        self._put_settings("headgate", settings_table(snapshot))
        self.update_penalties(snapshot.penalties)

    # What there is, as changed so far

    @property
    def rules_version(self) -> int:
        """The version in which anything but users had last changed, before this transaction."""
        return self._versions.rules_version

    def version_under(self, snapshot: Snapshot) -> int:
        """The version in which anything had last changed that `apply` of this could change.

        That is all but users, and of those whom it lists, and who have overrides of rules that it does not have.
        """
        wanted = {rule.id for rule in snapshot.rules}
        users = {user.id for user in snapshot.users if unstorable(user.id) is None}
        for rule_id in self._content.rules:
            if rule_id not in wanted:
                users.update(queries.overridden(self._connection, rule_id))
        return max(self.rules_version, queries.users_version(self._connection, sorted(users)))

    def entry(self, rule_id: str) -> Entry | None:
        """A rule, and its version."""
        return self._content.rules.get(rule_id)

    def user(self, user_id: str) -> User | None:
        """A user's tier and overrides. Raises `InvalidRule` for what can be no user's id."""
        return self._user(user_id)

    @property
    def differences(self) -> list[Table]:
        """What has been changed so far, in order: `action`, `kind`, `subject`, `before` and `after` of the log."""
        return [{name: row[name] for name in ("action", "kind", "subject", "before", "after")} for row in self._log]

    def finish(self, *, notify: bool) -> bool:
        """Validate, and write what is not written yet; whether there was anything. The caller commits."""
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
        """All but users, as changed so far. Read when it is first asked for."""
        if self._loaded is None:
            self._loaded = queries.content(self._connection)
            self._stored = dict(self._loaded.rules)
        return self._loaded

    def _entry(self, rule_id: str, version: int | None) -> Entry:
        entry = self._content.rules.get(rule_id)
        if entry is None:
            raise NotFound(f"there is no rule {rule_id!r}")
        if version is not None and version != entry.version:
            raise ChangeConflict(f"rule {rule_id!r} has changed: it has version {entry.version}, not {version}")
        return entry

    def _rule(self, rule_id: str) -> Rule | None:
        entry = self._content.rules.get(rule_id) if self._loaded else queries.rule(self._connection, rule_id)
        return None if entry is None else entry.rule

    def _put_rule(self, rule: Rule, before: Rule | None) -> None:
        row = rule_row(rule)
        _storable(f"rule {rule.id!r}", row)
        _short(f"rule {rule.id!r}", "id", rule.id)
        self._content.rules[rule.id] = Entry(rule, self.version)
        action = "create" if before is None else "update"
        self._note(action, "rule", rule.id, None if before is None else rule_table(before), rule_table(rule))

    def _check_overrides(self, rule: Rule) -> None:
        for row in queries.kinds_of_override(self._connection, rule.id):
            self._check_override(row["user_id"], override_of(row), rule)

    def _check_override(self, user_id: str, override: Override, rule: Rule | None) -> None:
        problem = misfit(override, rule)
        if problem is not None:
            raise InvalidRule(Problem(f"user {user_id!r}: override of rule {override.rule!r}", *problem))

    def _put_settings(self, section: str, table: Table) -> None:
        before = self._content.settings.get(section)
        if table == (before or {}):
            return
        _storable(f"[{section}]", table)
        self._content.settings[section] = table
        self._connection.execute(delete(schema.settings).where(schema.settings.c.section == section))
        self._connection.execute(insert(schema.settings), {"section": section, "value": table})
        self._note("update", "settings", section, before, table)

    def _user(self, user_id: str) -> User | None:
        self._flush()
        _storable(f"user {user_id!r}", user_id)
        _short(f"user {user_id!r}", "id", user_id)
        return queries.user(self._connection, user_id)

    def _put_user(self, before: User | None, user: User | None) -> None:
        """Write a user; one without tier and overrides is none."""
        after = None if user is None or (user.tier is None and not user.overrides) else user
        if before == after:
            return
        known = before or user
        assert known is not None
        user_id = known.id
        if before is not None and before.overrides:
            self._connection.execute(delete(schema.overrides).where(schema.overrides.c.user_id == user_id))
        if after is None:
            self._connection.execute(delete(schema.users).where(schema.users.c.id == user_id))
        elif before is None:
            self._connection.execute(insert(schema.users), {"id": user_id, "tier": after.tier})
        else:
            self._connection.execute(update(schema.users).where(schema.users.c.id == user_id).values(tier=after.tier))
        if after is not None and after.overrides:
            rows = [{"user_id": user_id, **override_row(override)} for override in after.overrides]
            _storable(f"user {user_id!r}", rows)
            self._connection.execute(insert(schema.overrides), rows)
        action = "create" if before is None else "delete" if after is None else "update"
        self._note(action, "user", user_id, user_table(before), user_table(after))

    def _note(self, action: str, kind: str, subject: str, before: Table | None, after: Table | None) -> None:
        self._log.append(
            {
                **{"version": self.version, "at_us": self._at_us, "actor": self._actor, "action": action},
                **{"kind": kind, "subject": subject, "before": before, "after": after},
            }
        )

    def _flush(self) -> None:
        """Write the rules that have changed since they were last written."""
        if self._loaded is None:
            return
        now, stored, table = self._loaded.rules, self._stored, schema.rules
        gone = [{"gone": rule_id} for rule_id in stored if rule_id not in now]
        changed = [entry for rule_id, entry in now.items() if stored.get(rule_id) not in (None, entry)]
        new = [entry for rule_id, entry in now.items() if rule_id not in stored]
        if gone:
            self._connection.execute(delete(table).where(table.c.id == bindparam("gone")), gone)
        for entry in changed:
            self._connection.execute(
                update(table).where(table.c.id == entry.rule.id).values(**rule_row(entry.rule), version=entry.version)
            )
        if new:
            # Later than all that exist, in the order in which they came: versions only grow.
            first = self.version * 1_000_000 + self._last_position
            self._last_position += len(new)
            rows = [
                {**rule_row(entry.rule), "version": entry.version, "position": first + place}
                for place, entry in enumerate(new)
            ]
            self._connection.execute(insert(table), rows)
        self._stored = dict(now)


def _short(where: str, field: str, value: str) -> None:
    """Raises `InvalidRule` when a text is longer than PostgreSQL can have in an index."""
    if not 1 <= len(value) <= MAX_ID:
        raise InvalidRule(Problem(where, field, f"must have from 1 to {MAX_ID} characters"))


def _storable(where: str, value: Any) -> None:
    """Raises `InvalidRule` when there is a text in a value that a database cannot keep."""
    if isinstance(value, str):
        problem = unstorable(value)
        if problem is not None:
            raise InvalidRule(Problem(where, "", problem))
    elif isinstance(value, Mapping):
        for name, member in value.items():
            _storable(where, name)
            _storable(where, member)
    elif isinstance(value, list | tuple):
        for member in value:
            _storable(where, member)
