"""ASGI middleware for Starlette, FastAPI, Litestar, Quart or any other ASGI app.

    app = RateLimitMiddleware(app, limiter=AsyncLimiter(rules="rules.toml", store="redis://localhost"))

Bodies pass unchanged in both directions; only the start of a response is changed. WebSockets are limited when they
open, and hold slots until they close. The decisions are at `scope["state"]["headgate"]`, a
`headgate.http.limits.Limits`: `request.state.headgate` in Starlette and FastAPI.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any, Final, TypeVar, Unpack

from headgate.core.clock import Clock
from headgate.errors import InvalidRule
from headgate.http.headers import raw
from headgate.http.limits import NAME, Limits
from headgate.http.messages import charge_message, check_each_message, checked_messages, message_limit
from headgate.http.middleware_options import MiddlewareArguments, MiddlewareOptions, log
from headgate.http.problem import refusal
from headgate.http.request_limiter import AsyncRequestLimiter, resolve
from headgate.http.route import TAKEN, Ask, QuotaOption, RouteLimit, charge_async, is_default_replaced
from headgate.http.routing import RouteMatch, find_route
from headgate.limiter.async_limiter import AsyncLimiter

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]  # frameworks have their own types for the three arguments
T = TypeVar("T")
_STARTS: Final = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
_NO_ROUTES: Final = "the routes of this app are not known: it is not a Starlette or FastAPI app"


class AsgiRequest:
    """A request as identity and cost functions see it, and its whole `scope`."""

    __slots__ = ("method", "peer", "scope")

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.method: str = scope.get("method", "GET")  # a WebSocket's handshake is a GET
        client = scope.get("client")
        self.peer: str | None = (client[0] or None) if client else None

    @property
    def path(self) -> str:
        """The path without the prefix under which the app is mounted."""
        scope = self.scope
        path: str = scope["path"]
        root = scope.get("root_path")
        if root and path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/"):
            return path[len(root) :]
        return path

    def header(self, name: str) -> str | None:
        wanted = name.encode("latin-1")
        lines = [value for key, value in self.scope["headers"] if key == wanted]
        return b", ".join(lines).decode("latin-1") if lines else None


class AsgiResponse:
    """The start of a response, as `deduct_when` sees it."""

    __slots__ = ("_message",)

    def __init__(self, message: Message) -> None:
        self._message = message

    @property
    def status_code(self) -> int:
        """The response's status; 101 if the app accepted a WebSocket."""
        status: int = self._message.get("status", 101)
        return status

    @property
    def headers(self) -> dict[str, str]:
        """The response's header fields by lower-case name."""
        fields = self._message.get("headers", ())
        return {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in fields}


