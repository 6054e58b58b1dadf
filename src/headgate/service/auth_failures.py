"""Rejected tokens: counts and logs them, and slows down clients that guess.

A proxy that fails open allows every request while its token is wrong or expired. Only this service notices.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from headgate.core.clock import Clock
from headgate.core.decision import Decision
from headgate.db.tokens import hash_of
from headgate.errors import AccessError, RateLimited, Unauthenticated
from headgate.http.identity.address import Trust
from headgate.limiter.limiter import Limiter
from headgate.rules.recent import Recent
from headgate.rules.rule import Rule

if TYPE_CHECKING:
    from headgate.operations.caller import Caller

PROTOCOLS: Final = ("http", "authorize", "grpc", "envoy", "admin", "other")
REASONS: Final = ("missing", "unknown", "expired", "revoked", "forbidden", "throttled")
LOG_SECONDS: Final = 60.0  # between two log lines with the same protocol and reason

ADDRESS_FACT: Final = "headgate_address"
QUOTA: Final = "30/minute"  # bad tokens from an address
REMEMBERED: Final = 4_096  # tokens

_ADDRESSES: Final = Trust((), 1, 64)  # the peer's address only: clients behind a proxy count as the proxy

log = logging.getLogger("headgate")


class AuthFailures:
    """Counts of rejected tokens. Belongs to one event loop; any thread may read `counts`."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.counts = {(protocol, reason): 0 for protocol in PROTOCOLS for reason in REASONS}
        self._now = now
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}  # when it was last logged, and the count then

    def record(self, protocol: str, error: Exception, address: str | None) -> None:
        """Count an error if it is about the caller's token; log at most once a minute."""
        reason = _reason_of(error)
        if reason is None:
            return
        key = (protocol if protocol in PROTOCOLS else "other", reason)
        self.counts[key] += 1
        count, now = self.counts[key], self._now()
        logged_at, logged_count = self._logged.get(key, (-LOG_SECONDS, 0))
        if now - logged_at < LOG_SECONDS:
            return
        self._logged[key] = (now, count)
        name = error.token if isinstance(error, Unauthenticated) else None
        log.warning(
            "authentication failed (%s, %s): %s%s; from %s; %d more of this kind since the last such line",
            *key,
            "too many bad tokens from this address" if reason == "throttled" else error,
            "" if name is None else f" (its name is {name!r})",
            address or "an unknown address",
            count - logged_count - 1,
        )


class TokenGuessLimiter:
    """Counts bad tokens by client address, in this process. The data plane, admin API and console have one each.

    After too many, it rejects all tokens from that address, even valid ones, unless they were valid before: otherwise
    an attacker could simply keep guessing.
    """

    def __init__(self, rule: str, clock: Clock | None = None) -> None:
        """Set up the limiter; refusals name `rule`."""
        self._failures = Limiter([Rule(id=rule, quota=QUOTA, dimension=ADDRESS_FACT)], clock=clock)
        self._proven: Recent[str, bool] = Recent(REMEMBERED)  # by hash

    async def caller(self, token: str | None, address: str | None, find: Callable[[], Awaitable[Caller]]) -> Caller:
        """Return the result of `find` for the token. Raises `RateLimited`, and what `find` raises."""
        if token is None:  # not a guess
            return await find()
        digest = hash_of(token)
        if not self._proven.get(digest):
            decision = self._peek(address)
            if not decision.allowed:
                raise RateLimited(decision)
        try:
            caller = await find()
        except Unauthenticated:
            self._proven.drop(digest)
            self._failures.decide(_facts(address))
            raise
        self._proven.put(digest, True)
        return caller

    def prove(self, digest: str, address: str | None) -> bool:
        """Return whether to accept a valid token with this hash; if so, remember it as valid."""
        if not self._proven.get(digest):
            if not self._peek(address).allowed:
                return False
            self._proven.put(digest, True)
        return True

    def _peek(self, address: str | None) -> Decision:
        return self._failures.peek(cost=1, **_facts(address))


def _reason_of(error: Exception) -> str | None:
    """Return one of `REASONS`; None if the error is not about a token."""
    if isinstance(error, Unauthenticated):
        return error.reason
    if isinstance(error, AccessError):
        return "forbidden"
    if isinstance(error, RateLimited) and (error.decision.rule or "").endswith("-failures"):  # a `TokenGuessLimiter`'s
        return "throttled"
    return None


def _facts(address: str | None) -> dict[str, str]:
    return {ADDRESS_FACT: "unix" if address is None else _ADDRESSES.see(address).facts["ip"]}
