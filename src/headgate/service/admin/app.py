"""The app: its routes put together, and what their exceptions become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from headgate._version import __version__
from headgate.db import Changes, Tokens
from headgate.errors import HeadgateError, InvalidRule, Problem
from headgate.limiter.aio import AsyncLimiter
from headgate.rules.holder import Source
from headgate.service.access import Access
from headgate.service.admin import changes as change_routes
from headgate.service.admin import rules as rule_routes
from headgate.service.admin import ruleset as ruleset_routes
from headgate.service.admin import tokens as token_routes
from headgate.service.admin import users as user_routes
from headgate.service.admin.context import OWN_RULES, Context, context_of
from headgate.service.admin.documentation import serve_documentation
from headgate.service.admin.headers import Headers
from headgate.service.admin.models import problems
from headgate.service.admin.openapi import INTRODUCTION, TAGS, description_of
from headgate.service.guesses import Guesses
from headgate.service.rest.problems import MEDIA_TYPE, HttpError, problem_of

PREFIX: Final = "/api/v1"
OWN_ROUTERS: Final = (
    *(rule_routes.router, ruleset_routes.router, user_routes.router, token_routes.router, change_routes.router),
)


def admin_app(
    *,
    source: Source,
    limiter: AsyncLimiter,
    access: Access,
    changes: Changes | None = None,
    log: Changes | None = None,
    tokens: Tokens | None = None,
    routers: Sequence[APIRouter] = (),
    limits: AsyncLimiter | None = None,
) -> FastAPI:
    """The admin's API, /docs and /openapi.json. Belongs to the event loop that `limiter` and `access` belong to.

    `changes` is what changes the rules of `source` (`source.changes()`, so that they are in force here at once), or
    None where they are in a file: then they can only be read. `log` reads the change log; it is `changes` unless told.
    `tokens` are those that `access` finds. `routers` are further routes, relative to /api/v1, each of which says what
    it needs of its callers by `needs`. `limits` counts callers' requests by `OWN_RULES`; on the limiter's store unless
    told.
    """
    app = FastAPI(
        title="Headgate",
        summary="Rate limits: checks, and the rules behind them.",
        description=INTRODUCTION,
        version=__version__,
        openapi_tags=TAGS,
        openapi_url=None,  # it is served beside /docs
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.headgate = Context(
        source=source,
        limiter=limiter,
        access=access,
        changes=changes,
        log=log or changes,
        tokens=tokens,
        limits=limits or limiter.sibling(OWN_RULES, name="admin"),
        guesses=Guesses("admin-failures", limiter.clock),
    )
    routers = (*OWN_ROUTERS, *routers)
    for router in routers:
        app.include_router(router, prefix=PREFIX, responses=problems(401, 403, 422, 429, 503))
    serve_documentation(app)
    app.add_middleware(Headers)
    for kind in (HeadgateError, HttpError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _told)
    app.openapi = lambda: description_of(app, routers)  # type: ignore[method-assign]
    return app


async def _told(request: Request, error: Exception) -> Response:
    """An exception as problem details."""
    context_of(request).access.failures.record("admin", error, request.client.host if request.client else None)
    problem = problem_of(_ours(error))
    return Response(problem.encoded(), problem.status, {**problem.headers, "Content-Type": MEDIA_TYPE})


def _ours(error: Exception) -> Exception:
    """What FastAPI and Starlette raise, as we would have."""
    if isinstance(error, RequestValidationError):
        found = []
        for one in error.errors():
            where, *path = one["loc"]
            found.append(Problem(str(where), ".".join(map(str, path)), str(one["msg"])))
        return InvalidRule(*found)
    if isinstance(error, HTTPException):
        detail = {404: "There is nothing at this path.", 405: "This path does not have that method."}
        return HttpError(error.status_code, detail.get(error.status_code, error.detail), error.headers)
    return error
