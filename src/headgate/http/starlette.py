"""Starlette: limits on single routes and on WebSocket messages.

    @limit("5/minute")
    async def search(request: Request) -> Response: ...

`install` adds the middleware around the whole app: then every response carries the limits' headers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Final, TypeVar, Unpack

try:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import HTTPConnection
    from starlette.responses import Response
    from starlette.websockets import WebSocket, WebSocketState
except ImportError as error:
    raise ImportError(
        "headgate.http.starlette needs Starlette: pip install 'headgate[starlette]' (or 'headgate[fastapi]')"
    ) from error

from headgate.core.decision import Decision
from headgate.errors import InvalidCheck, InvalidRule, RateLimited
from headgate.http.asgi import App, AsgiRequest, RateLimitMiddleware, Scope
from headgate.http.identity import Identity
from headgate.http.limits import NAME, Limits
from headgate.http.messages import REASON, TRY_AGAIN_LATER, charge_message, check_each_message, message_limit
from headgate.http.middleware_options import MiddlewareArguments
from headgate.http.problem import MEDIA_TYPE, refusal
from headgate.http.request_limiter import limiter_of, resolve
from headgate.http.route import (
    TAKEN,
    Ask,
    LimitOptions,
    QuotaOption,
    RouteLimit,
    charge_async,
    mark_limited,
    subject_of,
)
from headgate.http.routing import find_route
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.limiter.decorator import has_slots

__all__ = ["Refused", "install", "limit", "limit_messages", "limits_of"]

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
_PASSED: Final = "headgate.starlette"  # in the scope of a request
_IDENTITY: Final = Identity()


class Refused(HTTPException):
    """A limit refused the request. The response is problem details, unless the app has its own handler for this class
    or its status."""

    def __init__(self, limits: Limits[AsyncLimiter], *, by_middleware: bool) -> None:
        self.limits = limits
        self.by_middleware = by_middleware  # whether the middleware adds the limits' headers: then `headers` has none
        super().__init__(limits.decision.status, "Rate limit exceeded", None if by_middleware else dict(limits.fields))

    @property
    def decision(self) -> Decision:
        """The refusal, with its limit and when to try again."""
        return self.limits.decision


class Passed:
    """The state that the limits of a request's route share."""

    __slots__ = ("alone", "limits", "seen")

    def __init__(self, limits: Limits[AsyncLimiter], *, alone: bool) -> None:
        self.limits = limits
        self.alone = alone  # there is no middleware to add the headers
        self.seen: set[tuple[str, str]] = set()  # named limits already charged, with their subjects


def limit(
    quota: QuotaOption, *, limiter: AsyncLimiter | None = None, **options: Unpack[LimitOptions]
) -> Callable[[Endpoint], Endpoint]:
    """Limit an endpoint: a function of a request or of a WebSocket, sync or async, or a method of an `HTTPEndpoint`.

    Each client has `quota` (several separated by `;`) on each route, by the route's template and method:
    `/users/1` and `/users/2` share a count. The options are those of `headgate.http.route.RouteLimit`; functions
    receive the `Request` (or the `WebSocket`), and `deduct_when` the response.

    It counts in the store of `limiter`, else of `app.state.headgate`, which `install` sets, else of the middleware,
    else in memory. A refused request raises `Refused`.
    """
    route_limit, own = RouteLimit(quota, **options), require_async(limiter)
    return lambda endpoint: _decorate(endpoint, route_limit, partial(enter, route_limit, own))


def limit_messages(
    quota: QuotaOption, *, limiter: AsyncLimiter | None = None, **options: Unpack[LimitOptions]
) -> Callable[[Endpoint], Endpoint]:
    """Limit the messages that a client sends to a WebSocket's endpoint. A message over the limit closes the WebSocket,
    with code 1013; the endpoint sees a disconnect.

    A client's WebSockets to one route share a count. Needs the middleware (`install`), which sees messages.
    """
    route_limit, own = message_limit(quota, **options), require_async(limiter)
    return lambda endpoint: _decorate(endpoint, None, partial(watch_messages, route_limit, own))


def limits_of(connection: HTTPConnection) -> Limits[AsyncLimiter]:
    """Return the decisions on a request so far: `request.state.headgate`, typed. Raises `InvalidCheck` if there are
    none."""
    limits = connection.scope.get("state", {}).get(NAME)
    if isinstance(limits, Limits):
        return limits
    raise InvalidCheck("this request has no limits: its path is skipped, or the app has neither install() nor limit()")


