"""HTTP: an ASGI app on sockets, by uvicorn's parser and connections, with what a server in the open needs besides.

Clients that are slow, idle, or never finish what they begin lose their connections, and when there are too many
connections those that wait are the first to go. When it stops, every request that has begun is answered.
"""

from __future__ import annotations

import asyncio
import logging
import re
from email.utils import formatdate
from math import inf
from ssl import SSLContext
from typing import Any, Final

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from headgate.errors import HeadgateError
from headgate.service.http.exchange import ADMITTED
from headgate.service.http2.allowance import Allowance, CommonAllowance
from headgate.service.listener import MOST_CONNECTIONS, SocketListener
from headgate.service.request_splitter import MAX_HEAD, HeadTooLarge, RequestSplitter
from headgate.telemetry.meter import OTHER, Meter

HEAD_SECONDS: Final = 10.0  # in which a request's head has to be here, from its first byte
FIRST_SECONDS: Final = 2.0  # that a client who has just connected has to begin, when the server stops
BODY_SECONDS: Final = 30.0  # … and its body, from its head
IDLE_SECONDS: Final = 75  # between two requests: longer than proxies keep a connection that they may use again
UNREAD_SECONDS: Final = 30.0  # in which a client has to take something of its answer
LINGER_SECONDS: Final = 1.0  # for a client to read why it was refused
ANSWER: Final = 100  # units of work for an answer to a stranger: see `h2.allowance`
PAGE: Final = 2_500  # … for one that is long
ROOM: Final = 0.1  # of the waiting connections that go when there are too many

_PAGES: Final = ("/metrics", "/docs", "/openapi.json")
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
        most_connections: int = MOST_CONNECTIONS,
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
            timeout_keep_alive=IDLE_SECONDS,
        )
        config.load()
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # its warnings are what strangers send, any number
        logging.getLogger("uvicorn.error").addFilter(_told)
        self.state = _State(most_connections, meter or Meter())
        super().__init__(lambda: _Connection(config, self.state), self.state, tls)

    def drain(self) -> None:
        """Go on serving, and have every client close its connection with its next answer."""
        self.state.draining = True

    async def stop(self, seconds: float) -> int:
        """Take no more connections, and close those that there are as soon as what has begun on them is answered.

        Those that take longer than `seconds` are cut off; returns how many.
        """
        self.drain()
        return await super().stop(seconds)


def _told(record: logging.LogRecord) -> bool:
    """Whether uvicorn is to log this. Of what is no fault of the app, a line is enough, and of the end, none."""
    error = None if record.exc_info is None else record.exc_info[1]
    if isinstance(error, asyncio.CancelledError):  # a request that took longer than there was time when we stopped
        return False
    if error is not None and isinstance(error.__cause__, HeadgateError):  # too late to answer with it
        record.msg, record.args, record.exc_info = "an answer breaks off: %s", (error.__cause__,), None
    return True


class _State(ServerState):
    """What all connections share."""

    connections: set[_Connection]  # type: ignore[assignment]

    def __init__(self, most_connections: int, meter: Meter) -> None:
        super().__init__()
        self.most_connections = most_connections
        self.meter = meter
        self.draining = False
        self.strangers = CommonAllowance()

    def tick(self, now: float) -> None:
        """Once a second: the time that answers tell, and an end to connections on which nothing moves."""
        self.strangers.refill()
        self.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        for connection in list(self.connections):
            connection.look(now)

    def make_room(self) -> bool:
        """End some of the connections that wait for a request, those first that have waited longest."""
        waiting = sorted((one for one in self.connections if one.due < inf and not one.busy), key=_due)
        for connection in waiting[: max(1, int(len(waiting) * ROOM))]:
            connection.transport.abort()
        return bool(waiting)


def _due(connection: _Connection) -> float:
    return connection.due


