"""Slows down clients that guess tokens. The admin API and the data plane each have their own limiter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from headgate.core.clock import Clock
from headgate.core.decision import Decision
from headgate.db.tokens import hash_of
from headgate.errors import RateLimited, Unauthenticated
from headgate.http.identity.address import Trust
from headgate.limiter.limiter import Limiter
from headgate.rules.recent import Recent
from headgate.rules.rule import Rule

if TYPE_CHECKING:
    from headgate.operations.caller import Caller

ADDRESS_FACT: Final = "headgate_address"
QUOTA: Final = "30/minute"  # bad tokens from an address
REMEMBERED: Final = 4_096  # tokens

_ADDRESSES: Final = Trust((), 1, 64)  # the peer's address only: clients behind a proxy count as the proxy


class TokenGuessLimiter:
    """Counts bad tokens by client address, in this process.

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

    def forgive(self, address: str | None) -> None:
        """Forget the bad tokens that came from an address."""
        self._failures.reset(**_facts(address))

    def _peek(self, address: str | None) -> Decision:
        return self._failures.peek(cost=1, **_facts(address))


def _facts(address: str | None) -> dict[str, str]:
    return {ADDRESS_FACT: "unix" if address is None else _ADDRESSES.see(address).facts["ip"]}