def install(
    app: Starlette,
    *,
    limiter: AsyncLimiter,
    messages: QuotaOption | None = None,
    **options: Unpack[MiddlewareArguments],
) -> None:
    """Put the middleware around an app, outside its error handling and all other middleware.

    The app's limits use `limiter` too (`app.state.headgate`); to have only those, pass one without rules:
    `AsyncLimiter([], store=…)`. `options` are those of `RateLimitMiddleware`. `RateLimited`, raised by functions
    decorated with a limiter's `limit`, is answered like any other refusal. Raises `InvalidRule` if the app has started.
    """
    install_middleware(app, Installed(app, limiter=limiter, messages=messages, **options), limiter)


class Installed(RateLimitMiddleware):
    """The middleware of an app whose stack is built later."""

    @property
    def app(self) -> App:
        """The wrapped app, under the name that code which walks the middleware stack expects."""
        return self._app

    @app.setter
    def app(self, app: App) -> None:
        self._app = app


def install_middleware(app: Starlette, middleware: Installed, limiter: AsyncLimiter) -> None:
    """Build an app's middleware stack inside `middleware`."""
    if app.middleware_stack is not None:
        raise InvalidRule("install: the app has started already; install before its first request")
    if getattr(app.state, NAME, None) is not None:
        raise InvalidRule(f"install: app.state.{NAME} is set already; call install once, and do not set it")
    build = app.build_middleware_stack

    def build_middleware_stack() -> App:
        middleware.app = build()
        return middleware

    setattr(app.state, NAME, limiter)
    app.exception_handlers.setdefault(RateLimited, _answer_function)
    app.build_middleware_stack = build_middleware_stack  # type: ignore[method-assign]


async def enter(limit: RouteLimit, own: AsyncLimiter | None, connection: HTTPConnection) -> Passed | None:
    """Check a request against a limit of its route. Return None if the limit does not apply. Raises `Refused`."""
    scope = connection.scope
    if not limit.applies(scope.get("method", "WEBSOCKET")):
        return None
    ask = await Ask.of_async(limit, lambda function: resolve(function(connection)))
    if ask is None:
        return None
    passed = await _begin(own, scope)
    limits, limiter = passed.limits, _limiter_of(own, scope, passed)
    name = limit.name_for(_name_of(scope), scope.setdefault(TAKEN, []))
    if limits.is_exempt(limiter):
        return None
    if limit.name is not None:
        counted = (name, subject_of(limits, ask.key))
        if counted in passed.seen:
            return None  # already charged, for example by a router's limit
        passed.seen.add(counted)
    if passed.alone and has_slots(limit.limiter(limiter, name, ask.quota)):
        raise InvalidRule(
            "limit('… concurrent') needs the middleware, which knows when a response has ended: "
            "call install(app, limiter=…)"
        )
    decision = await charge_async(limit, limits, limiter, name, ask)
    if not decision.allowed:
        answer_refusals(scope)
        raise Refused(limits, by_middleware=not passed.alone)
    return passed


async def watch_messages(limit: RouteLimit, own: AsyncLimiter | None, connection: HTTPConnection) -> None:
    """Check the messages of a WebSocket against a limit."""
    scope = connection.scope
    passed = await _begin(own, scope)
    limiter = _limiter_of(own, scope, passed)
    name = limit.name or f"{_name_of(scope)} messages"
    check_each_message(scope, partial(charge_message, limit, passed.limits, limiter, name, connection))


async def _begin(own: AsyncLimiter | None, scope: Scope) -> Passed:
    """Return the state that a route's limits share. The first of them creates it."""
    passed: Passed | None = scope.get(_PASSED)
    if passed is not None:
        return passed
    state = scope.setdefault("state", {})
    if isinstance(state.get(NAME), Limits):
        passed = Passed(state[NAME], alone=False)
    else:
        limiter = _limiter_of(own, scope, None)
        state[NAME] = Limits(limiter, await _IDENTITY.facts_async(AsgiRequest(scope), limiter.snapshot))
        passed = Passed(state[NAME], alone=True)
    scope[_PASSED] = passed
    return passed


def _limiter_of(own: AsyncLimiter | None, scope: Scope, passed: Passed | None) -> AsyncLimiter:
    """Return the limiter whose store counts: the limit's own, the app's, the middleware's, or one in memory."""
    if own is not None:
        return own
    app = scope.get("app")
    found = None if app is None else getattr(app.state, NAME, None)
    if found is None and passed is not None and not passed.alone:
        return passed.limits.limiter
    if found is None:
        found = AsyncLimiter([])
        if app is not None:
            setattr(app.state, NAME, found)
    if not isinstance(found, AsyncLimiter):
        raise InvalidRule(f"app.state.{NAME}: must be an AsyncLimiter, got {found!r}")
    return found


