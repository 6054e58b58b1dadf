"""WSGI middleware for Flask, Django, Bottle or any other WSGI app.

    app = RateLimitMiddleware(app, limiter=Limiter(rules="rules.toml", store="redis://localhost"))

Bodies pass unchanged in both directions. The decisions are at `environ["headgate.limits"]`, a
`headgate.http.limits.Limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final, Unpack

from headgate.errors import InvalidRule
from headgate.http.limits import Limits
from headgate.http.middleware_options import MiddlewareArguments
from headgate.http.problem import refusal
from headgate.http.request_limiter import RequestLimiter
from headgate.limiter.limiter import Limiter

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

ENVIRON: Final = "headgate.limits"  # PEP 3333: a name with a dot for a value that is not a string


class WsgiRequest:
    """A request as identity and cost functions see it, and its whole `environ`."""

    __slots__ = ("environ",)

    def __init__(self, environ: WSGIEnvironment) -> None:
        self.environ = environ

    @property
    def method(self) -> str:
        method: str = self.environ["REQUEST_METHOD"]
        return method

    @property
    def path(self) -> str:
        """The path, decoded as UTF-8 from WSGI's Latin-1; invalid bytes become surrogates."""
        raw: str = self.environ.get("PATH_INFO", "")
        return raw if raw.isascii() else raw.encode("latin-1").decode("utf-8", "surrogateescape")

    @property
    def peer(self) -> str | None:
        return self.environ.get("REMOTE_ADDR") or None

    def header(self, name: str) -> str | None:
        """Return a header as the server joined it. WSGI maps `-` to `_`; servers drop names with `_`."""
        key = name.upper().replace("-", "_")
        value: str | None = self.environ.get(key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}")
        return value


class WsgiResponse:
    """The start of a response, as `deduct_when` sees it."""

    __slots__ = ("_fields", "_status")

    def __init__(self, status: str, fields: list[tuple[str, str]]) -> None:
        self._status = status
        self._fields = fields

    @property
    def status_code(self) -> int:
        return int(self._status.partition(" ")[0])

    @property
    def headers(self) -> dict[str, str]:
        """The response's header fields by lower-case name."""
        return {name.lower(): value for name, value in self._fields}


class RateLimitMiddleware:
    """Checks every request, and reports limits in response headers.

    It answers refused requests itself. The options are those of `MiddlewareOptions`; functions receive a
    `WsgiRequest` or a `WsgiResponse`. A delayed request occupies its thread even if its client has left: WSGI cannot
    notice that.
    """

    knows_routes = False  # needed for `defaults`

    def __init__(self, app: WSGIApplication, *, limiter: Limiter, **options: Unpack[MiddlewareArguments]) -> None:
        self._app = app
        self._request_limiter = RequestLimiter(limiter, **options)
        if self._request_limiter.options.defaults is not None and not self.knows_routes:
            raise InvalidRule("defaults: needs a framework with routes: use headgate.http.flask or .django")

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = WsgiRequest(environ)
        if self._request_limiter.options.skips(request.path):
            return self._app(environ, start_response)
        outer: Limits[Limiter] | None = environ.get(ENVIRON)
        limits, allowed = self._request_limiter.enter(request, outer)
        environ[ENVIRON] = limits
        tell = start_response if outer is not None else _with_fields(limits, start_response)
        if not allowed:
            return self._refuse(limits, environ, tell)
        if outer is not None:
            return self._app(environ, self._with_charge(limits, tell))
        return released_at_end(limits, lambda: self._app(environ, self._with_charge(limits, tell)))

    def _with_charge(self, limits: Limits[Limiter], start_response: StartResponse) -> StartResponse:
        """Wrap `start_response` to charge the cost that the app reports, and to hide its header from the client."""
        options = self._request_limiter.options
        wanted = options.charge_header
        if wanted is None:
            return start_response
        index, charged = len(limits.charged) - 1, False

        def send_and_charge(
            status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
        ) -> Callable[[bytes], object]:
            nonlocal charged
            lines = [value for key, value in headers if key.lower() == wanted]
            cost = options.reported_cost(limits.charged[index], lines) if lines and not charged else None
            if cost is not None:
                charged = True  # an app that fails may call start_response again
                limits.correct(index, cost)
            headers = [(key, value) for key, value in headers if key.lower() != wanted]
            return start_response(status, headers) if exc_info is None else start_response(status, headers, exc_info)

        return send_and_charge

    def _refuse(
        self,
        limits: Limits[Limiter],
        environ: WSGIEnvironment,  # noqa: ARG002 - for subclasses, which let their framework answer
        tell: StartResponse,
    ) -> Iterable[bytes]:
        answer = refusal(limits)
        tell(answer.line, answer.content)
        return [answer.body]


def released_at_end(limits: Limits[Limiter], answer: Callable[[], Iterable[bytes]]) -> Iterable[bytes]:
    """Return the app's response, which releases the request's slots when the server closes it or the app fails."""
    try:
        body = answer()
    except BaseException:
        limits.release()
        raise
    # A generator has not begun: what runs in it may take slots, too.
    return _Body(body, limits) if limits.slots or isinstance(body, GeneratorType) else body


class _Body:
    """A response's body. The server calls `close` at its end, even if the client has left (PEP 3333)."""

    def __init__(self, body: Iterable[bytes], limits: Limits[Limiter]) -> None:
        self._body = body
        self._limits = limits

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._limits.release()


def _with_fields(limits: Limits[Limiter], start_response: StartResponse) -> StartResponse:
    """Wrap `start_response` to add the limits' fields."""

    def start_with_fields(
        status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        if limits.conditions:
            limits.conclude(WsgiResponse(status, headers))
        headers = [*headers, *limits.fields]
        return start_response(status, headers) if exc_info is None else start_response(status, headers, exc_info)

    return start_with_fields
