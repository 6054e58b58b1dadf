"""What the routes work with, and who may use them."""

# No `from __future__ import annotations`: FastAPI reads the annotations of dependencies.

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, Request
from fastapi.params import Depends as Dependency

from headgate.core.decision import Decision
from headgate.db import Changes, Tokens
from headgate.errors import ChangeConflict, RateLimited
from headgate.http.entrance import awaited
from headgate.limiter.aio import AsyncLimiter
from headgate.rules.holder import Source
from headgate.rules.rule import Rule
from headgate.service.access import Access, Caller, Role, Scope
from headgate.service.guesses import Guesses
from headgate.service.rest.exchange import admit

TOKEN_FACT: Final = "headgate_token"  # no fact of anybody's requests: the counts lie beside those of the users' rules
OWN_RULES: Final = (
    Rule(id="admin-reads", quota="1000/minute", dimension=TOKEN_FACT, methods=["GET"]),
    Rule(id="admin-writes", quota="100/minute", dimension=TOKEN_FACT, methods=["POST", "PUT", "PATCH", "DELETE"]),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the routes work with. `changes` is None where rules are in a file, `log` and `tokens` without a database."""

    source: Source
    limiter: AsyncLimiter  # of the data plane: for what users have left
    access: Access
    changes: Changes | None
    log: Changes | None
    tokens: Tokens | None
    limits: AsyncLimiter  # of callers, by token
    guesses: Guesses

    @property
    def writable(self) -> Changes:
        """What changes rules and users. Raises `ChangeConflict` where they are in a file."""
        if self.changes is None:
            raise ChangeConflict(f"{self.place}: change them there; this API can only read them")
        return self.changes

    @property
    def place(self) -> str:
        """Where rules are if not in a database, for messages."""
        path = getattr(self.source, "path", None)
        return "the rules are not in a database" if path is None else f"the rules are in the file {path}"

    @property
    def kept_log(self) -> Changes:
        if self.log is None:
            raise ChangeConflict("this service has no database, which would keep a change log")
        return self.log

    @property
    def kept_tokens(self) -> Tokens:
        if self.tokens is None:
            raise ChangeConflict("this service has no database, which would keep tokens; only its own ones are good")
        return self.tokens


def context_of(request: Request) -> Context:
    context: Context = request.app.state.headgate
    return context


async def caller_of(request: Request) -> Caller:
    """Whose request it is. Raises `Unauthenticated`, `RateLimited` and `DatabaseError`."""
    context = context_of(request)
    token = bearer(request.headers.get("authorization"))
    address = None if request.client is None else request.client.host
    try:
        caller = await context.guesses.caller(token, address, lambda: context.access.caller(token))
    except RateLimited as error:
        _pass(request, error.decision)
        raise
    admit(request.scope)
    _pass(request, await awaited(context.limits.decide({TOKEN_FACT: caller.name, "method": request.method})))
    return caller


def bearer(field: str | None) -> str | None:
    """The token of a field `Authorization`; None: there is none."""
    scheme, _, token = (field or "").strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


class Needs:
    """A dependency that only lets pass whose token has a scope and a role."""

    def __init__(self, scope: Scope, role: Role) -> None:
        self.scope: Scope = scope
        self.role: Role = role

    async def __call__(self, caller: Annotated[Caller, Depends(caller_of)]) -> None:
        caller.require(self.scope, self.role)


def needs(scope: Scope, role: Role = "viewer") -> Dependency:
    """What a route asks of its callers: for its `dependencies`."""
    dependency: Dependency = Depends(Needs(scope, role))
    return dependency


Here = Annotated[Context, Depends(context_of)]
Who = Annotated[Caller, Depends(caller_of)]


def _pass(request: Request, decision: Decision) -> None:
    request.state.decision = decision  # told in the response's header
    if not decision.allowed:
        raise RateLimited(decision)
