"""The HTTP server: an ASGI app on uvicorn's parser and connections, hardened for untrusted clients.

It closes connections of clients that are slow or idle, or never finish a request. When there are too many connections,
it closes the idle ones first. When it stops, it answers every request that has begun.
"""

from __future__ import annotations

import asyncio
import logging
import re
from email.utils import formatdate
from math import inf
from ssl import SSLContext
from typing import Any, Final
from urllib.parse import unquote

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from headgate.errors import HeadgateError
from headgate.service.http.exchange import ADMITTED
from headgate.service.http2.allowance import Allowance, CommonAllowance
from headgate.service.http_cycle import HttpCycle
from headgate.service.listener import MAX_CONNECTIONS, SocketListener, make_room
from headgate.service.request_splitter import MAX_HEAD, HeadTooLarge, RequestSplitter
from headgate.telemetry.meter import OTHER, Meter

HEAD_SECONDS: Final = 10.0  # for a request's head to arrive, from its first byte
FIRST_SECONDS: Final = 2.0  # for a new client to send its first request when the server stops
BODY_SECONDS: Final = 30.0  # for a request's body to arrive, from its head
IDLE_SECONDS: Final = 75  # between two requests: longer than proxies keep idle connections for reuse
UNREAD_SECONDS: Final = 30.0  # for a client to read some of its answer
LINGER_SECONDS: Final = 1.0  # for a client to read why it was refused
ANSWER: Final = 100  # units of work for an answer to a stranger: see `http2.allowance`
ADMIN_ANSWER: Final = 400  # … for one by the admin API, which also answers unknown paths
PAGE: Final = 2_500  # … for a long one

_PAGES: Final = ("/metrics", "/docs", "/openapi.json")
_SHORT: Final = ("/v1/", "/healthz", "/readyz")  # paths that the admin API does not answer
_ASGI: Final[Any] = {"version": "3.0", "spec_version": "2.3"}
_HOST: Final = re.compile(rb"[0-9A-Za-z\-._~!$&'()*+,;=%:\[\]]*")

log = logging.getLogger("headgate")


