"""ChangeLog: shows who changed what, and reverts changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, Literal

from headgate.db import Change, Transaction
from headgate.errors import ChangeConflict, Forbidden, NotFound
from headgate.operations.batch import users_of
from headgate.operations.caller import Caller, Role, Scope
from headgate.operations.exemptions import exemption_from
from headgate.operations.rules import AppliedChange, Table
from headgate.operations.storage import Storage
from headgate.operations.users import drop_expired
from headgate.rules.sources.document import rule_from
from headgate.rules.users import Tier, User

__all__ = ["KINDS", "Change", "ChangeLog", "Kind"]

Kind = Literal["rule", "tier", "exemption", "settings", "user", "counts", "token"]
KINDS: Final[Mapping[Scope, tuple[Kind, ...]]] = {  # the kinds that each scope may see
    "rules": ("rule", "tier", "exemption", "settings"),
    "users": ("user", "counts"),
    "tokens": ("token",),
}
_SCOPES: Final[Mapping[str, Scope]] = {kind: scope for scope, kinds in KINDS.items() for kind in kinds}
_ROLES: Final[Mapping[Scope, Role]] = {"rules": "admin", "users": "operator"}  # that changes need


class ChangeLog:
    """The changes that the caller's scopes cover: `rules` (with tiers, exemptions and settings), `users`, `tokens`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def page(
        self,
        caller: Caller,
        *,
        kind: Kind | None = None,
        subject: str | None = None,
        before: int | None = None,
        max_items: int = 100,
    ) -> Sequence[Change]:
        """Return changes, the latest first. For the next page, pass the last one's `id` as `before`."""
        covered = [one for scope, kinds in KINDS.items() if scope in caller.scopes for one in kinds]
        if not covered or (kind is not None and kind not in covered):
            wanted = "one of the scopes rules, users and tokens" if kind is None else f"the scope for {kind} changes"
            raise Forbidden(f"this needs {wanted}: the token's scopes are {', '.join(sorted(caller.scopes))}")
        everything = kind is None and len(covered) == len(_SCOPES)
        # Without a condition, databases follow the ids. For a list of kinds, SQLite would sort the whole log.
        kinds = None if everything else covered if kind is None else [kind]
        return self._storage.kept_log.log(kind=kinds, subject=subject, before=before, max_items=max_items)

    def revert(self, caller: Caller, change_id: int, *, together: bool = False, dry_run: bool = False) -> AppliedChange:
        """Restore the values before a change; with `together`, before its whole transaction.

        This is itself a change, and can be reverted. Overrides that have expired since are not restored. Raises
        `NotFound`; `ChangeConflict` if a later change touched the same thing, or the change is a token's;
        `InvalidRule` if the old values no longer fit; `Forbidden`.
        """
        with self._storage.writable.begin(caller.name, reason=caller.reason, dry_run=dry_run) as transaction:
            change = transaction.change(change_id)
            if change is None:
                raise NotFound(f"there is no change {change_id}")
            if change.kind in _FINAL:
                _require(caller, change)
                raise ChangeConflict(_FINAL[change.kind])
            changes = transaction.changes_of(change.version) if together else [change]
            for one in changes:
                _require(caller, one)
            later = transaction.change_after(change, together=together)
            if later is not None:
                raise ChangeConflict(
                    f"{later.kind} {later.subject!r} was changed again since, by change {later.id}: revert that first"
                )
            version = transaction.rules_version
            for kind, reverted in groupby(reversed(changes), lambda one: one.kind):
                if kind == "user":
                    _restore_users(transaction, reverted)
                else:
                    for one in reverted:
                        _RESTORE[kind](transaction, one)
            differences = transaction.differences
        return AppliedChange(dry_run, transaction.version if differences and not dry_run else version, differences)


def _require(caller: Caller, change: Change) -> None:
    scope = _SCOPES[change.kind]
    caller.require(scope, _ROLES.get(scope, "admin"))


def _restore_rule(transaction: Transaction, change: Change) -> None:
    if change.before is None:
        transaction.delete_rule(change.subject)
        return
    rule = rule_from(dict(change.before))
    if change.after is None:
        transaction.create_rule(rule)
    else:
        transaction.update_rule(rule)


def _restore_tier(transaction: Transaction, change: Change) -> None:
    if change.before is None:
        transaction.delete_tier(change.subject)
    else:
        transaction.create_tier(Tier(**change.before))


def _restore_exemption(transaction: Transaction, change: Change) -> None:
    if change.after is not None:
        transaction.delete_exemption(exemption_from(change.after))
    if change.before is not None:
        transaction.create_exemption(exemption_from(change.before))


def _restore_settings(transaction: Transaction, change: Change) -> None:
    transaction.put_settings(change.subject, change.before or {})


def _restore_users(transaction: Transaction, changes: Iterable[Change]) -> None:
    """Restore users from their changes, the latest first: of several changes of one user, the earliest counts."""
    before: dict[str, Table | None] = {}
    for change in changes:
        before[change.subject] = change.before
    known = users_of([dict(table) for table in before.values() if table is not None])
    gone = [User(id=user_id) for user_id, table in before.items() if table is None]
    transaction.put_users([*(drop_expired(user, transaction.at_us) for user in known), *gone])


_FINAL: Final = {
    "token": "a change of a token cannot be reverted: create a new token, or revoke this one",
    "counts": "a reset of counts cannot be reverted",
}
_RESTORE: Final = {
    "rule": _restore_rule,
    "tier": _restore_tier,
    "exemption": _restore_exemption,
    "settings": _restore_settings,
}
