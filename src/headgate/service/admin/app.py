"""The admin API's FastAPI app: its routes, and its exceptions as problem details."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route

from headgate._version import __version__
from headgate.core.suggestion import did_you_mean
from headgate.db import TokenTable
from headgate.errors import HeadgateError, InvalidRule, Problem
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.operations import Operations
from headgate.operations.tokens import Tokens
from headgate.service.access import Access
from headgate.service.admin import changes as change_routes
from headgate.service.admin import exemptions as exemption_routes
from headgate.service.admin import overrides as override_routes
from headgate.service.admin import rules as rule_routes
from headgate.service.admin import ruleset as ruleset_routes
from headgate.service.admin import tokens as token_routes
from headgate.service.admin import users as user_routes
from headgate.service.admin.context import OWN_RULES, Context, context_of
from headgate.service.admin.documentation import serve_documentation
from headgate.service.admin.headers import Headers
from headgate.service.admin.openapi import INTRODUCTION, TAGS, description_of
from headgate.service.admin.openapi_parts import problems
from headgate.service.auth_failures import TokenGuessLimiter
from headgate.service.http.problems import MEDIA_TYPE, HttpError, problem_of

PREFIX: Final = "/api/v1"
OWN_ROUTERS: Final = (
    *(rule_routes.router, ruleset_routes.router, exemption_routes.router),
    *(override_routes.router, user_routes.router),  # in this order: a user's id may contain a slash
    *(token_routes.router, change_routes.router),
)


def admin_app(
    *,
    operations: Operations,
    access: Access,
    tokens: TokenTable | None = None,
    routers: Sequence[APIRouter] = (),
    limits: AsyncLimiter | None = None,
) -> FastAPI:
    """Return the admin API with /docs and /openapi.json. It belongs to the event loop of `operations` and `access`.

    `tokens` is the table that `access` looks tokens up in. `routers` are further routes, relative to /api/v1; each
    states the scope and role that it needs with `needs`. `limits` limits callers by `OWN_RULES`; by default on the data
    plane's store.
    """
    app = FastAPI(
        title="Headgate",
        summary="Rate limits: checks, and the rules behind them.",
        description=INTRODUCTION,
        version=__version__,
        openapi_tags=TAGS,
        openapi_url=None,  # served beside /docs
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,  # an operation's id is its function's name
    )
    app.state.headgate = Context(
        operations=operations,
        access=access,
        tokens=Tokens(tokens, access.forget),
        limits=limits or operations.limiter.sibling(OWN_RULES, name="admin"),
        guess_limiter=TokenGuessLimiter("admin-failures", operations.limiter.clock),
    )
    routers = app.state.routers = (*OWN_ROUTERS, *routers)
    for router in routers:
        app.include_router(
            router,
            prefix=PREFIX,
            responses=problems(401, 403, 422, 429, 503),
            dependencies=[Depends(_check_parameters)],
        )
    serve_documentation(app)
    app.add_middleware(Headers)
    for kind in (HeadgateError, HttpError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _answer_error)
    app.openapi = lambda: description_of(app, routers)  # type: ignore[method-assign]
    return app


async def _check_parameters(request: Request) -> None:
    """Raise `InvalidRule` for a query parameter that the route does not have, or that is given twice.

    FastAPI ignores a mistyped one, and would return more than the caller asked for.
    """
    names = [name for name, _ in request.query_params.multi_items()]
    if not names:
        return
    known = frozenset(_parameters(request.scope["route"].dependant))
    problems = []
    for name in dict.fromkeys(names):
        if name not in known:
            problems.append(Problem("query", name, f"is not a parameter of this path{did_you_mean(name, known)}"))
        elif names.count(name) > 1:
            problems.append(Problem("query", name, f"must be given once, got it {names.count(name)} times"))
    if problems:
        raise InvalidRule(*problems)


def _parameters(dependant: Any) -> Iterator[str]:
    """Yield the names of a route's query parameters, those of its dependencies included."""
    for field in dependant.query_params:
        yield field.alias
    for part in dependant.dependencies:
        yield from _parameters(part)


async def _answer_error(request: Request, error: Exception) -> Response:
    """Return an exception as problem details."""
    context_of(request).access.failures.record("admin", error, request.client.host if request.client else None)
    problem = problem_of(_ours(error, request))
    return Response(problem.encode(), problem.status, {**problem.headers, "Content-Type": MEDIA_TYPE})


def _ours(error: Exception, request: Request) -> Exception:
    """Convert FastAPI's and Starlette's exceptions to our own."""
    if isinstance(error, RequestValidationError):
        found = []
        for one in error.errors():
            where, *path = one["loc"]
            message = str(one["msg"]).removeprefix("Value error, ")
            found.append(Problem(str(where), ".".join(map(str, path)), message))
        return InvalidRule(*found)
    if isinstance(error, HTTPException):
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = ", ".join(_methods(request)) or (error.headers or {}).get("Allow", "GET")  # mounted: files
            detail = f"This path is for {allowed}, got {request.method[:40]!r}."
            return HttpError(error.status_code, detail, {"Allow": allowed})
        detail = "There is nothing at this path." if error.status_code == HTTPStatus.NOT_FOUND else error.detail
        return HttpError(error.status_code, detail, error.headers)
    return error


def _methods(request: Request) -> list[str]:
    """Return all methods of a path, from all of its routes.

    An id may contain slashes, so `/users/{user_id}` matches `/users/alice/tier` too: only the longest template counts.
    """
    path = request.url.path
    included = [(route, path.removeprefix(PREFIX)) for router in request.app.state.routers for route in router.routes]
    own = [(route, path) for route in request.app.routes if isinstance(route, Route)]
    found = [route for route, part in included + own if route.path_regex.match(part)]
    longest = max([route.path.count("/") for route in found], default=0)
    return sorted({method for route in found if route.path.count("/") == longest for method in route.methods})
