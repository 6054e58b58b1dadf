"""Console: the ASGI app, with sign-in, protection of pages, and error pages."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.datastructures import FormData
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Match
from starlette.routing import Route as Matcher
from starlette.types import Message, Receive, Scope, Send

from headgate.console import (
    changes,
    events,
    explain,
    overview,
    regions,
    rule_editor,
    rule_page,
    rules,
    subjects,
    tokens,
)
from headgate.console.assets import Assets
from headgate.console.page import Page, PageRoute, Services
from headgate.console.render import Renderer
from headgate.console.sessions import COOKIE, Gatekeeper, Session, Sessions
from headgate.errors import (
    ChangeConflict,
    DatabaseError,
    Forbidden,
    HeadgateError,
    InvalidCheck,
    InvalidRule,
    NotFound,
    RateLimited,
    StoreError,
    Unauthenticated,
)

PATH: Final = "/console"
MAX_FORM: Final = 1 << 20  # bytes
MAX_FIELDS: Final = 1_000
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
ROUTES: Final[Sequence[PageRoute]] = (
    *(*overview.ROUTES, *rules.ROUTES, *rule_page.ROUTES, *rule_editor.ROUTES, *subjects.ROUTES, *explain.ROUTES),
    *(*events.ROUTES, *changes.ROUTES, *tokens.ROUTES, *regions.ROUTES),
)
STATUSES: Final[tuple[tuple[type[Exception], int, str], ...]] = (
    (Forbidden, 403, "You may not do this"),
    (NotFound, 404, "Not found"),
    (ChangeConflict, 409, "This cannot be changed now"),
    (InvalidRule, 422, "This is not valid"),
    (InvalidCheck, 422, "This is not valid"),
    (RateLimited, 429, "Too many requests"),
    (DatabaseError, 503, "The database does not answer"),
    (StoreError, 503, "The store does not answer"),
)

log = logging.getLogger("headgate")


class PageRefused(Exception):
    """A refused request, answered with a status and a sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Console:
    """An ASGI app for the paths below /console. Belongs to one event loop."""

    def __init__(self, services: Services, sessions: Sessions, gatekeeper: Gatekeeper, *, has_regions: bool) -> None:
        self._services = services
        self._sessions = sessions
        self._gatekeeper = gatekeeper
        self._renderer = Renderer(has_regions=has_regions)
        self._assets = Assets()
        self._routes = [(Matcher(route.path, _no_endpoint, methods=[route.method]), route) for route in ROUTES]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(PATH) or "/"
        scope = {**scope, "path": PATH + path, "root_path": PATH}
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        except PageRefused as error:
            response = HTMLResponse(self._sign_in_page(request, str(error)), error.status)
        if path.startswith("/static/"):
            await response(scope, receive, send)
            return
        await response(scope, receive, _with_headers(send))

    async def _answer(self, request: Request) -> Response:
        path = request.url.path.removeprefix(PATH)
        if path.startswith("/static/"):
            return self._assets.response(path.removeprefix("/static/"), request.headers)
        if path == "/sign-in":
            return await self._sign_in(request)
        session = self._sessions.read(request.cookies.get(COOKIE))
        if session is None:
            return self._to_sign_in(request)
        try:
            caller = await self._gatekeeper.caller(session.digest)
        except Unauthenticated:
            return self._to_sign_in(request)
        except DatabaseError as error:
            raise PageRefused(503, f"Tokens cannot be looked up now: {error}. Try again in a moment.") from error
        request.state.caller = caller
        form = await self._form(request, session) if request.method == "POST" else None
        if path == "/sign-out" and request.method == "POST":
            return Response(status_code=303, headers=self._sign_out_headers(f"{PATH}/sign-in"))
        page = Page(request, self._services, self._renderer, caller, self._sessions.csrf(session), form)
        response = await self._show(page, request)
        renewed = self._sessions.renew(session)
        if renewed is not None:
            response.headers["set-cookie"] = self._sessions.header(renewed, PATH)
        return response

    async def _show(self, page: Page, request: Request) -> Response:
        view = next((route.view for matcher, route in self._routes if _matches(matcher, request)), None)
        if view is None:
            message = "No page of the console has this address."
            return page.render("error.html", 404, title="There is nothing here", message=message, problems=[])
        try:
            return await view(page)
        except (ClientDisconnect, PageRefused):
            raise
        except Exception as error:
            known = ((status, title) for kind, status, title in STATUSES if isinstance(error, kind))
            status, title = next(known, (500, "Something failed"))
            if status == 500:
                log.exception("console: %s", request.url.path)
            message = str(error)
            if not isinstance(error, HeadgateError):  # the log has the traceback
                message = "This is a bug in Headgate. The service's log has the details."
            problems = error.problems if isinstance(error, InvalidRule) else []
            template = "fragment_error.html" if page.is_fragment else "error.html"
            return page.render(template, status, title=title, message=message, problems=problems)

    # Signing in and out

    async def _sign_in(self, request: Request) -> Response:
        code = request.query_params.get("code")
        if request.method == "GET" and code is None:
            return HTMLResponse(self._sign_in_page(request))
        if code is not None:
            if not _is_local(request):
                raise PageRefused(403, "This link is for the machine that the service runs on. Sign in with a token.")
            digest = self._gatekeeper.redeem(code)
            if digest is None:
                raise PageRefused(403, "This link was used already, or is too old. Sign in with a token.")
        else:
            _require_same_origin(request)
            form = await _read(request)
            token = str(form.get("token", "")).strip()
            address = None if request.client is None else request.client.host
            try:
                digest = await self._gatekeeper.sign_in(token, address)
            except Unauthenticated:
                raise PageRefused(401, "This token is invalid: it is unknown, has expired or was revoked.") from None
            except RateLimited:
                raise PageRefused(429, "Too many bad tokens came from your address. Wait a minute.") from None
            except DatabaseError as error:
                raise PageRefused(503, f"Tokens cannot be looked up now: {error}. Try again in a moment.") from error
        # Not a redirect: after a link from another site, a browser does not send a strict cookie with a redirect.
        content = self._renderer.render("signed_in.html", target=_target(request), root=PATH)
        cookie = self._sessions.header(self._sessions.begin(digest), PATH)
        return HTMLResponse(content, headers={"set-cookie": cookie})

    def _to_sign_in(self, request: Request) -> Response:
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        url = f"{PATH}/sign-in" + (f"?next={quote(target)}" if request.method == "GET" else "")
        if request.headers.get("hx-request") == "true":
            return Response(status_code=204, headers=self._sign_out_headers("") | {"HX-Redirect": f"{PATH}/sign-in"})
        return Response(status_code=303, headers=self._sign_out_headers(url))

    def _sign_out_headers(self, url: str) -> dict[str, str]:
        headers = {"set-cookie": self._sessions.header(None, PATH)}
        return headers | ({"Location": url} if url else {})

    def _sign_in_page(self, request: Request, message: str = "") -> str:
        return self._renderer.render("sign_in.html", message=message, target=_target(request), root=PATH)

    async def _form(self, request: Request, session: Session) -> FormData:
        """Return the form of a request. Raises `PageRefused` unless it came from a page of this session."""
        _require_same_origin(request)
        form = await _read(request)
        token = request.headers.get("x-csrf-token") or str(form.get("csrf", ""))
        if not self._sessions.is_csrf(session, token):
            raise PageRefused(403, "This form is not from a page of your session. Open the page again.")
        return form