def require_async(limiter: AsyncLimiter | None) -> AsyncLimiter | None:
    """Return the limiter. Raises `InvalidRule` if it is not an `AsyncLimiter`."""
    return None if limiter is None else limiter_of(limiter, AsyncLimiter)


def _decorate(endpoint: Any, limit: RouteLimit | None, enter: Callable[[HTTPConnection], Any]) -> Any:
    """Wrap an endpoint to call `enter` first, and to add the limits' headers if no middleware does."""
    if not callable(endpoint) or isinstance(endpoint, type):
        raise InvalidRule(f"limit(): must decorate a function, or a method of a class; got {endpoint!r}")

    @wraps(endpoint)
    async def limited(*args: Any, **kwargs: Any) -> Any:
        connection = next((one for one in (*args, *kwargs.values()) if isinstance(one, HTTPConnection)), None)
        if connection is None:
            raise InvalidRule(f"limit(): {endpoint.__name__} was called without a Request or a WebSocket")
        passed = await enter(connection)
        if inspect.iscoroutinefunction(endpoint):
            response = await endpoint(*args, **kwargs)
        else:
            response = await run_in_threadpool(endpoint, *args, **kwargs)
        if passed is not None and passed.alone and isinstance(response, Response):
            await passed.limits.conclude_async(response)
            response.headers.update(dict(passed.limits.fields))
        return response

    if limit is not None:
        mark_limited(endpoint, limited, limit)
    return limited


def _name_of(scope: Scope) -> str:
    """Return the name under which a route's requests count, as `GET /users/{id}`."""
    method = scope.get("method", "WEBSOCKET")
    method = "GET" if method == "HEAD" else method
    route = scope.get("route")
    if route is None:  # older versions of Starlette do not set it
        root = scope.get("app_root_path", scope.get("root_path", ""))
        found = find_route(getattr(scope.get("app"), "routes", ()), {**scope, "root_path": root})
        return f"{method} {'*' if found is None else found.template}"
    context = scope.get("fastapi", {}).get("effective_route_context")  # of a route in an included router
    if context is not None and route in (context.original_route, context.starlette_route):
        route = context.starlette_route or context
    template = getattr(route, "path_format", None)
    if template is None:  # static files, which have no template
        template = "*"
    mounts = scope.get("root_path", "").removeprefix(scope.get("app_root_path", scope.get("root_path", "")))
    others = [name for name in scope.get("path_params", {}) if name not in getattr(route, "param_convertors", {})]
    if others:  # parameters of mounts: their values must not create counts
        mounts = "".join(f"/{{{name}}}" for name in others)
    return f"{method} {mounts}{template}"


async def _answer_function(connection: HTTPConnection, error: RateLimited) -> Response | None:
    """Answer a request when a limiter's `limit` refused its handler or a function that it called."""
    limits = getattr(connection.state, NAME, None)
    by_middleware = isinstance(limits, Limits)
    if not isinstance(limits, Limits):  # a path that the middleware skips
        limits = Limits(connection.app.state.headgate, {})
    limits.add(error.decision, 1, None)
    await limits.give_back_async()
    return await _answer(connection, Refused(limits, by_middleware=by_middleware))


def answer_refusals(scope: Scope) -> None:
    """Answer `Refused` with problem details, unless the app has its own handler."""
    handlers = scope.get("starlette.exception_handlers")
    if handlers is not None:
        handlers[0].setdefault(Refused, _answer)


async def _answer(connection: HTTPConnection, error: Refused) -> Response | None:
    """Return the response to a refused request. The middleware, if any, adds the limits' headers."""
    status, content, body = refusal(error.limits)
    fields = content if error.by_middleware else content + error.limits.fields
    response = Response(body, status, dict(fields), MEDIA_TYPE)
    if not isinstance(connection, WebSocket):
        return response
    opened = connection.application_state is not WebSocketState.CONNECTING
    if opened or "websocket.http.response" not in connection.scope.get("extensions", {}):
        await connection.close(TRY_AGAIN_LATER, REASON)
    else:
        await connection.send_denial_response(response)  # older versions of Starlette do not send a returned response
    return None
