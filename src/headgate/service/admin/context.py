"""The objects that the admin routes share, and the checks on their callers."""

# No `from __future__ import annotations`: FastAPI reads the annotations of dependencies.

from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Request
from fastapi.params import Depends as Dependency

from headgate.core.decision import Decision
from headgate.errors import Forbidden, RateLimited
from headgate.http.request_limiter import resolve
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.operations import Caller, Operations, Role, Scope
from headgate.operations.tokens import Tokens
from headgate.rules.rule import Rule
from headgate.service.access import Access
from headgate.service.auth_failures import TokenGuessLimiter
from headgate.service.http.exchange import admit

REASON: Final = "x-change-reason"  # the header with the reason of a change, for the change log
TOKEN_FACT: Final = "headgate_token"  # no request can have this fact: the counts share a store with users' rules
OWN_RULES: Final = (
    Rule(id="admin-reads", quota="1000/minute", dimension=TOKEN_FACT, methods=["GET"]),
    Rule(id="admin-writes", quota="100/minute", dimension=TOKEN_FACT, methods=["POST", "PUT", "PATCH", "DELETE"]),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The objects that the admin routes share."""

    operations: Operations
    access: Access
    tokens: Tokens
    limits: AsyncLimiter  # of callers, by token
    guess_limiter: TokenGuessLimiter


def context_of(request: Request) -> Context:
    context: Context = request.app.state.headgate
    return context


async def caller_of(request: Request) -> Caller:
    """Return the caller of a request. Raises `Unauthenticated`, `RateLimited` and `DatabaseError`."""
    context = context_of(request)
    token = bearer(request.headers.get("authorization"))
    address = None if request.client is None else request.client.host
    try:
        caller = await context.guess_limiter.caller(token, address, lambda: context.access.caller(token))
    except RateLimited as error:
        _pass(request, error.decision)
        raise
    admit(request.scope)
    _pass(request, await resolve(context.limits.decide({TOKEN_FACT: caller.name, "method": request.method})))
    return caller._replace(reason=request.headers.get(REASON, "").strip())


def bearer(field: str | None) -> str | None:
    """Return the bearer token in an `Authorization` field; None if there is none."""
    scheme, _, token = (field or "").strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


class Needs:
    """A dependency that requires a token with this scope and role."""

    def __init__(self, scope: Scope, role: Role) -> None:
        self.scope: Scope = scope
        self.role: Role = role

    async def __call__(self, caller: Annotated[Caller, Depends(caller_of)]) -> None:
        caller.require(self.scope, self.role)


class NeedsOne:
    """A dependency that requires a token with one of several scopes, each with its role."""

    def __init__(self, **roles: Role) -> None:
        self.roles: dict[Any, Role] = dict(roles)

    async def __call__(self, caller: Annotated[Caller, Depends(caller_of)]) -> None:
        if not any(caller.may(scope, role) for scope, role in self.roles.items()):
            wanted = " or ".join(f"the scope {scope} and the role {role}" for scope, role in self.roles.items())
            raise Forbidden(
                f"this needs {wanted}: the token has the role {caller.role}, for {', '.join(caller.scopes)}"
            )


def needs(scope: Scope, role: Role = "viewer") -> Dependency:
    """Return the permission that a route requires, for its `dependencies`."""
    dependency: Dependency = Depends(Needs(scope, role))
    return dependency


Here = Annotated[Context, Depends(context_of)]
Who = Annotated[Caller, Depends(caller_of)]


def _pass(request: Request, decision: Decision) -> None:
    request.state.decision = decision  # for the response's headers
    if not decision.allowed:
        raise RateLimited(decision)