class RateLimitMiddleware:
    """Checks every HTTP request and every WebSocket handshake, and reports limits in response headers.

    It answers refused requests itself. The options are those of `MiddlewareOptions`; functions may be async, and
    receive an `AsgiRequest` or an `AsgiResponse`. `messages` is each client's quota of WebSocket messages: a message
    over it closes the WebSocket.
    """

    def __init__(
        self,
        app: App,
        *,
        limiter: AsyncLimiter,
        messages: QuotaOption | None = None,
        **options: Unpack[MiddlewareArguments],
    ) -> None:
        self._app = app
        self._request_limiter = AsyncRequestLimiter(limiter, **options)
        self._messages = None if messages is None else message_limit(messages)
        checked = self._request_limiter.options
        # Whether there is more to do for a request that the rules allow.
        more = (checked.charge_header, checked.defaults, checked.deduct_when)
        self._has_more = any(option is not None for option in more)
        self._has_logged = False  # whether it has logged that the app's routes are not known
        if checked.route is None:
            checked.route = self._template

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] != "websocket":
                await self._app(scope, receive, send)
                return
            receive, send = self._with_checked_messages(scope, receive, send)
        request_limiter, request = self._request_limiter, AsgiRequest(scope)
        limiter, options = request_limiter.limiter, request_limiter.options
        if options.skip and options.skips(request.path):
            await self._app(scope, receive, send)
            return
        checked = request_limiter.check(request)
        if type(checked) is not tuple:
            checked = await checked  # type: ignore[misc]
        facts, cost, decision = checked
        outer: Limits[AsyncLimiter] | None = scope.get(NAME)  # of a middleware further out, which adds the fields
        limits, waiter = outer, None
        if limits is None:
            limits = scope[NAME] = scope.setdefault("state", {})[NAME] = Limits(limiter, facts, options.headers)
            send = _with_fields(limits, send)
        try:
            if not decision.allowed or (decision.reading.plan.holds and decision.hold):
                waiter = _ClientWaiter(receive, limiter.clock)
                decision = await request_limiter.hold(checked, waiter)
                if decision is None:
                    return  # the client has left
                receive = waiter.receive
            limits.add(decision, cost, limiter)
            if decision.allowed:
                await (self._forward if self._has_more else self._app)(scope, receive, send)
            else:
                await limits.refuse_async()
                await _refuse(scope, receive, send, limits)
        finally:
            if waiter is not None:
                waiter.close()
            if outer is None and limits.slots:
                await limits.release_async()

    def _with_checked_messages(self, scope: Scope, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """Wrap `receive` and `send` of a WebSocket to check its messages, where this middleware or the route asks."""
        receive, send = checked_messages([], scope, receive, send)
        if self._messages is not None and not self._request_limiter.options.skips(AsgiRequest(scope).path):
            check_each_message(scope, partial(self._charge_message, self._messages, scope))
        return receive, send

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request that the rules allow, if the defaults allow it too, and charge it by its response."""
        limits, options = scope[NAME], self._request_limiter.options
        if options.deduct_when is not None:
            limits.charge_only_when(options.deduct_when)
        if options.charge_header is not None:
            send = _with_charge(options, options.charge_header, limits, send)
        if options.defaults is not None and not await self._meets_defaults(limits, scope):
            await _refuse(scope, receive, send, limits)
            return
        await self._app(scope, receive, send)

    async def _meets_defaults(self, limits: Limits[AsyncLimiter], scope: Scope) -> bool:
        """Return whether a request is within the default quota, which applies to routes without their own limit."""
        options, limiter = self._request_limiter.options, self._request_limiter.limiter
        if options.route == self._template:
            found = self._find(scope)
        else:
            template = None if options.route is None else options.route(AsgiRequest(scope))
            found = None if template is None else RouteMatch(template, [])
        method = scope.get("method", "WEBSOCKET")
        if options.defaults is None or found is None or is_default_replaced(found.limits, method):
            return True
        if limits.is_exempt(limiter):
            return True
        request = AsgiRequest(scope)
        ask = await Ask.of_async(options.defaults, lambda function: resolve(function(request)))
        if ask is None:
            return True
        route = f"{'GET' if method == 'HEAD' else method} {found.template}"
        name = options.defaults.name_for(route, scope.setdefault(TAKEN, []))
        return (await charge_async(options.defaults, limits, limiter, name, ask)).allowed

    async def _charge_message(self, limit: RouteLimit, scope: Scope) -> bool:
        return await charge_message(limit, scope[NAME], self._request_limiter.limiter, "messages", AsgiRequest(scope))

    def _find(self, scope: Scope) -> RouteMatch | None:
        """Return the route of a request in a Starlette or FastAPI app. Raises `InvalidRule` for other apps."""
        routes: Any = getattr(scope.get("app"), "routes", getattr(self._app, "routes", None))
        if routes is None:
            raise InvalidRule(f"{_NO_ROUTES}; pass route=, a function that returns the route template of a request")
        return find_route(routes, scope)

    def _template(self, request: AsgiRequest) -> str | None:
        try:
            found = self._find(request.scope)
        except InvalidRule as error:
            if not self._has_logged:
                self._has_logged = True
                log.error("a rule counts by route, and %s: requests to all routes count together", error)
            return None
        return None if found is None else found.template


def _with_charge(options: MiddlewareOptions, header: str, limits: Limits[AsyncLimiter], send: Send) -> Send:
    """Wrap `send` to charge the cost that the app reports in `header`, and to hide that header from the client."""
    name, index = header.encode(), len(limits.charged) - 1

    async def send_and_charge(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(key, value) for key, value in message.get("headers", ()) if key.lower() != name]
            lines = [value.decode("latin-1") for key, value in message.get("headers", ()) if key.lower() == name]
            cost = options.reported_cost(limits.charged[index], lines) if lines else None
            if cost is not None:
                await limits.correct_async(index, cost)
            message = {**message, "headers": headers}
        await send(message)

    return send_and_charge


def _with_fields(limits: Limits[AsyncLimiter], send: Send) -> Send:
    """Wrap `send` to add the limits' fields to the start of the response, and to release slots after its last part.

    The wrapper is not stored on the request: a server's `send` may refer to the request, and the two would form a
    cycle that only the garbage collector frees.
    """

    def tell(message: Message) -> Awaitable[None]:  # not async: that would add a coroutine per message
        if message["type"] in _STARTS:
            if limits.conditions:
                return _conclude(limits, message, send)
            message = {**message, "headers": [*message.get("headers", ()), *limits.raw_fields]}
        elif limits.slots and message["type"] == "http.response.body" and not message.get("more_body"):
            return _send_and_release(limits, message, send)
        return send(message)

    return tell


async def _conclude(limits: Limits[AsyncLimiter], message: Message, send: Send) -> None:
    """Refund what `deduct_when` says is not charged, and send the response's start."""
    await limits.conclude_async(AsgiResponse(message))
    await send({**message, "headers": [*message.get("headers", ()), *limits.raw_fields]})


async def _send_and_release(limits: Limits[AsyncLimiter], message: Message, send: Send) -> None:
    """Send the last part of a response, and release the request's slots."""
    await send(message)
    await limits.release_async()


async def _refuse(scope: Scope, receive: Receive, send: Send, limits: Limits[AsyncLimiter]) -> None:
    """Answer a refused request. Close a WebSocket if its server cannot send a response: the client sees a 403."""
    status, content, body = refusal(limits)
    prefix = "http.response"
    if scope["type"] == "websocket":
        await receive()  # websocket.connect, which comes first
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1013, "reason": "Rate limit exceeded"})
            return
        prefix = "websocket.http.response"
    await send({"type": f"{prefix}.start", "status": status, "headers": raw(content)})
    await send({"type": f"{prefix}.body", "body": body})


