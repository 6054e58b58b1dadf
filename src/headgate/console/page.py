"""Page: one request of a signed-in operator, and its response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar
from urllib.parse import urlencode

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from headgate.errors import InvalidRule, Problem
from headgate.operations import Caller, Operations
from headgate.operations.fleet import Fleet
from headgate.operations.history import History
from headgate.operations.tokens import Tokens

if TYPE_CHECKING:
    from headgate.console.render import Renderer
    from headgate.rules.snapshot import Snapshot

MAX_REASON = 1_000

P = ParamSpec("P")
T = TypeVar("T")


class Services(NamedTuple):
    """The objects that the pages use."""

    operations: Operations
    history: History
    tokens: Tokens
    fleet: Fleet
    store: str  # a description for people
    database: str


class Page:
    """One request. `form` is the form of a POST."""

    def __init__(
        self, request: Request, services: Services, renderer: Renderer, caller: Caller, csrf: str, form: FormData | None
    ) -> None:
        self.request = request
        self.services = services
        self.operations = services.operations
        self.history = services.history
        self.caller = caller
        self.csrf = csrf
        self.form = form or FormData()
        self._renderer = renderer

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params

    @property
    def path(self) -> str:
        """The path below the console."""
        root: str = self.request.scope["root_path"]
        return self.request.url.path.removeprefix(root)

    @property
    def is_fragment(self) -> bool:
        """Whether htmx requests only a part of the page."""
        headers = self.request.headers
        return headers.get("hx-request") == "true" and headers.get("hx-history-restore-request") != "true"

    @property
    def now_us(self) -> int:
        return self.operations.limiter.clock.now_us()

    @property
    def snapshot(self) -> Snapshot:
        """The rules in force."""
        return self.operations.source.holder.current

    @property
    def can_change_rules(self) -> bool:
        return self.caller.may("rules", "admin") and self.operations.place is None

    @property
    def actor(self) -> Caller:
        """The caller, with the reason in the form."""
        return self.caller._replace(reason=self.text("reason")[:MAX_REASON])

    async def read(self, operation: Callable[Concatenate[Caller, P], T], *args: P.args, **options: P.kwargs) -> T:
        """Call an operation for the caller, in a thread."""
        return await asyncio.to_thread(operation, self.caller, *args, **options)

    async def change(self, operation: Callable[Concatenate[Caller, P], T], *args: P.args, **options: P.kwargs) -> T:
        """Call an operation for the caller, with the reason in the form, in a thread."""
        return await asyncio.to_thread(operation, self.actor, *args, **options)

    def text(self, name: str) -> str:
        """Return a field of the form; empty if it is missing."""
        value = self.form.get(name, "")
        return value.strip() if isinstance(value, str) else ""

    def link(self, path: str = "", **parameters: object) -> str:
        """Return a link; without a path, to this page with other parameters. None removes a parameter."""
        if not path:
            parameters = {**self.query, **parameters}
        query = {name: str(value) for name, value in parameters.items() if value not in (None, "")}
        base = self.request.scope["root_path"] + path if path else self.request.url.path
        return f"{base}?{urlencode(query)}" if query else base

    def render(self, template: str, http_status: int = 200, /, **values: Any) -> Response:
        """Return an HTML response."""
        content = self._renderer.render(template, page=self, viewer=self.caller, **values)
        return HTMLResponse(content, http_status)

    def stream(self, messages: AsyncIterable[str]) -> Response:
        """Return server-sent events."""
        return StreamingResponse(messages, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    def redirect(self, path: str, message: str = "", **parameters: object) -> Response:
        """Redirect the browser to another page of the console, which shows a message."""
        url = self.link(path, **parameters, done=message)
        if self.is_fragment:
            return Response(status_code=204, headers={"HX-Redirect": url})
        return Response(status_code=303, headers={"Location": url})


def require_choice(where: str, field: str, value: str, choices: Collection[str]) -> None:
    """Raise `InvalidRule` unless a value is one of the choices."""
    if value not in choices:
        raise InvalidRule(Problem(where, field, f"must be one of {', '.join(choices)}, got {value!r}"))


View = Callable[[Page], Awaitable[Response]]


class PageRoute(NamedTuple):
    """A path in the console, and its view."""

    path: str
    view: View
    method: str = "GET"
