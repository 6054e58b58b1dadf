"""FastAPI: limits as dependencies, for routes, routers and whole apps.

    @app.get("/users/{id}", dependencies=[Depends(limit("5/minute"))])

`install` adds the middleware around the whole app: then every response carries the limits' headers, and OpenAPI
shows the refusals.
"""

# No `from __future__ import annotations`: FastAPI reads the annotations of `RouteLimit.__call__`, and cannot resolve
# them as text.
import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Final, TypeVar, Unpack, overload
from uuid import UUID
from weakref import WeakKeyDictionary

from fastapi import Depends, FastAPI, Response, WebSocket
from fastapi import routing as routes
from fastapi.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocketState

from headgate.core.decision import Decision
from headgate.core.quota import CONCURRENCY, Quota
from headgate.errors import InvalidCheck, InvalidRule, RateLimited
from headgate.http.asgi import App, AsgiRequest, RateLimitMiddleware, Scope
from headgate.http.identity import Identity, client_of
from headgate.http.limits import NAME, Limits
from headgate.http.middleware_options import MiddlewareArguments
from headgate.http.openapi import REFUSED, can_refuse
from headgate.http.problem import MEDIA_TYPE, refusal
from headgate.http.request_limiter import limiter_of
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.rules.rule import FailureMode, Rule

__all__ = ["RESPONSES", "Refused", "RouteLimit", "install", "limit"]

Key = Callable[[Any], str | int | UUID | Awaitable[str | int | UUID | None] | None]
Handler = TypeVar("Handler", bound=Callable[..., Any])
ExemptWhen = Callable[[Any], bool | Awaitable[bool]]
Cost = int | Callable[[Any], int | Awaitable[int]]

RESPONSES: Final[dict[int | str, dict[str, Any]]] = {429: REFUSED}  # for `responses=` of an app, a router or a route
_PASSED: Final = "headgate.fastapi"  # in the scope of a request
_TRY_AGAIN_LATER: Final = 1013  # closes a WebSocket
_IDENTITY: Final = Identity()


class Refused(HTTPException):
    """A limit refused the request. Answered with problem details, unless the app has a handler of its own for this
    class or its status."""

    def __init__(self, limits: Limits[AsyncLimiter], *, told: bool) -> None:
        self.limits = limits
        self.told = told  # of the limits, by the middleware: then `headers` has none
        super().__init__(limits.decision.status, "Rate limit exceeded", None if told else dict(limits.fields))

    @property
    def decision(self) -> Decision:
        """Which limit, and when to try again."""
        return self.limits.decision


class _Passed:
    """What the limits of a request's route have done so far."""

    __slots__ = ("alone", "count", "limits", "seen")

    def __init__(self, limits: Limits[AsyncLimiter], *, alone: bool) -> None:
        self.limits = limits
        self.alone = alone  # there is no middleware to tell the client
        self.count = 0  # of the limits that count by the route
        self.seen: set[tuple[str, str]] = set()  # names of shared limits, and subjects


def _mark_coroutine_function(function: Any) -> None:
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(function)
    else:
        function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]


