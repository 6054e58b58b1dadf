"""Operations on tokens: create, list, revoke."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from headgate.core.quota import MICROSECONDS, duration_us
from headgate.db import TokenTable
from headgate.db.tokens import Token
from headgate.errors import ChangeConflict, Forbidden, InvalidQuota, InvalidRule, Problem
from headgate.operations.caller import ROLES, SCOPES, Caller

Table = dict[str, Any]

DEFAULT_EXPIRY: Final = "90d"
OWN_NAMES: Final = frozenset(
    {"anybody", "bootstrap", "data"}
)  # the service's own callers: no token may have these names
_FIELDS: Final = ("name", "role", "scopes", "expires_in")


class Tokens:
    """Operations on tokens. Reading needs the scope `tokens`; changing also the role `admin`.

    `stored` is None without a database. `forget` is called when a token is created (with None) or revoked (with its
    id).
    """

    def __init__(self, stored: TokenTable | None, forget: Callable[[str | None], None]) -> None:
        self._stored = stored
        self._forget = forget

    def page(self, caller: Caller, *, after: str | None = None, max_items: int = 100) -> Sequence[Token]:
        """Return all tokens, valid or not, the oldest first. For the next page, pass the last one's id as `after`."""
        caller.require("tokens")
        return self._kept.all(after=after, max_items=max_items)

    async def create(self, caller: Caller, table: Table) -> tuple[Token, str]:
        """Create a token. Returns it and the secret, which is never shown again.

        Raises `InvalidRule`, `ChangeConflict`, and `Forbidden` for scopes that the caller lacks.
        """
        caller.require("tokens", "admin")
        tokens = self._kept
        name, role, scopes, seconds = _token_fields(table)
        beyond = sorted(set(scopes) - caller.scopes)
        if beyond:
            raise Forbidden(f"this token cannot grant scopes that it lacks: {', '.join(beyond)}")
        created = await asyncio.to_thread(
            tokens.create, name, role=role, scopes=scopes, seconds=seconds, actor=caller.name
        )
        self._forget(None)  # a client may have tried it already
        return created

    async def revoke(self, caller: Caller, token_id: str) -> None:
        """Revoke a token. Raises `NotFound`."""
        caller.require("tokens", "admin")
        await asyncio.to_thread(self._kept.revoke, token_id, actor=caller.name)
        self._forget(token_id)

    @property
    def _kept(self) -> TokenTable:
        if self._stored is None:
            raise ChangeConflict(
                "this service has no database to store tokens; only the tokens in its settings are valid"
            )
        return self._stored


def _token_fields(table: Table) -> tuple[str, str, list[str], float]:
    """Read the fields of a new token. Raises `InvalidRule` with all problems."""
    where = "token"
    problems = [Problem(where, field, "unknown key") for field in table if field not in _FIELDS]
    name, role = table.get("name"), table.get("role", "viewer")
    scopes: Any = table.get("scopes", [])
    if not isinstance(name, str):
        problems.append(Problem(where, "name", "is missing" if name is None else f"must be a string, got {name!r}"))
    elif name in OWN_NAMES:
        problems.append(Problem(where, "name", f"{name!r} is reserved for the service itself"))
    if role not in ROLES:
        problems.append(Problem(where, "role", f"must be one of {', '.join(ROLES)}, got {role!r}"))
    if not isinstance(scopes, list) or not scopes or any(scope not in SCOPES for scope in scopes):
        message = f"must be a list of at least one of {', '.join(SCOPES)}, got {scopes!r}"
        problems.append(Problem(where, "scopes", message))
    try:
        seconds = duration_us(table.get("expires_in", DEFAULT_EXPIRY)) / MICROSECONDS
    except InvalidQuota as error:
        problems.append(Problem(where, "expires_in", str(error).partition(": ")[2]))
    if problems:
        raise InvalidRule(*problems)
    return str(name), role, scopes, seconds