def _matches(matcher: Matcher, request: Request) -> bool:
    return matcher.matches(request.scope)[0] is Match.FULL


async def _no_endpoint(_: Request) -> Response:
    raise AssertionError


async def _read(request: Request) -> FormData:
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MAX_FORM:
        raise PageRefused(413, "The form is too long.")
    if "urlencoded" not in request.headers.get("content-type", "application/x-www-form-urlencoded"):
        raise PageRefused(415, "Forms are sent as application/x-www-form-urlencoded.")
    body = await request.body()
    if len(body) > MAX_FORM:
        raise PageRefused(413, "The form is too long.")
    try:
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise PageRefused(413, f"The form has more than {MAX_FIELDS} fields.") from None
    return FormData([(name, value) for name, value in pairs])


def _require_same_origin(request: Request) -> None:
    """Raise `PageRefused` for a request that another site made the browser send."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
    host = request.headers.get("host", "")
    if site != "same-origin" or (origin is not None and urlsplit(origin).netloc != host):
        raise PageRefused(403, "This request comes from another site.")


def _is_local(request: Request) -> bool:
    """Return whether a request comes from this machine, and not through a proxy on it."""
    forwarded = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
    if request.client is None or any(name in request.headers for name in forwarded):
        return False
    try:
        return ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _target(request: Request) -> str:
    """Return the page to show after signing in: always one of ours."""
    target = request.query_params.get("next", PATH)
    return target if target == PATH or target.startswith((f"{PATH}/", f"{PATH}?")) else PATH


def _with_headers(send: Send) -> Send:
    """Wrap `send` to add security headers to a page."""

    async def send_protected(message: Message) -> None:
        if message["type"] == "http.response.start":
            there = {name for name, _ in message["headers"]}
            more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in there]
            if b"cache-control" not in there:
                more.append((b"cache-control", b"no-store"))
            message["headers"] = [*message["headers"], *more]
        await send(message)

    return send_protected
