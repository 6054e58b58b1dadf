"""WSGI middleware: for Flask, Django, Bottle, or any other app of that kind.

    app = RateLimitMiddleware(app, limiter=Limiter(rules="rules.toml", store="redis://localhost"))

Bodies pass as they are, in both directions. What was decided is at `environ["headgate.limits"]`: a
`headgate.http.limits.Limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Unpack

from headgate.errors import InvalidRule
from headgate.http.limits import Limits
from headgate.http.middleware_options import MiddlewareArguments, charge_of
from headgate.http.problem import refusal
from headgate.http.request_limiter import RequestLimiter
from headgate.limiter.limiter import Limiter

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

ENVIRON: Final = "headgate.limits"  # PEP 3333 wants a dot in the names of what is not text


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
        """WSGI has bytes in the guise of Latin-1: what is no UTF-8 is kept apart, and does not fail."""
        raw: str = self.environ.get("PATH_INFO", "")
        return raw if raw.isascii() else raw.encode("latin-1").decode("utf-8", "surrogateescape")

    @property
    def peer(self) -> str | None:
        return self.environ.get("REMOTE_ADDR") or None

    def header(self, name: str) -> str | None:
        """As the server joined its lines. WSGI does not tell `-` from `_` in names, which servers drop."""
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
        """Its header fields, by their names in lower case."""
        return {name.lower(): value for name, value in self._fields}


class RateLimitMiddleware:
    """Checks every request, and tells clients what is left.

    Refused requests are answered here. The options are those of `MiddlewareOptions`; functions are given a
    `WsgiRequest`, or a `WsgiResponse`. A request that is held back occupies its thread, also when its client has gone:
    WSGI cannot tell.
    """

    knows_routes = False  # to check requests by `defaults`

    def __init__(self, app: WSGIApplication, *, limiter: Limiter, **options: Unpack[MiddlewareArguments]) -> None:
        self._app = app
        self._request_limiter = RequestLimiter(limiter, **options)
        if self._request_limiter.options.defaults is not None and not self.knows_routes:
            raise InvalidRule("defaults: needs a framework that knows its routes: headgate.http.flask, or django")

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
        """`start_response`, that charges what the app says that the request cost, and keeps that from the client."""
        wanted = self._request_limiter.options.charge_header
        if wanted is None:
            return start_response
        index, charged = len(limits.charged) - 1, False

        def send_and_charge(
            status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
        ) -> Callable[[bytes], object]:
            nonlocal charged
            values = [value for key, value in headers if key.lower() == wanted]
            cost = charge_of(values[-1]) if values and not charged else None
            if cost is not None:
                charged = True  # an app that fails after it has begun may begin again
                limits.correct(index, cost)
            headers = [(key, value) for key, value in headers if key.lower() != wanted]
            return start_response(status, headers) if exc_info is None else start_response(status, headers, exc_info)

        return send_and_charge

    def _refuse(
        self,
        limits: Limits[Limiter],
        environ: WSGIEnvironment,  # noqa: ARG002 - for frameworks, which answer in their own way
        tell: StartResponse,
    ) -> Iterable[bytes]:
        answer = refusal(limits)
        tell(answer.line, answer.content)
        return [answer.body]


def released_at_end(limits: Limits[Limiter], answer: Callable[[], Iterable[bytes]]) -> Iterable[bytes]:
    """Return an app's answer, which releases what the request holds when the server closes it, or when it fails."""
    try:
        body = answer()
    except BaseException:
        limits.release()
        raise
    return _Body(body, limits) if limits.slots else body


class _Body:
    """A response's body. A server calls `close` at its end, also when the client has gone (PEP 3333)."""

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
    """`start_response`, with the limits' fields added."""

    def start_with_fields(
        status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        if limits.conditions:
            limits.conclude(WsgiResponse(status, headers))
        headers = [*headers, *limits.fields]
        return start_response(status, headers) if exc_info is None else start_response(status, headers, exc_info)

    return start_with_fields
