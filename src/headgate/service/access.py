"""Authentication by bearer token: who is calling, and with which role and scopes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from hmac import compare_digest
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from headgate.core.clock import Clock, SystemClock
from headgate.db.tokens import PREFIX, Token, hash_of
from headgate.errors import DatabaseError, DatabaseUnavailable, Unauthenticated
from headgate.operations.caller import ROLES, SCOPES, Caller, Role
from headgate.service.auth_failures import AuthFailures, TokenGuessLimiter

FRESH_SECONDS: Final = 2.0  # how long a token's lookup is valid
OUTAGE_SECONDS: Final = 3_600.0  # … on the data plane, while the database is down
PATIENCE_SECONDS: Final = 0.5  # how long a caller with a cached token waits for a new lookup
RETRY_SECONDS: Final = 0.5  # before the next query after a failed one
MAX_REMEMBERED: Final = 4_096  # valid tokens, and as many invalid ones
MAX_WAITING: Final = 4_096  # tokens waiting for a lookup
MAX_BATCH: Final = 500  # tokens in one query
DEADLINE_SECONDS: Final = 2.0  # how long a caller waits for the lookup of its token
LONGEST: Final = 512  # characters of a token

log = logging.getLogger("headgate")


ANYBODY: Final = Caller("anybody", "operator", frozenset({"check"}))  # any caller of a data plane without tokens
BOOTSTRAP: Final = Caller("bootstrap", "admin", frozenset(SCOPES))
DATA: Final = Caller("data", "operator", frozenset({"check"}))


class TokenFinder(Protocol):
    """Finds tokens by their hashes: `headgate.db.Tokens`."""

    def find(self, hashes: Collection[str]) -> Mapping[str, Token]: ...


class TokensUnavailable(DatabaseUnavailable):
    """Tokens cannot be looked up now. Logged once for all callers."""


class Access:
    """Identifies callers by their tokens. Belongs to one event loop.

    `admin_token` may do everything. The data plane is open to all callers unless `data_token` is set. Both work
    without a database. Other tokens are looked up in `tokens`; a result, also a negative one, is valid for two seconds.
    So a token that is revoked elsewhere stops working after two seconds.

    While the database is down, results stay valid for an hour on the data plane, and no caller waits.
    """

    def __init__(
        self,
        *,
        admin_token: str | None = None,
        data_token: str | None = None,
        tokens: TokenFinder | None = None,
        clock: Clock | None = None,
        now: Callable[[], float] = time.monotonic,
        deadline: float = DEADLINE_SECONDS,
    ) -> None:
        self._own: list[tuple[str, Caller]] = []
        for name, token, caller in (("admin_token", admin_token, BOOTSTRAP), ("data_token", data_token, DATA)):
            if token == "":
                raise ValueError(f"{name}: must not be empty; omit it for none")
            if token is not None:
                self._own.append((hash_of(token), caller))
        self.open = data_token is None  # whether the data plane needs no token
        self._lookup = None if tokens is None else _Lookup(tokens.find, now, deadline)
        self._clock: Clock = clock or SystemClock()
        self._guess_limiter = TokenGuessLimiter("data-failures", clock)
        self.failures = AuthFailures(now)  # recorded by the code that answers callers

    async def caller(self, token: str | None, *, stale: bool = False) -> Caller:
        """Return the caller with this token. Raises `Unauthenticated`, or `DatabaseError` if the lookup fails.

        With `stale`, an earlier result is good enough while the database is down.
        """
        if token is None:
            message = "a bearer token is needed: send the header `Authorization: Bearer …`"
            raise Unauthenticated(message, reason="missing")
        if len(token) > LONGEST:
            raise Unauthenticated("this token is not known")
        digest = hash_of(token)
        if not token.startswith(PREFIX):
            found = self._own_caller(digest)
            if found is None:
                raise Unauthenticated("this token is not known")
            return found
        return await self.caller_by_hash(digest, stale=stale)

    async def caller_by_hash(self, digest: str, *, stale: bool = False) -> Caller:
        """Return the caller whose token has this hash, as `caller` does. For sessions, which do not keep tokens."""
        found = self._own_caller(digest)
        if found is not None:
            return found
        if self._lookup is None:
            raise Unauthenticated("this token is not known")
        return _caller(await self._lookup.token(digest, stale=stale), self._clock.now_us())

    async def require_data(self, token: str | None, role: Role = "viewer", address: str | None = None) -> Caller:
        """Authenticate a caller of the data plane, which may be open, and works without the database.

        `address` is the client's. Also raises `Forbidden`, and `RateLimited` after too many bad tokens from that
        address.
        """
        if self.open:
            return ANYBODY
        caller = await self._guess_limiter.caller(token, address, partial(self.caller, token, stale=True))
        caller.require("check", role)
        return caller

    def admits_at_once(self, token: str | None, role: Role = "viewer", address: str | None = None) -> bool:
        """Return whether `require_data` would accept a caller, if that is known without waiting."""
        if self.open:
            return True
        if token is None or len(token) > LONGEST:
            return False
        digest = hash_of(token)
        caller = self._own_caller(digest)
        return caller is not None and caller.may("check", role) and self._guess_limiter.prove(digest, address)

    def _own_caller(self, digest: str) -> Caller | None:
        """Return the caller whose token from the settings has this hash, in constant time."""
        found = None
        for own, caller in self._own:
            if compare_digest(own, digest):
                found = caller
        return found

    def forget(self, revoked: str | None = None) -> None:
        """Look every token up again at its next use. Call it when a token was created or `revoked` (by id) here."""
        if self._lookup is not None:
            self._lookup.forget(revoked)


class _Found(NamedTuple):
    token: Token | None  # None: unknown token
    until: float
    stale_until: float  # while the database is down


class _Lookup:
    """Looks tokens up in the database by hash. Caches results for a while, and queries missing ones in batches.

    Only one query runs at a time, for all waiting callers. So a flood of made-up tokens becomes a few large queries.
    It cannot evict valid tokens, which have their own cache and go first. After a failed query it retries in the
    background, so that it notices the database's return without any callers.
    """

    def __init__(
        self, find: Callable[[Collection[str]], Mapping[str, Token]], now: Callable[[], float], deadline: float
    ) -> None:
        self._find = find
        self._now = now
        self._deadline = deadline
        self._good: dict[str, _Found] = {}
        self._bad: dict[str, _Found] = {}
        self._waiting: dict[str, asyncio.Future[Token | None]] = {}
        self._querying: asyncio.Task[None] | None = None
        self._generation = 0
        self._failing = False
        self._unanswered: list[str] = []  # the last failed batch

    async def token(self, digest: str, *, stale: bool) -> Token | None:
        """Return the token with this hash; None if unknown. Raises `DatabaseError`, unless `stale` allows an old
        result."""
        found, now = self._good.get(digest) or self._bad.get(digest), self._now()
        if found is not None and now < found.until:
            return found.token
        kept = found if stale and found is not None and found.token is not None and now < found.stale_until else None
        if kept is not None and self._failing:
            self._start_querying()
            return kept.token
        deadline = self._deadline if kept is None else min(self._deadline, PATIENCE_SECONDS)
        try:
            async with asyncio.timeout(deadline):
                return await asyncio.shield(self._look_up(digest))  # other callers may wait for it too
        except TimeoutError:
            error: DatabaseError = TokensUnavailable(f"tokens: no answer within {deadline:g} s")
            self._record_failure(error)
        except DatabaseError as failure:
            error = failure
        if kept is None:
            raise error
        return kept.token

    def forget(self, revoked: str | None) -> None:
        self._generation += 1  # a running query may return old data
        self._bad.clear()
        self._good = {
            digest: found._replace(until=-inf)
            for digest, found in self._good.items()
            if found.token is not None and found.token.id != revoked
        }

    def _look_up(self, digest: str) -> asyncio.Future[Token | None]:
        """Return a future for the lookup of a token."""
        answer = self._waiting.get(digest)
        if answer is None:
            if len(self._waiting) >= MAX_WAITING and digest not in self._good:
                raise DatabaseUnavailable("too many tokens are being looked up; try again")
            answer = self._waiting[digest] = asyncio.get_running_loop().create_future()
            self._start_querying()
        return answer

    def _start_querying(self) -> None:
        if self._querying is None:
            self._querying = asyncio.create_task(self._query())

    async def _query(self) -> None:
        try:
            while self._waiting or self._failing:
                if not self._waiting:
                    await asyncio.sleep(RETRY_SECONDS)
                wanted = sorted(self._waiting, key=lambda digest: digest not in self._good) or self._unanswered
                batch = wanted[:MAX_BATCH]
                generation, now = self._generation, self._now()
                try:
                    found = await asyncio.to_thread(self._find, batch)
                except Exception as error:  # noqa: BLE001 - reported to waiting callers, and logged
                    self._unanswered = batch
                    self._record_failure(error)
                    self._refuse(batch, error)
                else:
                    self._record_recovery()
                    self._answer(batch, found, now if generation == self._generation else None)
        finally:
            self._querying = None
            for answer in self._waiting.values():  # only if cancelled: the loop is closing
                answer.cancel()
            self._waiting.clear()

    def _refuse(self, batch: Iterable[str], error: Exception) -> None:
        what = str(error) if isinstance(error, DatabaseError) else type(error).__name__
        for digest in batch:
            answer = self._waiting.pop(digest, None)
            if answer is not None:
                answer.set_exception(TokensUnavailable(f"tokens could not be looked up: {what}"))
                answer.exception()  # marks it as retrieved, even if all waiting callers have left

    def _answer(self, batch: Iterable[str], found: Mapping[str, Token], queried_at: float | None) -> None:
        """Answer all waiting callers; cache the results if the time of the query is given."""
        for digest in batch:
            token = found.get(digest)
            if queried_at is not None:
                kept = _Found(token, queried_at + FRESH_SECONDS, queried_at + OUTAGE_SECONDS)
                _remember(self._bad if token is None else self._good, digest, kept)
                (self._good if token is None else self._bad).pop(digest, None)
            answer = self._waiting.pop(digest, None)
            if answer is not None:
                answer.set_result(token)

    def _record_failure(self, error: Exception) -> None:
        if self._failing:
            return
        self._failing = True
        log.error(
            "tokens could not be looked up; until they can, those found in the last hour stay valid for checks: %s",
            error,
            exc_info=None if isinstance(error, DatabaseError) else error,
        )

    def _record_recovery(self) -> None:
        if self._failing:
            self._failing = False
            log.warning("the database answers again: looking up tokens again")


def _remember(kept: dict[str, _Found], digest: str, found: _Found) -> None:
    kept.pop(digest, None)  # the newest is last
    if len(kept) >= MAX_REMEMBERED:
        del kept[next(iter(kept))]
    kept[digest] = found


def _caller(token: Token | None, now_us: int) -> Caller:
    role: Any = None if token is None else token.role
    if token is None or role not in ROLES:
        raise Unauthenticated("this token is not known")
    if token.revoked_us is not None:
        raise Unauthenticated("this token was revoked", reason="revoked", token=token.name)
    if token.expires_us <= now_us:
        raise Unauthenticated("this token has expired", reason="expired", token=token.name)
    return Caller(token.name, role, frozenset(scope for scope in SCOPES if scope in token.scopes))
