"""Connection: one client's connection, from its first byte to its last.

It reads frames that came together in one go, and sends the answers in one go. It closes the connections of clients that
are slow or idle, never finish what they begin, or break the protocol. While a client does not read its answers, the
connection does not read from it, so that answers do not pile up.

Work per byte is bounded, whatever a client sends. Frames that bring nothing are charged to the client's `Allowance`,
and a client that has used it up is cut off. Connections take `Scheduler`, so that none holds up the others. `receiver`
knows what the frames mean.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from math import inf
from typing import Any, Final

from headgate.service.http2 import allowance, frames
from headgate.service.http2.allowance import Allowance
from headgate.service.http2.frames import ENHANCE_YOUR_CALM, NO_ERROR, PING, ProtocolError
from headgate.service.http2.headers import MAX_LIST
from headgate.service.http2.hub import App, Hub
from headgate.service.http2.outflow import Outflow
from headgate.service.http2.receiver import GOODBYE, MAX_STREAMS, WINDOW, Receiver
from headgate.service.http2.stream import Stream

FIRST_SECONDS: Final = 10.0  # from connecting, in which a client has to be ready for requests
FRAME_SECONDS: Final = 10.0  # in which a frame, or a header block of several, has to be here
IDLE_SECONDS: Final = 600.0  # without a request, after which the connection ends with a GOAWAY
UNREAD_SECONDS: Final = 30.0  # in which a client has to read some of what is sent to it
LINGER_SECONDS: Final = 1.0  # for a client to hang up by itself, so that it has read all there is
GOODBYE_SECONDS: Final = 0.5  # for a client to receive the first GOAWAY, before the final one
HELD_BACK_SECONDS: Final = 5  # for which a client may send more than there is time for
MAX_UNREAD: Final = 65_536  # bytes that may wait for this connection's turn


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, app: App, hub: Hub) -> None:
        self.hub = hub
        self.used = hub.now  # time of the last request or answer
        self.known = False  # whether the client has the right to make calls: until it has made one, it is a stranger
        self.address: str | None = None  # of the client
        self.outflow = Outflow()
        self._receiver = Receiver(self, app)
        self._app = app
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._rest = b""  # of what came: frames that wait for their turn, or one that is not whole yet
        self._rest_since = inf
        self._held_back = False  # whether it is not read from until there is time for it
        self._held_back_for = 0  # seconds
        self._allowance = Allowance()
        self._out: list[bytes] = []
        self._gathering = False  # whether a caller is about to send `_out`
        self._unread_since = inf
        self._leaving = False  # whether a GOAWAY was sent: the client must open no more streams
        self.is_over = False  # whether it ignores what still comes

    @property
    def busy(self) -> bool:
        """Whether there are requests under way."""
        return bool(self._receiver.streams)

    # What asyncio calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        hub = self.hub
        self.used = hub.now = self._loop.time()
        if len(hub.connections) >= hub.most_connections and not hub.make_room():
            self.is_over = True
            transport.abort()
            return
        hub.connections.add(self)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else None
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family != socket.AF_UNIX:
            with suppress(OSError):  # it may be gone
                _keep_alive(connected)
        limits = {
            frames.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            frames.INITIAL_WINDOW_SIZE: self._app.window,
            frames.MAX_HEADER_LIST_SIZE: MAX_LIST,
        }
        transport.write(frames.settings(limits) + frames.window_update(0, WINDOW - frames.DEFAULT_WINDOW))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - whatever it was, it is over
        self.hub.connections.discard(self)
        self.hub.scheduler.forget(self)
        self.is_over = True
        self._rest = b""
        self._receiver.cancel_streams()

    def pause_writing(self) -> None:
        self._unread_since = self._loop.time()
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._unread_since = inf
        if not self._held_back and not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.is_over:
            return
        self._rest = self._rest + data if self._rest else data
        if not self._held_back:
            self.hub.scheduler.work(self)
            if len(self._rest) > MAX_UNREAD:
                self._hold_back()

    # What turns call

    def work(self, until: float) -> bool:
        """Look at frames that are here as a whole, until then. Returns whether there are more."""
        if self.is_over:
            return False
        data, size = self._rest, len(self._rest)
        self._gathering = True
        try:
            read = self._receiver.read(data, until)
            self.outflow.pump(self._receiver.streams.values())
        except ProtocolError as fault:
            self._end(fault.code, str(fault))
            read = size
        self._rest = data[read:] if read < size else b""
        self._flush()
        has_more = self._has_frame()
        if not self._rest and self._receiver.block is None:
            self._rest_since = inf
        elif has_more:
            self._rest_since = inf  # it is we who are late
        elif self._rest_since == inf or (read and self._receiver.block is None):
            self._rest_since = self._loop.time()
        if not has_more:
            self._go_on()
        elif not self.known and self.must_wait():
            self._hold_back()
            return False
        return has_more

    # What streams call

    def write(self, data: bytes) -> None:
        """Send frames, with all others of this tick; nothing, when it is over."""
        if self.is_over:
            return
        self._out.append(data)
        if not self._gathering:
            self._gathering = True
            self._loop.call_soon(self._flush)

    def admit(self, stream: Stream) -> None:
        """The client has the right to make this request."""
        self.known = True
        self._allowance.earn(stream.cost + allowance.ADMITTED)
        stream.cost = 0

    def earn(self, units: int) -> None:
        """Let the client cause so much more work."""
        self._allowance.earn(units)

    def charge(self, units: int) -> None:
        """Count work. Raises `ProtocolError` if the client has caused too much that brings nothing."""
        if not self.known:
            self.hub.strangers.left -= units
        if not self._allowance.spend(units):
            raise ProtocolError(ENHANCE_YOUR_CALM, "too much work for nothing")

    def closed(self, stream: Stream) -> None:
        """It is over."""
        if self._receiver.streams.pop(stream.number, None) is None:
            return
        self.hub.streams -= 1
        self.outflow.forget(stream)
        if not stream.ended:
            self._receiver.abandon(stream.number, stream.left)
        self.used = self.hub.now
        if self._receiver.final == self._receiver.last and not self._receiver.streams:
            self._hang_up()

    def expect_more(self) -> None:
        """Start the time in which the rest of a header block has to come."""
        self._rest_since = min(self._rest_since, self._loop.time())

    # What the server calls

    def look(self, now: float) -> None:
        """Once a second: end it if the client keeps us waiting."""
        self._allowance.refill()
        if not self._held_back:
            self._held_back_for = 0
        elif self._held_back_for >= HELD_BACK_SECONDS:
            self.abort()  # it sends more than there is time for; or it is gone, which goes unnoticed meanwhile
            return
        else:
            self._held_back_for += 1
            self.hub.scheduler.work_later(self)
        silent = not self._receiver.is_settled and now - self.used > FIRST_SECONDS
        if silent or now - self._rest_since > FRAME_SECONDS or now - self._unread_since > UNREAD_SECONDS:
            self.abort()
        elif self._receiver.streams:
            for stream in list(self._receiver.streams.values()):
                stream.look(now)
        elif now - self.used > IDLE_SECONDS:
            self.leave()

    def leave(self) -> None:
        """Send GOAWAY, and close the connection when all requests are answered.

        Requests that are under way when the client receives it are still answered. So the first GOAWAY names no last
        stream and comes with a PING. The final one, with the last stream, follows the reply to that.
        """
        if not self._leaving and not self.is_over:
            self._leaving = True
            self.write(frames.goaway(frames.LARGEST_STREAM, NO_ERROR) + frames.frame(PING, 0, 0, GOODBYE))
            self._loop.call_later(GOODBYE_SECONDS, self.leave_now)

    def abort(self) -> None:
        """End it at once."""
        self.is_over = True
        self._transport.abort()

    # Frames

    def _has_frame(self) -> bool:
        """Whether a frame is here as a whole that was not looked at yet."""
        rest = self._rest
        if len(rest) < frames.HEAD_SIZE or self.is_over:
            return False
        return len(rest) >= frames.HEAD_SIZE + int.from_bytes(rest[:3], "big")

    def must_wait(self) -> bool:
        """Whether strangers have caused so much work in this second that this one has to wait for the next."""
        return self.hub.strangers.must_wait(self._allowance)

    def _hold_back(self) -> None:
        """Do not read any more until what is here has been looked at."""
        if not self._held_back:
            self._held_back = True
            if not self._transport.is_closing():
                self._transport.pause_reading()

    def _go_on(self) -> None:
        if self._held_back:
            self._held_back = False
            if self._unread_since == inf and not self._transport.is_closing():
                self._transport.resume_reading()

    # The way out

    def _flush(self) -> None:
        self._gathering = False
        if self._out:
            out, self._out = self._out, []
            if not self._transport.is_closing():
                self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def leave_now(self) -> None:
        """Name the last request that is answered, now that the client has heard that the server stops."""
        if self._receiver.final != self._receiver.last and not self.is_over:
            self._receiver.final = self._receiver.last
            self.write(frames.goaway(self._receiver.last, NO_ERROR))
            if not self._receiver.streams:
                self._hang_up()

    def _end(self, code: int, what: str) -> None:
        """The client has broken the protocol."""
        self.write(frames.goaway(self._receiver.last, code, what))
        self._receiver.cancel_streams()
        self._hang_up()

    def _hang_up(self) -> None:
        """Close it, when what there is to read has been read: closed at once, it might be reset by what still comes."""
        if self.is_over:
            return
        self.is_over = True
        self._flush()
        transport = self._transport
        if transport.is_closing():
            return
        if transport.can_write_eof():
            transport.write_eof()
            self._loop.call_later(LINGER_SECONDS, self._linger)
        else:
            transport.close()

    def _linger(self) -> None:
        if self._transport.get_write_buffer_size() == 0:
            self._transport.abort()
        else:
            self._loop.call_later(LINGER_SECONDS, self._linger)


def _keep_alive(connected: Any) -> None:
    """Have the system notice a client that has vanished."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):  # not all systems let one say
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