class _ClientWaiter:
    """Makes a request wait, and reads from its client meanwhile, to notice when the client leaves.

    It keeps the messages that it reads for the app, and stops reading at the first incomplete part of a body: from then
    on it does not notice a client that leaves.
    """

    def __init__(self, receive: Receive, clock: Clock) -> None:
        self._receive = receive
        self._clock = clock
        self._kept: list[Message] = []
        self._reading: asyncio.Task[Message] | None = None

    def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()

    def may_wait(self, seconds: float) -> bool:  # noqa: ARG002 - HTTP has no deadlines
        return True

    async def sleep(self, seconds: float) -> bool:
        """Sleep, and return whether the client is still connected."""
        sleeping = asyncio.ensure_future(self._clock.sleep_async(seconds))
        try:
            while not sleeping.done():
                if self._reading is None and not (self._kept and self._kept[-1].get("more_body")):
                    self._reading = asyncio.ensure_future(self._receive())
                reading = [] if self._reading is None else [self._reading]
                await asyncio.wait([sleeping, *reading], return_when=asyncio.FIRST_COMPLETED)
                if self._reading is not None and self._reading.done():
                    message = self._reading.result()
                    self._reading = None
                    if message["type"] in ("http.disconnect", "websocket.disconnect"):
                        return False
                    self._kept.append(message)
        finally:
            sleeping.cancel()
        return True

    async def receive(self) -> Message:
        """Receive for the app: first the messages kept, then the one being read, then new ones."""
        if self._kept:
            return self._kept.pop(0)
        if self._reading is not None:
            reading, self._reading = self._reading, None
            return await reading
        return await self._receive()
