"""Who may do what: bearer tokens, their roles and scopes."""

from __future__ import annotations

from collections.abc import Iterable
from hmac import compare_digest
from typing import Final, Literal, NamedTuple

from headgate.errors import Forbidden, Unauthenticated

Role = Literal["viewer", "operator", "admin"]
Scope = Literal["check", "rules", "users", "events", "tokens"]

ROLES: Final[tuple[Role, ...]] = ("viewer", "operator", "admin")  # each may do what those before it may
SCOPES: Final[tuple[Scope, ...]] = ("check", "rules", "users", "events", "tokens")


class Caller(NamedTuple):
    """Somebody whose token was good."""

    name: str  # for the change log
    role: Role
    scopes: frozenset[Scope]

    def require(self, scope: Scope, role: Role = "viewer") -> None:
        """Raises `Forbidden` unless they may do what asks for this."""
        if scope not in self.scopes:
            raise Forbidden(f"this token is not for {scope}: its scopes are {', '.join(sorted(self.scopes))}")
        if ROLES.index(self.role) < ROLES.index(role):
            raise Forbidden(f"this needs the role {role}, and the token's is {self.role}")


ANYBODY: Final = Caller("anybody", "operator", frozenset({"check"}))  # on a data plane that asks for no token


class Access:
    """Tells callers by their tokens.

    `admin_token` may do everything. The data plane is open to anybody unless `data_token` is set.
    """

    def __init__(self, *, admin_token: str | None = None, data_token: str | None = None) -> None:
        self._known: list[tuple[str, Caller]] = []
        if admin_token is not None:
            self._known.append((admin_token, Caller("bootstrap", "admin", frozenset(SCOPES))))
        if data_token is not None:
            self._known.append((data_token, Caller("data", "operator", frozenset({"check"}))))
        self.open = data_token is None  # whether the data plane is

    async def caller(self, token: str | None) -> Caller:
        """Who has this token. Raises `Unauthenticated`; `DatabaseError` when that cannot be found out."""
        if token is None:
            raise Unauthenticated("a bearer token is needed: send the header `Authorization: Bearer …`")
        found = _equal(token, self._known)
        if found is None:
            raise Unauthenticated("this token is not known")
        return found

    async def require_data(self, token: str | None, role: Role = "viewer") -> Caller:
        """The same for the data plane, which may be open. Raises `Forbidden`, too."""
        if self.open:
            return ANYBODY
        caller = await self.caller(token)
        caller.require("check", role)
        return caller


def _equal(token: str, known: Iterable[tuple[str, Caller]]) -> Caller | None:
    """Takes as long whichever it is."""
    found = None
    for one, caller in known:
        if compare_digest(one.encode(), token.encode("utf-8", "surrogatepass")):
            found = caller
    return found