class _Connection(HttpToolsProtocol):
    """uvicorn's, with deadlines and limits, and one request at a time."""

    server_state: _State

    def __init__(self, config: Config, state: _State) -> None:
        super().__init__(config, state, {})
        self.due = inf  # when what the client is to send has to be here
        self._requests = RequestSplitter()
        self._unused = True  # whether nothing has ever come
        self._begun = False  # whether some of a request is here, and not all of it
        self._unread_since = inf
        self._refused = False  # whether nothing that may come is looked at any more
        self._known = False  # whether there was a request that its client has the right to make
        self._allowance = Allowance()
        self._held_back = False  # whether the next request has to wait until there is time for it

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    # What asyncio calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.due = self.loop.time() + HEAD_SECONDS
        state = self.server_state
        if len(state.connections) > state.most_connections and not state.make_room():
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

    # What the parser calls

    def on_message_begin(self) -> None:
        self._begun = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        length = _body_length(self.headers, self.parser.get_http_version())
        self.due = self.loop.time() + BODY_SECONDS
        if length != 0:
            self._requests.begin_body(length)
        super().on_headers_complete()
        if self.server_state.draining and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._begun = False
        self.due = inf
        self._requests.end()
        super().on_message_complete()

    # What the answer's end calls

    def on_response_complete(self) -> None:
        self._charge(self.cycle.scope)
        super().on_response_complete()
        if len(self._requests) and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self.loop.call_soon(self._parse)  # when others have had their turn

    # What the server calls

    def look(self, now: float) -> None:
        """End it if the client keeps us waiting. Go on with what had to wait."""
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
        """End it at once."""
        self.transport.abort()

    def leave(self) -> None:
        """Close it, at once or when what has begun is answered."""
        if self.busy:
            self.cycle.keep_alive = False
        elif self._unused:
            self.loop.call_later(FIRST_SECONDS, self._close_unused)  # its first request may be on its way
        elif not self._begun:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - says no more than the status
        """Called by uvicorn when the parser gives up."""
        self._refuse(400)

    def _parse(self) -> None:
        """Have the parser look at what is here: one request at a time, the next when that is answered."""
        requests = self._requests
        try:
            while len(requests) and not self._refused and not self.transport.is_closing():
                if self.busy and requests.in_head:
                    if len(requests) > MAX_HEAD:
                        self.flow.pause_reading()
                    return
                if requests.in_head and self._must_wait():
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
        if (len(requests) or requests.ends_with_empty_lines) and requests.in_head and not self._begun:
            self._begun = True
            self.due = self.loop.time() + HEAD_SECONDS

    def _charge(self, scope: Any) -> None:
        """Count what an answer cost that anybody could have asked for."""
        if scope["state"].get(ADMITTED):
            self._known = True
        elif not self._known:
            units = PAGE if scope.get("path", "").startswith(_PAGES) else ANSWER
            self._allowance.spend(units)
            self.server_state.strangers.left -= units

    def _must_wait(self) -> bool:
        """Whether the next request has to wait for the next second: strangers have had too many answers in this one."""
        if self._known:
            return False
        return self._allowance.left < 0 or self.server_state.strangers.must_wait(self._allowance)

    def _refuse(self, status: int) -> None:
        """Answer a request that the app does not get to see, and close the connection."""
        self.server_state.meter.answered(OTHER, status)
        self._refused, self._begun, self.due = True, False, inf
        self._requests.clear()
        if self.busy:  # its body turned out to make no sense
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
            # Closed at once, it would be reset by what still comes, and the client might not see why.
            self.transport.write_eof()
            self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        else:
            self.transport.close()

    def _close_unused(self) -> None:
        if self._unused:
            self.transport.close()


def _body_length(headers: list[tuple[bytes, bytes]], version: str) -> int | None:
    """How long a request's body is; None: it comes in chunks. Raises `ValueError`, upon which the parser gives up.

    A request that names no host, or two, may mean another to a proxy than to us (RFC 9112, section 3.2).
    """
    length: int | None = 0
    hosts = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
            if not _HOST.fullmatch(value):
                raise ValueError("an invalid host")
        elif name == b"transfer-encoding":  # never beside a length: the parser sees to that
            length = None
        elif name == b"content-length":
            length = int(value)
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise ValueError("a request must name exactly one host")
    return length