class RouteLimit:
    """A dependency that lets a client's requests pass, or raises `Refused`. See `limit`."""

    def __init__(
        self,
        quota: str | Quota,
        *,
        key: Key | None,
        cost: Cost,
        name: str | None,
        limiter: AsyncLimiter | None,
        message: str,
        failure_mode: FailureMode | None,
        exempt_when: ExemptWhen | None,
    ) -> None:
        if exempt_when is not None and not callable(exempt_when):
            raise InvalidRule(f"exempt_when: must be a function of the request, got {exempt_when!r}")
        if key is not None and not callable(key):
            raise InvalidRule(f"key: must be a function of the request, got {key!r}")
        if not callable(cost) and (isinstance(cost, bool) or not isinstance(cost, int) or cost < 0):
            raise InvalidRule(f"cost: must be a whole number, 0 or more, or a function of the request, got {cost!r}")
        if not isinstance(quota, str | Quota):
            raise InvalidRule(f"quota: must be a notation like '5/minute' or a Quota, got {quota!r}")
        self.quotas = tuple(Quota.parse_all(quota)) if isinstance(quota, str) else (quota,)
        self._holds = any(one.algorithm == CONCURRENCY for one in self.quotas)
        self._key = key
        self._cost = cost
        self._name = name
        self._limiter = None if limiter is None else limiter_of(limiter, AsyncLimiter)
        self._message = message
        self._failure_mode = failure_mode
        self._exempt_when = exempt_when
        self._rules("test" if name is None else name, 0, None)  # what is wrong with them is said now
        self._siblings: WeakKeyDictionary[AsyncLimiter, dict[tuple[str, int], AsyncLimiter]] = WeakKeyDictionary()

    @overload
    def __call__(self, connection: HTTPConnection, response: Response) -> Coroutine[Any, Any, None]: ...

    @overload
    def __call__(self, connection: Handler) -> Handler: ...

    def __call__(self, connection: HTTPConnection, response: Response = None) -> Any:  # type: ignore[assignment,misc]
        """As a dependency, return a coroutine. As a decorator, `connection` is a handler: return the limited one."""
        given: Any = connection
        return self._enter(given, response) if isinstance(given, HTTPConnection) else _limited(given, self)

    _mark_coroutine_function(__call__)  # or FastAPI would run it in a thread, and not await what it returns

    async def _enter(self, connection: HTTPConnection, response: Response) -> None:
        if self._exempt_when is not None and await _resolve(self._exempt_when(connection)):
            return
        scope = connection.scope
        passed: _Passed | None = scope.get(_PASSED)
        if passed is None:
            passed = scope[_PASSED] = await self._begin(scope)
        limits = passed.limits
        name, index = self._name, 0
        if name is None:
            name, index = _name_of(scope), passed.count
            passed.count += len(self.quotas)
        limiter = self._limiter_of(scope, None if passed.alone else limits)
        if limiter.snapshot.is_exempt(limits.facts):
            return
        subject = await self._subject(connection, limits)
        cost = await _resolve(self._cost(connection)) if callable(self._cost) else self._cost
        if self._name is not None:
            if (name, subject) in passed.seen:
                return  # by the same limit of a router, say
            passed.seen.add((name, subject))

        sibling = self._sibling(limiter, name, index)
        if self._holds and passed.alone:
            raise InvalidRule(
                "limit('… concurrent') needs the middleware, which knows when a response has ended: "
                "call install(app, limiter=…)"
            )
        if self._holds:
            decision = await _resolve(sibling.decide({"user": subject}, cost=cost, slots="take"))
        else:
            decision = await sibling.check(subject, cost=cost)
        limits.add(decision, cost, sibling)
        if not decision.allowed:
            await limits.give_back_async()
            _answer_refusals(scope)
            raise Refused(limits, told=not passed.alone)
        if passed.alone:
            for field, value in limits.fields:
                response.headers[field] = value

    async def _begin(self, scope: Scope) -> _Passed:
        """What the first limit of a route needs to know."""
        state = scope.setdefault("state", {})
        if isinstance(state.get(NAME), Limits):
            return _Passed(state[NAME], alone=False)
        limiter = self._limiter_of(scope, None)
        facts = await _IDENTITY.facts_async(AsgiRequest(scope), limiter.snapshot)
        state[NAME] = Limits(limiter, facts)
        return _Passed(state[NAME], alone=True)

    def _limiter_of(self, scope: Scope, outer: Limits[AsyncLimiter] | None) -> AsyncLimiter:
        """Whose store is counted in: the limit's own limiter's, the app's, the middleware's, or one in memory."""
        if self._limiter is not None:
            return self._limiter
        app = scope.get("app")
        found = None if app is None else getattr(app.state, NAME, None)
        if found is None and outer is not None:
            return outer.limiter
        if found is None:
            found = AsyncLimiter([])
            if app is not None:
                setattr(app.state, NAME, found)
        if not isinstance(found, AsyncLimiter):
            raise InvalidRule(f"app.state.{NAME}: must be an AsyncLimiter, got {found!r}")
        return found

    async def _subject(self, connection: HTTPConnection, limits: Limits[AsyncLimiter]) -> str:
        """Who is counted. What the app's function says and what Headgate found out are kept apart."""
        said = None if self._key is None else await _resolve(self._key(connection))
        if said is None:
            return client_of(dict(limits.facts))
        if isinstance(said, bool) or not isinstance(said, str | int | UUID):
            raise InvalidCheck(f"key: must return a text, a whole number, a UUID or None, got {said!r}")
        return f"key:{said}"

    def _sibling(self, limiter: AsyncLimiter, name: str, index: int) -> AsyncLimiter:
        """A limiter for this limit alone, on the store of `limiter`."""
        known = self._siblings.setdefault(limiter, {})
        sibling = known.get((name, index))
        if sibling is None:
            rules = self._rules(name, index, limiter.snapshot.failure_mode)
            sibling = known[name, index] = limiter.sibling(rules, name=rules[0].id)
        return sibling

    def _rules(self, name: str, index: int, failure_mode: FailureMode | None) -> list[Rule]:
        """One for each quota. The first limit of a route has its name, and further ones a number behind it."""
        return [
            Rule(
                id=name if number == 1 else f"{name} #{number}",
                quota=quota,
                message=self._message,
                failure_mode=self._failure_mode or failure_mode,
            )
            for number, quota in enumerate(self.quotas, start=index + 1)
        ]


