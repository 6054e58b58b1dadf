"""HttpApp: routes all HTTP requests of the service by path.

    HttpApp(data, access, health=node, metrics=exported, admin=fastapi_app)

It answers the data plane itself, and passes other paths to the admin app.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Final, Literal, NamedTuple

from headgate.http.asgi import App, Message, Receive, Scope, Send
from headgate.http.identity import Identity
from headgate.service.access import Access
from headgate.service.data_plane import DataPlane
from headgate.service.http.authorize import AuthorizeHandler
from headgate.service.http.data_plane import DataHandlers
from headgate.service.http.deprecation import Deprecated, announce
from headgate.service.http.exchange import ClientGone, Handler, address_of, admit, error_answer, send_answer
from headgate.service.http.health import Health, HealthHandlers, Metrics
from headgate.service.http.problems import HttpError
from headgate.telemetry.meter import OTHER

CONSOLE: Final = "/console"

_POST: Final = frozenset({"POST"})
_GET: Final = frozenset({"GET", "HEAD"})


class Route(NamedTuple):
    """A path's handler, its methods (None for all), and the `protocol` under which the meter counts it."""

    handler: Handler
    methods: frozenset[str] | None
    protocol: str = OTHER


class HttpApp:
    """An ASGI app. `console` serves the paths below /console, `admin` all others except the data plane's and health's;
    without them, those paths are not found. If the admin API has its own address, one app `serves` the data plane and
    another the rest; both serve health.

    `identity` identifies the clients of requests that a proxy checks. `deprecated` maps paths, or prefixes that end
    with `*`, to the deprecation that their responses announce.
    """

    def __init__(
        self,
        data: DataPlane,
        access: Access,
        *,
        health: Health,
        metrics: Metrics,
        serves: Literal["everything", "data", "admin"] = "everything",
        admin: App | None = None,
        console: App | None = None,
        identity: Identity | None = None,
        deprecated: Mapping[str, Deprecated] | None = None,
    ) -> None:
        checks, states = DataHandlers(data, access), HealthHandlers(health, metrics)
        data_plane = {
            "/v1/check": Route(checks.check, _POST, "http"),
            "/v1/check/batch": Route(checks.check_many, _POST, "http"),
            "/v1/acquire": Route(checks.acquire, _POST, "http"),
            "/v1/release": Route(checks.release, _POST, "http"),
            "/v1/renew": Route(checks.renew, _POST, "http"),
            "/v1/peek": Route(checks.peek, _POST, "http"),
            "/v1/reset": Route(checks.reset, _POST, "http"),
            "/v1/authorize": Route(AuthorizeHandler(data, access, identity=identity), None, "authorize"),
        }
        self._routes = {"/healthz": Route(states.alive, _GET), "/readyz": Route(states.ready, _GET)}
        if serves != "data":
            self._routes["/metrics"] = Route(states.metrics, _GET)
        if serves != "admin":
            self._routes |= data_plane
        self._admin = admin
        self._console = console
        self._is_open = access.open  # to any client: then none counts as a stranger
        self._access = access
        self._meter = data.meter
        self._announced = {path: announce(self._answer, one) for path, one in (deprecated or {}).items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        if self._is_open:
            admit(scope)
        if self._announced:
            await self._of(scope["path"])(scope, receive, send)
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        route = self._routes.get(path)
        if route is None and self._console is not None and (path == CONSOLE or path.startswith(f"{CONSOLE}/")):
            await self._console(scope, receive, self._count_statuses(send))
            return
        if route is None and self._admin is not None and not path.startswith("/v1/"):
            await self._admin(scope, receive, self._count_statuses(send))
            return
        protocol = OTHER if route is None else route.protocol
        try:
            answer = await _handler_of(route, scope)(scope, receive)
        except ClientGone:
            return
        except Exception as error:  # noqa: BLE001 - the client gets an answer, and the log the details
            self._access.failures.record(protocol, error, address_of(scope))
            answer = error_answer(error)
        self._meter.record_response(protocol, answer.status)
        await send_answer(scope, send, answer)

    def _count_statuses(self, send: Send) -> Send:
        """Wrap `send` to count the statuses that the admin app sends."""

        def send_counted(message: Message) -> Awaitable[Any]:
            if message["type"] == "http.response.start":
                self._meter.record_response("admin", message["status"])
            return send(message)

        return send_counted

    def _of(self, path: str) -> App:
        """Return the app for a path, if some paths are deprecated."""
        for announced, app in self._announced.items():
            if path == announced or (announced.endswith("*") and path.startswith(announced[:-1])):
                return app
        return self._answer

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle lifespan events, and refuse WebSockets."""
        if self._admin is not None:
            await self._admin(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        elif scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})


def _handler_of(route: Route | None, scope: Scope) -> Handler:
    """Return the handler of a request. Raises `HttpError`."""
    if route is None:
        raise HttpError(404, f"there is nothing at {scope['path'][:200]!r}")
    handler, methods, _ = route
    method = scope["method"]
    if methods is not None and method not in methods:
        allowed = ", ".join(sorted(methods))
        raise HttpError(405, f"{scope['path']} is for {allowed}, got {method[:40]!r}", {"Allow": allowed})
    return handler
