"""FastAPI: limits as dependencies, for routes, routers and whole apps.

    @app.get("/users/{id}", dependencies=[Depends(limit("5/minute"))])

`install` adds the middleware around the whole app: then every response carries the limits' headers, and OpenAPI
shows the refusals.
"""

# No `from __future__ import annotations`: FastAPI reads the annotations of `RouteDependency.__call__`, and cannot
# resolve them as text.
import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import Annotated, Any, Final, NoReturn, TypeVar, Unpack, overload

try:
    from fastapi import Depends, FastAPI, Response, WebSocket
    from fastapi import routing as routes
except ImportError as error:
    raise ImportError("headgate.http.fastapi needs FastAPI: pip install 'headgate[fastapi]'") from error
from starlette.requests import HTTPConnection

from headgate.errors import InvalidRule
from headgate.http.messages import message_limit
from headgate.http.middleware_options import MiddlewareArguments
from headgate.http.openapi import REFUSED, can_refuse
from headgate.http.route import LimitOptions, QuotaOption, RouteLimit
from headgate.http.routing import limits_of_dependencies
from headgate.http.starlette import (
    Installed,
    Refused,
    enter,
    install_middleware,
    limits_of,
    require_async,
    watch_messages,
)
from headgate.limiter.async_limiter import AsyncLimiter

__all__ = ["RESPONSES", "Refused", "RouteDependency", "install", "limit", "limit_messages", "limits_of"]

Handler = TypeVar("Handler", bound=Callable[..., Any])

RESPONSES: Final[dict[int | str, dict[str, Any]]] = {429: REFUSED}  # for `responses=` of an app, a router or a route


def _mark_coroutine_function(function: Any) -> None:
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(function)
    else:
        function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]


class RouteDependency:
    """A dependency that raises `Refused` when a request is over its limit. See `limit`."""

    def __init__(self, limit: RouteLimit, limiter: AsyncLimiter | None) -> None:
        self.limit = limit
        self._limiter = require_async(limiter)

    @overload
    def __call__(self, connection: HTTPConnection, response: Response) -> Coroutine[Any, Any, None]: ...

    @overload
    def __call__(self, connection: Handler) -> Handler: ...

    def __call__(self, connection: HTTPConnection, response: Response = None) -> Any:  # type: ignore[assignment,misc]
        """As a dependency, return a coroutine. As a decorator, `connection` is a handler: return the limited one."""
        argument: Any = connection
        if isinstance(argument, HTTPConnection):
            return self._enter(argument, response)
        return _limit_handler(argument, self)

    _mark_coroutine_function(__call__)  # otherwise FastAPI runs it in a thread, and does not await the result

    async def _enter(self, connection: HTTPConnection, response: Response) -> None:
        passed = await enter(self.limit, self._limiter, connection)
        if passed is None or not passed.alone:
            return
        if passed.limits.conditions:
            raise InvalidRule("deduct_when= needs the middleware, which sees responses: call install(app, limiter=…)")
        for field, value in passed.limits.fields:
            response.headers[field] = value


