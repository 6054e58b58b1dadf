"""Connection: one client's connection, from its first byte to its last.

It reads all frames that arrived together at once, and sends the answers at once. Of complete requests, it reads a few,
and then answers them: the same step for several requests takes less time than all steps for each.

It closes connections of clients that are slow or idle, never finish a request, or break the protocol. While a client
does not read its answers, the connection does not read from it, so that answers do not pile up.

Work per byte is bounded, whatever a client sends. Unproductive frames are charged to the client's `Allowance`, and a
client that has used it up is disconnected. A `Scheduler` gives connections turns, so that none delays the others.
`receiver` interprets the frames.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any, Final

from headgate.service.http2 import allowance, frames
from headgate.service.http2.allowance import Allowance
from headgate.service.http2.frames import ENHANCE_YOUR_CALM, NO_ERROR, PING, ProtocolError
from headgate.service.http2.headers import MAX_LIST
from headgate.service.http2.hub import App, Hub
from headgate.service.http2.receiver import GOODBYE, MAX_STREAMS, WINDOW, Receiver
from headgate.service.http2.stream import Outflow, Stream

FIRST_SECONDS: Final = 10.0  # after connecting, for a client to send its settings
FRAME_SECONDS: Final = 10.0  # for a frame, or a header block of several frames, to arrive
IDLE_SECONDS: Final = 600.0  # without a request, after which the connection ends with a GOAWAY
UNREAD_SECONDS: Final = 30.0  # for a client to read some of what is sent to it
LINGER_SECONDS: Final = 1.0  # for a client to close the connection after it has read everything
GOODBYE_SECONDS: Final = 0.5  # for a client to receive the first GOAWAY, before the final one
HELD_BACK_SECONDS: Final = 5  # for which a client may send more than we can process
MAX_UNREAD: Final = 65_536  # bytes that may wait for the connection's turn


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, app: App, hub: Hub) -> None:
        self.hub = hub
        self.used = hub.now  # time of the last request or answer
        self.known = False  # whether the client has made an authorized call: until then, it is a stranger
        self.address: str | None = None  # of the client
        self.outflow = Outflow()
        self.ready: deque[Stream] = deque()  # streams with complete requests that wait for their answers
        self._receiver = Receiver(self, app)
        self._app = app
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._rest = b""  # received but unread: frames that wait for their turn, or an incomplete one
        self._rest_since = inf
        self._held_back = False  # whether reading is paused until there is time for it
        self._held_back_for = 0  # seconds
        self._allowance = Allowance()
        self._out: list[bytes] = []
        self._gathering = False  # whether `_flush` will be called
        self._unread_since = inf
        self._leaving = False  # whether GOAWAY was sent: the client must open no more streams
        self.is_over = False  # whether it ignores further input

    @property
    def busy(self) -> bool:
        """Whether requests are in progress."""
        return bool(self._receiver.streams)

    # Called by asyncio

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        hub = self.hub
        self.used = hub.now = self._loop.time()
        if len(hub.connections) >= hub.max_connections and not hub.make_room():
            self.is_over = True
            transport.abort()
            return
        hub.connections.add(self)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else None
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family != socket.AF_UNIX:
            with suppress(OSError):  # the client may have left
                _keep_alive(connected)
        limits = {
            frames.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            frames.INITIAL_WINDOW_SIZE: self._app.window,
            frames.MAX_HEADER_LIST_SIZE: MAX_LIST,
        }
        transport.write(frames.settings(limits) + frames.window_update(0, WINDOW - frames.DEFAULT_WINDOW))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason does not matter
        self.hub.connections.discard(self)
        self.hub.scheduler.forget(self)
        self.is_over = True
        self._rest = b""
        self.ready.clear()
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

    # Called by the scheduler

    def work(self, until: float) -> bool:
        """Process complete frames until the time `until`. Returns whether there are more."""
        if self.is_over:
            return False
        data, size = self._rest, len(self._rest)
        self._gathering = True
        try:
            self.answer(until)  # requests of the turn before
            read = self._receiver.read(data, until)
            self.answer(until)
            self.outflow.pump(self._receiver.streams.values())
        except ProtocolError as fault:
            self.answer(until)
            self._end(fault.code, str(fault))
            read = size
        self._rest = data[read:] if read < size else b""
        self._flush()
        has_more = bool(self.ready) or self._has_frame()
        if not self._rest and self._receiver.block is None:
            self._rest_since = inf
        elif has_more:
            self._rest_since = inf  # we are late, not the client
        elif self._rest_since == inf or (read and self._receiver.block is None):
            self._rest_since = self._loop.time()
        if not has_more:
            self._go_on()
        elif not self.known and self.must_wait():
            self._hold_back()
            return False
        return has_more

    # Called by the receiver

    def answer(self, until: float) -> None:
        """Answer the complete requests, at most until this time."""
        ready = self.ready
        while ready and not self.is_over:
            ready.popleft().answer()
            if monotonic() > until:
                break

    # Called by streams

    def write(self, data: bytes) -> None:
        """Send frames, together with all others of this tick. Does nothing if the connection is over."""
        if self.is_over:
            return
        self._out.append(data)
        if not self._gathering:
            self._gathering = True
            self._loop.call_soon(self._flush)

    def admit(self, stream: Stream) -> None:
        """Mark the stream's request as authorized, and refund its cost."""
        self.known = True
        self._allowance.earn(stream.cost + allowance.ADMITTED)
        stream.cost = 0

    def earn(self, units: int) -> None:
        """Add units to the client's allowance."""
        self._allowance.earn(units)

    def charge(self, units: int) -> None:
        """Charge work to the client. Raises `ProtocolError` if it has caused too much unproductive work."""
        if not self.known:
            self.hub.strangers.left -= units
        if not self._allowance.spend(units):
            raise ProtocolError(ENHANCE_YOUR_CALM, "too much work without an authorized call")

    def forget(self, stream: Stream) -> None:
        """Remove a stream that has ended."""
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
        """Start the deadline for the rest of a header block."""
        self._rest_since = min(self._rest_since, self._loop.time())

    # Called by the server

    def look(self, now: float) -> None:
        """Close the connection if the client is too slow. Called once a second."""
        self._allowance.refill()
        if not self._held_back:
            self._held_back_for = 0
        elif self._held_back_for >= HELD_BACK_SECONDS:
            self.abort()  # it sends more than we can process, or it has left, which we cannot notice while not reading
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

        Requests that the client sends before it receives the GOAWAY are still answered. So the first GOAWAY names no
        last stream, and comes with a PING. The final GOAWAY, with the last stream, follows the reply to the PING.
        """
        if not self._leaving and not self.is_over:
            self._leaving = True
            self.write(frames.goaway(frames.LARGEST_STREAM, NO_ERROR) + frames.frame(PING, 0, 0, GOODBYE))
            self._loop.call_later(GOODBYE_SECONDS, self.leave_now)

    def abort(self) -> None:
        """Close the connection at once."""
        self.is_over = True
        self._transport.abort()

    # Frames

    def _has_frame(self) -> bool:
        """Return whether an unprocessed complete frame has arrived."""
        rest = self._rest
        if len(rest) < frames.HEAD_SIZE or self.is_over:
            return False
        return len(rest) >= frames.HEAD_SIZE + int.from_bytes(rest[:3], "big")

    def must_wait(self) -> bool:
        """Return whether this stranger must wait for the next second, because strangers caused too much work in this
        one."""
        return self.hub.strangers.must_wait(self._allowance)

    def _hold_back(self) -> None:
        """Pause reading until everything received is processed."""
        if not self._held_back:
            self._held_back = True
            if not self._transport.is_closing():
                self._transport.pause_reading()

    def _go_on(self) -> None:
        if self._held_back:
            self._held_back = False
            if self._unread_since == inf and not self._transport.is_closing():
                self._transport.resume_reading()

    # Sending and closing

    def _flush(self) -> None:
        self._gathering = False
        if self._out:
            out, self._out = self._out, []
            if not self._transport.is_closing():
                self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def leave_now(self) -> None:
        """Send the final GOAWAY, now that the client knows that the server stops."""
        if self._receiver.final != self._receiver.last and not self.is_over:
            self._receiver.final = self._receiver.last
            self.write(frames.goaway(self._receiver.last, NO_ERROR))
            if not self._receiver.streams:
                self._hang_up()

    def _end(self, code: int, what: str) -> None:
        """End the connection, because the client broke the protocol."""
        self.write(frames.goaway(self._receiver.last, code, what))
        self._receiver.cancel_streams()
        self._hang_up()

    def _hang_up(self) -> None:
        """Close the connection after the client has read everything. An immediate close could reset it on further
        input."""
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
    """Turn on TCP keepalive, so that the system notices a vanished client."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):  # not all systems have these options
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