def limit(
    quota: str | Quota,
    *,
    key: Key | None = None,
    cost: Cost = 1,
    name: str | None = None,
    limiter: AsyncLimiter | None = None,
    message: str = "",
    failure_mode: FailureMode | None = None,
    exempt_when: ExemptWhen | None = None,
) -> RouteLimit:
    """A limit for `Depends`, on a route, a router or an app: `Depends(limit("5/minute"))`. Or a decorator of a handler,
    between it and that of its route: `@app.get("/")`, `@limit("5/minute")`.

    Each client has `quota` (several with `;` between them) on each route, by the route's template and method:
    `/users/1` and `/users/2` count together. With `name`, all routes whose limits have that name count together.

    `key` is a function of the request (or of the WebSocket), sync or async, that returns who is counted; None falls
    back on the client, who is the one that the middleware identified, or without it the address of the socket's peer.
    `cost` is what a request costs, or such a function. `message` is the detail of the refusal. `failure_mode` decides
    when the store cannot. Requests for which `exempt_when`, a function like `key`, returns True pass.

    It counts in the store of `limiter`; without it, of `app.state.headgate`; without that, of the middleware; or else
    in memory. A request that one of several limits refuses is given back what the others had charged, the middleware
    too.
    """
    return RouteLimit(
        quota,
        key=key,
        cost=cost,
        name=name,
        limiter=limiter,
        message=message,
        failure_mode=failure_mode,
        exempt_when=exempt_when,
    )


def install(app: FastAPI, *, limiter: AsyncLimiter, **options: Unpack[MiddlewareArguments]) -> None:
    """Put the middleware around the whole of an app, outside its error handling and of all other middleware.

    `limiter` becomes that of the app's limits too (`app.state.headgate`); one without rules, `AsyncLimiter([],
    store=…)`, leaves everything to them. `options` are those of `RateLimitMiddleware`. OpenAPI shows a refusal for each
    route that has a limit or that one of the limiter's rules may refuse. `RateLimited`, which functions raise that are
    decorated with a limiter's `limit`, is answered like any other refusal. Raises `InvalidRule` if the app has started.
    """
    if app.middleware_stack is not None:
        raise InvalidRule("install: the app has started already; install before its first request")
    if getattr(app.state, NAME, None) is not None:
        raise InvalidRule(f"install: app.state.{NAME} is set already; install once, and leave that to it")
    middleware = _Installed(app, limiter=limiter, **options)
    build, document = app.build_middleware_stack, app.openapi

    def build_middleware_stack() -> App:
        middleware.app = build()
        return middleware

    def openapi() -> dict[str, Any]:
        schema = document()
        middleware.add_refusals(schema, app)
        return schema

    setattr(app.state, NAME, limiter)
    app.exception_handlers.setdefault(RateLimited, _answer_function)  # type: ignore[arg-type]
    app.build_middleware_stack = build_middleware_stack  # type: ignore[method-assign]
    app.openapi = openapi  # type: ignore[method-assign]


class _Installed(RateLimitMiddleware):
    """The middleware of an app whose stack is built later."""

    @property
    def app(self) -> App:
        """What it is around: named as in all middleware, for those who look for theirs in the stack."""
        return self._app

    @app.setter
    def app(self, app: App) -> None:
        self._app = app

    def add_refusals(self, schema: dict[str, Any], app: FastAPI) -> None:
        """Add to an OpenAPI schema how each operation can be refused, where it does not say so itself."""
        rules = self._request_limiter.limiter.snapshot.rules if self._request_limiter.limiter.snapshot.enabled else ()
        used = False
        for route in _operations(app):
            applied = () if self._request_limiter.options.skips(route.path_format) else rules
            limited = _has_limit(route.dependant)
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