class WebServer(SocketListener):
    """Serves an ASGI app. Belongs to one event loop: `start`, then `drain`, then `stop`."""

    def __init__(
        self,
        app: Any,
        *,
        meter: Meter | None = None,
        tls: SSLContext | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        config = Config(
            app,
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        config.load()
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # its warnings repeat what clients send
        logging.getLogger("uvicorn.error").addFilter(_should_log)
        self.state = _State(max_connections, meter or Meter())
        super().__init__(lambda: _Connection(config, self.state), self.state, tls)

    def drain(self) -> None:
        """Continue to serve, and close each connection after its next answer."""
        self.state.draining = True


def _should_log(record: logging.LogRecord) -> bool:
    """Filter uvicorn's log: drop requests cancelled by the stop, and shorten errors that are not the app's fault."""
    error = None if record.exc_info is None else record.exc_info[1]
    if isinstance(error, asyncio.CancelledError):  # a request that outlasted the stop's timeout
        return False
    if error is not None and isinstance(error.__cause__, HeadgateError):  # too late to send it as an answer
        record.msg, record.args, record.exc_info = "an answer breaks off: %s", (error.__cause__,), None
    return True


class _State(ServerState):
    """The state that all connections share."""

    connections: set[_Connection]  # type: ignore[assignment]

    def __init__(self, max_connections: int, meter: Meter) -> None:
        super().__init__()
        self.max_connections = max_connections
        self.meter = meter
        self.draining = False
        self.strangers = CommonAllowance()

    def tick(self, now: float) -> None:
        """Update the `Date` header, and close stalled connections. Called once a second."""
        self.strangers.refill()
        self.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        for connection in list(self.connections):
            connection.look(now)

    def make_room(self) -> bool:
        """Close some idle connections, the longest idle first. Returns whether there were any."""
        idle = sorted((one for one in self.connections if one.due < inf and not one.busy), key=lambda one: one.due)
        return make_room(idle)


class _Connection(HttpToolsProtocol):
    """uvicorn's connection with deadlines and limits, and one request at a time."""

    server_state: _State

    def __init__(self, config: Config, state: _State) -> None:
        super().__init__(config, state, {})
        self.due = inf  # the deadline for the client's input
        self._requests = RequestSplitter()
        self._unused = True  # whether nothing was ever received
        self._begun = False  # whether an incomplete request has arrived
        self._unread_since = inf
        self._refused = False  # whether further input is ignored
        self._known = False  # whether the client has made an authorized request
        self._allowance = Allowance()
        self._held_back = False  # whether the next request waits for the next second

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    # Called by asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.due = self.loop.time() + HEAD_SECONDS
        state = self.server_state
        if len(state.connections) > state.max_connections and not state.make_room():
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.due = inf
        self._requests.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unused = False
        self._requests.feed(data)
        self._parse()

    # Called by the parser

    def on_message_begin(self) -> None:
        self._begun = True
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        parser = self.parser
        version = parser.get_http_version()
        length = _body_length(self.headers, version)
        self.due = self.loop.time() + BODY_SECONDS
        if length != 0:
            self._requests.begin_body(length)
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        self.scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme or "http",
            "root_path": "",
            "headers": self.headers,
            "state": {},
            "method": parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
        }
        self.cycle = HttpCycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and parser.should_keep_alive() and not self.server_state.draining,
            on_response=self.on_response_complete,
        )
        self._start_asgi_task(self.cycle, self.app)

    def on_message_complete(self) -> None:
        self._begun = False
        self.due = inf
        self._requests.end()
        super().on_message_complete()

    # Called at an answer's end

    def on_response_complete(self) -> None:
        """Go on with the next request. Unlike uvicorn's, this starts no timer: `look` ends an idle connection."""
        self._charge(self.cycle.scope)
        if self.transport.is_closing():
            return
        self.due = self.loop.time() + IDLE_SECONDS
        self.flow.resume_reading()
        if self._requests.size:
            self.loop.call_soon(self._parse)  # after other connections' turns

    # Called by the server

    def look(self, now: float) -> None:
        """Close the connection if the client is too slow. Continue with a request that had to wait."""
        self._allowance.refill()
        if self._held_back:
            self._held_back = False
            self.flow.resume_reading()
            self.loop.call_soon(self._parse)
        if now > self.due:
            if self._begun and not self.busy:
                self._refuse(408)
            else:
                self.transport.abort()
        elif not self.flow.write_paused:
            self._unread_since = inf
        elif self._unread_since == inf:
            self._unread_since = now
        elif now - self._unread_since > UNREAD_SECONDS:
            self.transport.abort()

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def leave(self) -> None:
        """Close the connection when the begun request is answered."""
        if self.busy:
            self.cycle.keep_alive = False
        elif self._unused:
            self.loop.call_later(FIRST_SECONDS, self._close_unused)  # its first request may be in transit
        elif not self._begun:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - adds nothing to the status
        """Refuse a request that the parser rejects. Called by uvicorn."""
        self._refuse(400)

    def _parse(self) -> None:
        """Pass input to the parser: one request at a time, the next after its answer."""
        requests = self._requests
        try:
            while requests.size and not self._refused and not self.transport.is_closing():
                if requests.in_head:
                    if self.busy:
                        if requests.size > MAX_HEAD:
                            self.flow.pause_reading()
                        return
                    if not self._known and self._must_wait():
                        self._held_back = True
                        self.flow.pause_reading()
                        return
                piece = requests.take()
                if not piece:
                    break
                super().data_received(piece)
        except HeadTooLarge:
            self._refuse(431)
            return
        if (requests.size or requests.ends_with_empty_lines) and requests.in_head and not self._begun:
            self._begun = True
            self.due = self.loop.time() + HEAD_SECONDS

    def _charge(self, scope: Any) -> None:
        """Charge the cost of an answer to an unauthorized request."""
        if scope["state"].get(ADMITTED):
            self._known = True
        elif not self._known:
            path = scope.get("path", "")
            units = PAGE if path.startswith(_PAGES) else ANSWER if path.startswith(_SHORT) else ADMIN_ANSWER
            self._allowance.spend(units)
            self.server_state.strangers.left -= units

    def _must_wait(self) -> bool:
        """Return whether this stranger's next request must wait for the next second, as strangers had too many answers
        in this one."""
        return self._allowance.left < 0 or self.server_state.strangers.must_wait(self._allowance)

    def _refuse(self, status: int) -> None:
        """Answer a request without calling the app, and close the connection."""
        self.server_state.meter.record_response(OTHER, status)
        self._refused, self._begun, self.due = True, False, inf
        self._requests.clear()
        if self.busy:  # its body is malformed
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.abort()
                return
        text = b'{"type":"about:blank","title":"%s","status":%d}' % (STATUS_LINE[status][13:-2], status)
        self.transport.write(
            STATUS_LINE[status]
            + b"content-type: application/problem+json\r\nconnection: close\r\n"
            + b"content-length: %d\r\n\r\n%s" % (len(text), text)
        )
        if self.transport.can_write_eof():
            # An immediate close could reset the connection on further input, before the client reads the answer.
            self.transport.write_eof()
            self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        else:
            self.transport.close()

    def _close_unused(self) -> None:
        if self._unused:
            self.transport.close()


def _body_length(headers: list[tuple[bytes, bytes]], version: str) -> int | None:
    """Return the length of a request's body; None if chunked. Raises `ValueError`, on which the parser rejects it.

    A proxy may read a request with no host, or with two, differently from us (RFC 9112, section 3.2).
    """
    found = dict(headers)
    host = found.get(b"host")
    if host is None:
        if version == "1.1":
            raise ValueError("a request must name its host")
    elif not _HOST.fullmatch(host):
        raise ValueError("an invalid host")
    elif len(found) < len(headers) and [name for name, _ in headers].count(b"host") > 1:
        raise ValueError("a request must name one host")
    if b"transfer-encoding" in found:  # never together with a length: the parser checks that
        return None
    return int(found.get(b"content-length", 0))
