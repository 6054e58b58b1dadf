"""Subjects of rules (a user, an IP address, an API key or a tenant), and what they have left."""

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
from headgate.operations.user_limits import UserLimits, subject_limits, unconditional
from headgate.operations.users import Users
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import MAX_ID

Fact = Literal["user", "ip", "api_key", "tenant"]
FACTS: Final[tuple[Fact, ...]] = get_args(Fact)
HASHED: Final = "sha256-"  # begins an API key as it is kept
MOST_RULES: Final = 200  # that are shown of one subject

_ADDRESSES: Final = Trust((), 1, 64)


class PenaltyStatus(NamedTuple):
    """A block for having been refused too often."""

    seconds: float | None  # until it ends


class Subjects:
    """Reading takes the scope `users`; resetting, the role `operator`, too."""

    def __init__(self, storage: Storage, users: Users, limiter: AsyncLimiter) -> None:
        self._storage = storage
        self._users = users
        self._limiter = limiter

    async def limits(self, caller: Caller, fact: Fact, subject: str) -> UserLimits:
        """Every rule that counts by this fact and may apply to the subject, with its figures now. Charges nothing."""
        caller.require("users")
        if fact == "user":
            return await self._users.limits(caller, subject, most=MOST_RULES)
        return await subject_limits(self._storage.snapshot, self._limiter, fact, subject, most=MOST_RULES)

    async def penalty(self, caller: Caller, fact: Fact, subject: str) -> PenaltyStatus | None:
        """The block that a subject is under; None: none."""
        caller.require("users")
        decision = await self._limiter.peek(cost=1, **{fact: subject})
        return PenaltyStatus(decision.retry_after) if decision.reason == "penalty" else None

    async def reset(self, caller: Caller, fact: Fact, subject: str) -> int:
        """Forget what a subject has used, and lift its block. Returns of how many rules.

        That is of rules that count by this fact alone. Raises `StoreError`.
        """
        caller.require("users", "operator")
        snapshot = self._storage.snapshot
        rules = [rule for rule in snapshot.rules if rule.enabled and rule.facts == (fact,)]
        log: Changes | None = self._storage.log
        if log is not None:  # first: what cannot be logged is not done
            await asyncio.to_thread(log.log_reset, caller.name, f"{fact} {subject}", reason=caller.reason)
        free = Snapshot([unconditional(rule) for rule in rules], penalties=snapshot.penalties, facts=snapshot.facts)
        await self._limiter.sibling(free).reset(**{fact: subject})
        return len(rules)


def api_key_fact(text: str) -> str:
    """An API key as rules know it, of the key or of its hash, which is what events show."""
    return text if text.startswith(HASHED) else hashed_api_key(text)


def normal_subject(fact: Fact, text: str) -> str:
    """A subject as rules know it: API keys hashed, addresses in their usual form. Raises `InvalidRule`."""
    text = text.strip()
    if not 1 <= len(text) <= MAX_ID:
        raise InvalidRule(Problem(fact, "", f"must have from 1 to {MAX_ID} characters, got {len(text)}"))
    if fact == "api_key":
        return api_key_fact(text)
    return _ADDRESSES.see(text).facts["ip"] if fact == "ip" else text
