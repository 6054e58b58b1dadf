"""Caller: who calls an operation, and with which permissions."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

from headgate.errors import Forbidden

Role = Literal["viewer", "operator", "admin"]
Scope = Literal["check", "rules", "users", "events", "tokens"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)  # each includes the ones before it
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)


class Caller(NamedTuple):
    """An authenticated caller."""

    name: str  # for the change log
    role: Role
    scopes: frozenset[Scope]
    reason: str = ""  # the reason of changes, for the change log

    def may(self, scope: Scope, role: Role = "viewer") -> bool:
        """Return whether the caller has this scope and role."""
        return scope in self.scopes and ROLES.index(self.role) >= ROLES.index(role)

    def require(self, scope: Scope, role: Role = "viewer") -> None:
        """Raise `Forbidden` unless the caller has this scope and role."""
        if scope not in self.scopes:
            raise Forbidden(f"this token is not for {scope}: its scopes are {', '.join(sorted(self.scopes))}")
        if ROLES.index(self.role) < ROLES.index(role):
            raise Forbidden(f"this needs the role {role}, and the token's is {self.role}")
