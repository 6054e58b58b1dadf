"""Operations on users: their tiers, overrides and limits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from headgate.db import UserOverride
from headgate.errors import InvalidRule, Problem
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.operations.batch import Table, batch_of, users_of
from headgate.operations.caller import Caller
from headgate.operations.storage import Storage, page_of
from headgate.operations.user_limits import UserLimits, subject_limits
from headgate.rules.users import MAX_ID, User


class UserBatchResult(NamedTuple):
    """The result of a batch: numbers of users by outcome."""

    version: int
    created: int
    updated: int
    deleted: int
    unchanged: int


class Users:
    """Operations on users. Reading needs the scope `users`; changing also the role `operator`."""

    def __init__(self, storage: Storage, limiter: AsyncLimiter) -> None:
        self._storage = storage
        self._limiter = limiter

    def page(
        self, caller: Caller, *, tier: str | None = None, after: str | None = None, max_items: int = 100
    ) -> Sequence[User]:
        """Return users with a tier or overrides, by id. For the next page, pass the last one's id as `after`."""
        caller.require("users")
        if self._storage.changes is not None:
            return self._storage.changes.users(tier=tier, after=after, max_items=max_items)
        found = (user for user in self._storage.snapshot.users if tier is None or user.tier == tier)
        return page_of(found, lambda user: user.id, after, max_items)

    def overrides(
        self,
        caller: Caller,
        *,
        user: str | None = None,
        rule: str | None = None,
        expired: bool | None = None,
        after: tuple[str, str] | None = None,
        max_items: int = 100,
    ) -> Sequence[UserOverride]:
        """Return overrides by user and rule: all, or those of one user, of one rule, or only expired or current ones.

        For the next page, pass the last one's user and rule as `after`.
        """
        caller.require("users")
        if self._storage.changes is not None:
            return self._storage.changes.overrides(
                user=user, rule=rule, expired=expired, after=after, max_items=max_items
            )
        now_us = self.now_us()
        every = (UserOverride(one.id, override) for one in self._storage.snapshot.users for override in one.overrides)
        found = [
            one
            for one in every
            if (user is None or one.user == user)
            and (rule is None or one.override.rule == rule)
            and (expired is None or one.override.has_expired(now_us) == expired)
        ]
        return page_of(found, lambda one: (one.user, one.override.rule), after, max_items)

    def now_us(self) -> int:
        """Return the time by which overrides expire."""
        return self._limiter.clock.now_us()

    async def limits(
        self, caller: Caller, user_id: str, *, after: str | None = None, max_items: int = 100
    ) -> UserLimits:
        """Return a user's tier and overrides, and every rule that counts by user and may apply, by id.

        For the next page, pass the last rule's id as `after`. Charges nothing. Raises `InvalidRule` for an invalid id.
        """
        caller.require("users")
        if not 1 <= len(user_id) <= MAX_ID:
            raise InvalidRule(Problem("user", "id", f"must have from 1 to {MAX_ID} characters, got {len(user_id)}"))
        user = await asyncio.to_thread(self._find, user_id)
        snapshot = self._storage.snapshot
        return await subject_limits(snapshot, self._limiter, "user", user_id, user, after=after, max_items=max_items)

    def set_tier(self, caller: Caller, user_id: str, table: Table) -> User:
        """Set a user's `tier`, `anchor` or both; None removes one. Raises `InvalidRule`."""
        caller.require("users", "operator")
        changes, where = self._storage.writable, f"user {user_id!r}"
        wrong = [] if table else [Problem(where, "tier", "is missing, and so is anchor; null: none of their own")]
        wrong += [Problem(where, name, "unknown key") for name in table if name not in ("tier", "anchor")]
        tier = table.get("tier")
        if tier is not None and not isinstance(tier, str):
            wrong.append(Problem(where, "tier", f"must be a string or null, got {tier!r}"))
        if wrong:
            raise InvalidRule(*wrong)
        with changes.begin(caller.name, reason=caller.reason) as change:
            change.put_users([replace(change.user(user_id) or User(id=user_id), **table)])
            return change.user(user_id) or User(id=user_id)

    def delete(self, caller: Caller, user_id: str) -> None:
        """Delete a user's tier, anchor and overrides. Raises `NotFound`."""
        caller.require("users", "operator")
        with self._storage.writable.begin(caller.name, reason=caller.reason) as change:
            change.delete_user(user_id)

    def put_override(self, caller: Caller, user_id: str, table: Table) -> User:
        """Set or replace a user's override of a rule. Raises `InvalidRule`."""
        caller.require("users", "operator")
        changes = self._storage.writable
        override = users_of([{"id": user_id, "overrides": [table]}])[0].overrides[0]
        with changes.begin(caller.name, reason=caller.reason) as change:
            change.put_override(user_id, override)
            return change.user(user_id) or User(id=user_id)

    def delete_override(self, caller: Caller, user_id: str, rule_id: str) -> None:
        """Delete a user's override. Raises `NotFound`."""
        caller.require("users", "operator")
        with self._storage.writable.begin(caller.name, reason=caller.reason) as change:
            change.delete_override(user_id, rule_id)

    def put_batch(self, caller: Caller, table: Table) -> UserBatchResult:
        """Change at most 10,000 users and overrides in one transaction: all of them, or none if any is invalid.

        `users` are tables as in a rules file: each user becomes what theirs says, and one without tier, anchor and
        overrides is deleted. `overrides` are tables with a `user`: each replaces that user's override of its rule, and
        leaves the rest of the user as it is. Raises `InvalidRule` with every problem.
        """
        caller.require("users", "operator")
        changes = self._storage.writable
        users, overrides = batch_of(table)
        with changes.begin(caller.name, reason=caller.reason) as change:
            change.put_users(users)
            change.put_overrides(overrides)
            actions = [difference["action"] for difference in change.differences]
        created, updated, deleted = (actions.count(action) for action in ("create", "update", "delete"))
        return UserBatchResult(change.version, created, updated, deleted, len(users) + len(overrides) - len(actions))

    def _find(self, user_id: str) -> User | None:
        """Return a user from the database or the file."""
        if self._storage.changes is not None:
            return self._storage.changes.user(user_id)
        return next((user for user in self._storage.snapshot.users if user.id == user_id), None)


def drop_expired(user: User, now_us: int) -> User:
    """Return a user without expired overrides."""
    kept = [override for override in user.overrides if not override.has_expired(now_us)]
    return replace(user, overrides=kept)
