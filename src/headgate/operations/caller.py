"""Caller: who asks for something, and what they may do."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

from headgate.errors import Forbidden

Role = Literal["viewer", "operator", "admin"]
Scope = Literal["check", "rules", "users", "events", "tokens"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)  # each may do what those before it may
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)


class Caller(NamedTuple):
    """An authenticated caller."""

    name: str  # for the change log
    role: Role
    scopes: frozenset[Scope]
    reason: str = ""  # why they change what they change, for the change log

    def may(self, scope: Scope, role: Role = "viewer") -> bool:
        """Whether they may do what asks for this."""
        return scope in self.scopes and ROLES.index(self.role) >= ROLES.index(role)

    def require(self, scope: Scope, role: Role = "viewer") -> None:
        """Raises `Forbidden` unless they may do what asks for this."""
        if scope not in self.scopes:
            raise Forbidden(f"this token is not for {scope}: its scopes are {', '.join(sorted(self.scopes))}")
        if ROLES.index(self.role) < ROLES.index(role):
            raise Forbidden(f"this needs the role {role}, and the token's is {self.role}")