class _NotCalled:
    """Makes FastAPI say what is wrong with `Depends(limit)`: it would read the quota from requests."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get_pydantic_core_schema__(self, *_: Any) -> NoReturn:
        raise InvalidRule(f"{self._name} is not a dependency itself: call it, as in Depends({self._name}('5/minute'))")


class MessageDependency:
    """A dependency that limits the messages of a WebSocket route. See `limit_messages`."""

    def __init__(self, limit: RouteLimit, limiter: AsyncLimiter | None) -> None:
        self._limit = limit
        self._limiter = require_async(limiter)

    async def __call__(self, websocket: WebSocket) -> None:
        await watch_messages(self._limit, self._limiter, websocket)


def limit(
    quota: Annotated[QuotaOption, _NotCalled("limit")],
    *,
    limiter: AsyncLimiter | None = None,
    **options: Unpack[LimitOptions],
) -> RouteDependency:
    """Return a limit for `Depends` on a route, a router or an app: `Depends(limit("5/minute"))`. It is also a decorator
    of a handler; put it below the route's: `@app.get("/")`, `@limit("5/minute")`.

    Each client has `quota` (several separated by `;`) on each route, by the route's template and method:
    `/users/1` and `/users/2` share a count. A client is the one that the middleware identified, or without it the
    address of the socket's peer. The options are those of `headgate.http.route.RouteLimit`; functions receive the
    request (or the WebSocket), and may be async. `deduct_when` needs `install`.

    It counts in the store of `limiter`, else of `app.state.headgate`, else of the middleware, else in memory. When one
    of several limits refuses a request, the charges of all others, the middleware's too, are refunded.
    """
    return RouteDependency(RouteLimit(quota, **options), limiter)


def limit_messages(
    quota: Annotated[QuotaOption, _NotCalled("limit_messages")],
    *,
    limiter: AsyncLimiter | None = None,
    **options: Unpack[LimitOptions],
) -> MessageDependency:
    """Return a limit on the messages of a WebSocket, for `Depends` on its route. A message over the limit closes the
    WebSocket with code 1013; the handler sees a disconnect.

    A client's WebSockets to one route share a count. Needs the middleware (`install`), which sees messages.
    """
    return MessageDependency(message_limit(quota, **options), limiter)


def install(
    app: FastAPI, *, limiter: AsyncLimiter, messages: QuotaOption | None = None, **options: Unpack[MiddlewareArguments]
) -> None:
    """Put the middleware around an app, outside its error handling and all other middleware.

    The app's limits use `limiter` too (`app.state.headgate`); to have only those, pass one without rules:
    `AsyncLimiter([], store=…)`. `options` are those of `RateLimitMiddleware`. OpenAPI shows a refusal for each route
    that has a limit or that one of the limiter's rules may refuse. `RateLimited`, raised by functions decorated with a
    limiter's `limit`, is answered like any other refusal. Raises `InvalidRule` if the app has started.
    """
    middleware = _Documented(app, limiter=limiter, messages=messages, **options)
    install_middleware(app, middleware, limiter)
    document = app.openapi

    def openapi() -> dict[str, Any]:
        schema = document()
        middleware.add_refusals(schema, app)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


class _Documented(Installed):
    """The middleware, with its refusals in the OpenAPI schema."""

    def add_refusals(self, schema: dict[str, Any], app: FastAPI) -> None:
        """Add the refusals of each operation to an OpenAPI schema, unless the operation documents them itself."""
        request_limiter, options = self._request_limiter, self._request_limiter.options
        rules = request_limiter.limiter.snapshot.rules if request_limiter.limiter.snapshot.enabled else ()
        used = False
        for route in _operations(app):
            applied = () if options.skips(route.path_format) else rules
            limited = any(limits_of_dependencies(route.dependant)) or options.defaults is not None
            for method in route.methods:
                operation = schema.get("paths", {}).get(route.path_format, {}).get(method.lower())
                if operation is None:
                    continue  # not in the schema
                responses = operation.setdefault("responses", {})
                statuses = {rule.status for rule in applied if can_refuse(rule, method, route.path)}
                for status in sorted(statuses | ({429} if limited else set())):
                    used = True
                    responses.setdefault(str(status), {"$ref": "#/components/responses/RateLimited"})
        if used:
            schema.setdefault("components", {}).setdefault("responses", {}).setdefault("RateLimited", REFUSED)


def _operations(app: FastAPI) -> Iterator[Any]:
    """Yield an app's routes, which have `path`, `path_format`, `methods` and `dependant`."""
    contexts = getattr(routes, "iter_route_contexts", iter)  # older versions of FastAPI copy included routes
    for route in contexts(app.routes):
        if isinstance(getattr(route, "original_route", route), routes.APIRoute):
            yield route


def _limit_handler(handler: Any, limit: RouteDependency) -> Any:
    """Return a handler with the limit as a dependency: an extra parameter that is not passed to the original."""
    if not callable(handler):
        raise InvalidRule(
            f"limit(): must decorate a handler, or be a dependency of a route: Depends(limit(…)); got {handler!r}"
        )
    signature, name = inspect.signature(handler), f"_headgate_{id(limit):x}"
    parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=Depends(limit))
    parameters = list(signature.parameters.values())
    at = len(parameters) - (bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)

    def remove_limit(values: dict[str, Any]) -> dict[str, Any]:
        if name not in values:
            raise InvalidRule(
                f"limit(): {handler.__name__} was called without its limit: only FastAPI may call it. "
                "Put @limit(…) below the route's decorator, such as @app.get"
            )
        del values[name]
        return values

    if inspect.iscoroutinefunction(handler):

        @wraps(handler)
        async def limited_async(*args: Any, **values: Any) -> Any:
            return await handler(*args, **remove_limit(values))

        limited: Any = limited_async
    else:

        @wraps(handler)
        def limited_sync(*args: Any, **values: Any) -> Any:
            return handler(*args, **remove_limit(values))

        limited = limited_sync
    limited.__signature__ = signature.replace(parameters=[*parameters[:at], parameter, *parameters[at:]])
    return limited