def _has_limit(dependant: Any) -> bool:
    """Whether a route's dependencies have a limit among them."""
    return isinstance(dependant.call, RouteLimit) or any(map(_has_limit, dependant.dependencies))


def _operations(app: FastAPI) -> Iterator[Any]:
    """An app's routes: all with `path`, `path_format`, `methods` and `dependant`."""
    contexts = getattr(routes, "iter_route_contexts", iter)  # before it had that, FastAPI copied included routes
    for route in contexts(app.routes):
        if isinstance(getattr(route, "original_route", route), routes.APIRoute):
            yield route


def _name_of(scope: Scope) -> str:
    """What requests to a route are counted under: `GET /users/{id}`."""
    route = scope.get("route")
    context = scope.get("fastapi", {}).get("effective_route_context")  # of a route in a router that was included
    if context is not None and route in (context.original_route, context.starlette_route):
        route = context.starlette_route or context
    template = getattr(route, "path_format", None)
    if template is None:  # static files, which have no template
        template = "*"
    mounts = scope.get("root_path", "").removeprefix(scope.get("app_root_path", scope.get("root_path", "")))
    others = [name for name in scope.get("path_params", {}) if name not in getattr(route, "param_convertors", {})]
    if others:  # parameters of mounts: whose values must not make buckets
        mounts = "".join(f"/{{{name}}}" for name in others)
    method = scope.get("method", "WEBSOCKET")
    return f"{'GET' if method == 'HEAD' else method} {mounts}{template}"


async def _resolve(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _limited(handler: Any, limit: RouteLimit) -> Any:
    """A handler that has a limit among its dependencies: as one more parameter, of which the handler does not hear."""
    if not callable(handler):
        raise InvalidRule(
            f"limit(): decorates handlers, and is a dependency of routes: Depends(limit(…)); got {handler!r}"
        )
    signature, name = inspect.signature(handler), f"_headgate_{id(limit):x}"
    parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=Depends(limit))
    parameters = list(signature.parameters.values())
    at = len(parameters) - (bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)

    def checked(values: dict[str, Any]) -> dict[str, Any]:
        if name not in values:
            raise InvalidRule(
                f"limit(): {handler.__name__} was called, and its limit was not: FastAPI must call it. "
                "Put @limit(…) below the decorator of the route, as in @app.get"
            )
        del values[name]
        return values

    if inspect.iscoroutinefunction(handler):

        @wraps(handler)
        async def limited_async(*args: Any, **values: Any) -> Any:
            return await handler(*args, **checked(values))

        limited: Any = limited_async
    else:

        @wraps(handler)
        def limited_sync(*args: Any, **values: Any) -> Any:
            return handler(*args, **checked(values))

        limited = limited_sync
    limited.__signature__ = signature.replace(parameters=[*parameters[:at], parameter, *parameters[at:]])
    return limited


async def _answer_function(connection: HTTPConnection, error: RateLimited) -> Response | None:
    """Answer a request whose handler, or a function that it called, a limiter's `limit` refused."""
    limits = getattr(connection.state, NAME, None)
    told = isinstance(limits, Limits)
    if not isinstance(limits, Limits):  # a path that the middleware skips
        limits = Limits(connection.app.state.headgate, {})
    limits.add(error.decision, 1, None)
    await limits.give_back_async()
    return await _answer(connection, Refused(limits, told=told))


def _answer_refusals(scope: Scope) -> None:
    """See that `Refused` is answered with problem details. An app's own handlers are left alone."""
    handlers = scope.get("starlette.exception_handlers")
    if handlers is not None:
        handlers[0].setdefault(Refused, _answer)


async def _answer(connection: HTTPConnection, error: Refused) -> Response | None:
    """The response to a refused request. With the middleware around, that adds what is told of limits."""
    status, content, body = refusal(error.limits)
    fields = content if error.told else content + error.limits.fields
    response = Response(body, status, dict(fields), MEDIA_TYPE)
    if not isinstance(connection, WebSocket):
        return response
    opened = connection.application_state is not WebSocketState.CONNECTING
    if opened or "websocket.http.response" not in connection.scope.get("extensions", {}):
        await connection.close(_TRY_AGAIN_LATER, "Rate limit exceeded")
    else:
        await connection.send_denial_response(response)  # here: not every version does so with what is returned
    return None
