"""Operations on subjects of rules (a user, an IP address, an API key or a tenant): their limits and resets."""

from __future__ import annotations

import asyncio
from typing import Final, Literal, NamedTuple, get_args

from headgate.db import Changes
from headgate.errors import InvalidRule, Problem
from headgate.http.identity import hashed_api_key
from headgate.http.identity.address import Trust
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.operations.caller import Caller
from headgate.operations.storage import Storage
from headgate.operations.user_limits import UserLimits, subject_limits, without_conditions
from headgate.operations.users import Users
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import MAX_ID

Fact = Literal["user", "ip", "api_key", "tenant"]
FACTS: Final[tuple[Fact, ...]] = get_args(Fact)
HASHED: Final = "sha256-"  # the prefix of a hashed API key
MAX_RULES: Final = 200  # shown of one subject

_ADDRESSES: Final = Trust((), 1, 64)


class PenaltyStatus(NamedTuple):
    """A block of a client that was refused too often."""

    seconds: float | None  # until it ends


class Subjects:
    """Operations on subjects. Reading needs the scope `users`; resetting also the role `operator`."""

    def __init__(self, storage: Storage, users: Users, limiter: AsyncLimiter) -> None:
        self._storage = storage
        self._users = users
        self._limiter = limiter

    async def limits(self, caller: Caller, fact: Fact, subject: str) -> UserLimits:
        """Return every rule that counts by this fact and may apply, with its current figures. Charges nothing."""
        caller.require("users")
        if fact == "user":
            return await self._users.limits(caller, subject, max_items=MAX_RULES)
        return await subject_limits(self._storage.snapshot, self._limiter, fact, subject, max_items=MAX_RULES)

    async def penalty(self, caller: Caller, fact: Fact, subject: str) -> PenaltyStatus | None:
        """Return the subject's current block; None if there is none."""
        caller.require("users")
        decision = await self._limiter.peek(cost=1, **{fact: subject})
        return PenaltyStatus(decision.retry_after) if decision.reason == "penalty" else None

    async def reset(self, caller: Caller, fact: Fact, subject: str) -> int:
        """Reset a subject's counts, and lift its block. Returns the number of rules.

        Applies to rules that count by this fact alone. Raises `StoreError`.
        """
        caller.require("users", "operator")
        snapshot = self._storage.snapshot
        rules = [rule for rule in snapshot.rules if rule.enabled and rule.facts == (fact,)]
        log: Changes | None = self._storage.log
        if log is not None:  # first: a reset that cannot be logged must not happen
            await asyncio.to_thread(log.log_reset, caller.name, f"{fact} {subject}", reason=caller.reason)
        free = Snapshot(
            [without_conditions(rule) for rule in rules], penalties=snapshot.penalties, facts=snapshot.facts
        )
        await self._limiter.sibling(free).reset(**{fact: subject})
        return len(rules)


def api_key_fact(text: str) -> str:
    """Return an API key's hash, from the key or from the hash, which events show."""
    return text if text.startswith(HASHED) else hashed_api_key(text)


def normalize_subject(fact: Fact, text: str) -> str:
    """Return a subject as rules see it: API keys hashed, addresses normalized. Raises `InvalidRule`."""
    text = text.strip()
    if not 1 <= len(text) <= MAX_ID:
        raise InvalidRule(Problem(fact, "", f"must have from 1 to {MAX_ID} characters, got {len(text)}"))
    if fact == "api_key":
        return api_key_fact(text)
    return _ADDRESSES.see(text).facts["ip"] if fact == "ip" else text
