"""Connection: one client's, from its first byte to its last.

Frames that came together are looked at in one go, and what is to be sent in answer leaves in one go. Clients that are
slow, idle, or never finish what they begin lose their connections, as do those that break the protocol. While a client
does not read what it is sent, it is not listened to: so nothing piles up here that it has not asked for.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, Final

from headgate.service.h2 import frames
from headgate.service.h2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    NO_ERROR,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    Fault,
)
from headgate.service.h2.headers import MAX_LIST, HeaderReader
from headgate.service.h2.hub import App, Hub, Malformed
from headgate.service.h2.stream import Stream

FIRST_SECONDS: Final = 10.0  # in which a client has to be ready to ask, from when it connects
FRAME_SECONDS: Final = 10.0  # in which a frame, or a header block of several, has to be here
IDLE_SECONDS: Final = 600.0  # without a request, after which a client is told to connect again when it has one
UNREAD_SECONDS: Final = 30.0  # in which a client has to take something of what it is sent
LINGER_SECONDS: Final = 1.0  # for a client to hang up by itself, so that it has read all there is
GOODBYE_SECONDS: Final = 0.5  # for a client to hear that the server stops, before that counts
MAX_STREAMS: Final = 1_000  # at a time
MAX_RESETS: Final = 2 * MAX_STREAMS  # requests that a client takes back, beyond those that it got answers to
MAX_IDLE_FRAMES: Final = 1_000  # in a second: those that ask for nothing
MAX_BLOCK: Final = MAX_LIST  # bytes of a header block
MAX_PARTS: Final = 64  # frames that a header block comes in
WINDOW: Final = 16 * 1024 * 1024  # bytes that a client may send on all streams together, until we have looked at them
GOODBYE: Final = b"headgate"  # what a ping says that the server stops by


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, app: App, hub: Hub) -> None:
        self.hub = hub
        self.used = hub.now  # when something last was asked or answered
        self.max_frame = frames.DEFAULT_FRAME  # what the client takes: bytes in a frame,
        self.initial_window = frames.DEFAULT_WINDOW  # in all on a stream, at first,
        self.window = frames.DEFAULT_WINDOW  # and now, on all streams together
        self._app = app
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._rest = b""  # of what came: a frame that is not whole yet
        self._rest_since = inf
        self._greeted = self._settled = False  # whether the preface is here, and the client's settings
        self._headers: HeaderReader[Any] = HeaderReader(app.head)
        self._block: tuple[int, int, list[bytes]] | None = None  # flags, stream, and parts of a block that goes on
        self._streams: dict[int, Stream] = {}
        self._blocked: dict[int, Stream] = {}  # that have more to send than there is room for
        self._last = 0  # the latest stream of the client's
        self._final = frames.LARGEST_STREAM  # streams above are not looked at: the client was told
        self._resets = 0
        self._idle_frames = 0  # in this second
        self._taken = 0  # bytes that the client has not been given back
        self._out: list[bytes] = []
        self._gathering = False  # whether somebody is about to send `_out`
        self._unread_since = inf
        self._leaving = False  # whether the client was told to ask for nothing more
        self._over = False  # whether nothing that may come is looked at any more

    @property
    def busy(self) -> bool:
        """Whether there are requests under way."""
        return bool(self._streams)

    # What asyncio calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        hub = self.hub
        self.used = hub.now = self._loop.time()
        if len(hub.connections) >= hub.most_connections and not hub.make_room():
            self._over = True
            transport.abort()
            return
        hub.connections.add(self)
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
        self._over = True
        streams, self._streams = self._streams, {}
        self._blocked.clear()
        for stream in streams.values():
            stream.cancelled()

    def pause_writing(self) -> None:
        self._unread_since = self._loop.time()
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._unread_since = inf
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        if self._rest:
            data = self._rest + data
        self._gathering = True
        try:
            read = self._read(data)
        except Fault as fault:
            self._end(fault.code, str(fault))
        else:
            self._rest = data[read:] if read < len(data) else b""
            if not self._rest and self._block is None:
                self._rest_since = inf
            elif read or self._rest_since == inf:
                self._rest_since = self._loop.time()
        self._flush()

    # What streams call

    def write(self, data: bytes) -> None:
        """Send frames, with all others of this tick; nothing, when it is over."""
        if self._over:
            return
        self._out.append(data)
        if not self._gathering:
            self._gathering = True
            self._loop.call_soon(self._flush)

    def blocked(self, stream: Stream) -> None:
        """It has more to send than there is room for."""
        self._blocked[stream.number] = stream

    def closed(self, stream: Stream) -> None:
        """It is over."""
        self._streams.pop(stream.number, None)
        if self._blocked:
            self._blocked.pop(stream.number, None)
        self.used = self.hub.now
        if self._resets:
            self._resets -= 1
        if self._final == self._last and not self._streams:
            self._hang_up()

    # What the server calls

    def look(self, now: float) -> None:
        """Once a second: end it if the client keeps us waiting."""
        self._idle_frames = 0
        silent = not self._settled and now - self.used > FIRST_SECONDS
        if silent or now - self._rest_since > FRAME_SECONDS or now - self._unread_since > UNREAD_SECONDS:
            self.abort()
        elif self._streams:
            for stream in list(self._streams.values()):
                stream.look(now)
        elif now - self.used > IDLE_SECONDS:
            self.leave()

    def leave(self) -> None:
        """Tell the client to ask for nothing more here, and hang up when all that it has asked for is answered.

        What is on its way when it hears that is still answered: so it is told once, then asked whether it has heard,
        and only then told which request is the last.
        """
        if not self._leaving and not self._over:
            self._leaving = True
            self.write(frames.goaway(frames.LARGEST_STREAM, NO_ERROR) + frames.frame(PING, 0, 0, GOODBYE))
            self._loop.call_later(GOODBYE_SECONDS, self._leave_now)

    def abort(self) -> None:
        """End it at once."""
        self._over = True
        self._transport.abort()

    # Frames

    def _read(self, data: bytes) -> int:
        """Look at all frames that are whole: up to where. Raises `Fault`."""
        at, size = 0, len(data)
        if not self._greeted:
            if not data.startswith(PREFACE):
                if PREFACE.startswith(data):
                    return 0
                raise Fault(PROTOCOL_ERROR, "this is a server of HTTP/2, for gRPC")
            self._greeted, at = True, len(PREFACE)
        unpack, head_size = frames.HEAD.unpack_from, frames.HEAD_SIZE
        while size - at >= head_size:
            high, low, kind, flags, number = unpack(data, at)
            length = high << 8 | low
            if length > frames.DEFAULT_FRAME:
                raise Fault(FRAME_SIZE_ERROR, "a frame that is too large")
            end = at + head_size + length
            if end > size:
                break
            payload = data[at + head_size : end]
            at = end
            number &= frames.LARGEST_STREAM
            if kind == DATA and self._block is None and self._settled:  # most of them
                self._data(flags, number, payload)
            else:
                self._frame(kind, flags, number, payload)
            if self._over:
                break
        return at

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block is not None and kind != CONTINUATION:
            raise Fault(PROTOCOL_ERROR, "a header block that does not go on")
        if not self._settled and kind != SETTINGS:
            raise Fault(PROTOCOL_ERROR, "settings come first")
        read = _READ.get(kind)
        if read is not None:  # what nobody knows is passed over
            read(self, flags, number, payload)

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        if not size:
            self._count_idle()
        self._taken += size
        if self._taken > WINDOW:
            raise Fault(FLOW_CONTROL_ERROR, "more data than there is room for")
        if self._taken > WINDOW // 2:
            self.write(frames.window_update(0, self._taken))
            self._taken = 0
        stream = self._streams.get(number)
        if stream is None or stream.ended:
            self._require_known(number)
            if stream is not None:
                raise Fault(STREAM_CLOSED, "data behind the end of a stream")
            return  # it is over already
        stream.taken += size
        if stream.taken > self._app.window:
            raise Fault(FLOW_CONTROL_ERROR, "more data on a stream than there is room for")
        if flags & frames.PADDED:
            payload = frames.unpadded(flags, payload)
        if flags & END_STREAM:
            stream.ended = True
        stream.received(payload)

    def _header_block(self, flags: int, number: int, payload: bytes) -> None:
        payload = frames.block(flags, number, payload)
        if number % 2 == 0:
            raise Fault(PROTOCOL_ERROR, "a stream that is no client's")
        if flags & END_HEADERS:
            self._begin(flags, number, payload)
        else:
            self._block = flags, number, [payload]
            self._rest_since = min(self._rest_since, self._loop.time())

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self._block is None or self._block[1] != number:
            raise Fault(PROTOCOL_ERROR, "a continuation of nothing")
        first_flags, _, parts = self._block
        parts.append(payload)
        if len(parts) > MAX_PARTS or sum(map(len, parts)) > MAX_BLOCK:
            raise Fault(ENHANCE_YOUR_CALM, "a header block that is too large")
        if flags & END_HEADERS:
            self._block = None
            self._begin(first_flags, number, b"".join(parts))

    def _begin(self, flags: int, number: int, block: bytes) -> None:
        """The header fields of a request are here; or those behind its body, which nobody needs."""
        stream = self._streams.get(number)
        if stream is not None:
            self._headers.skip(block)
            if stream.ended or not flags & END_STREAM:
                raise Fault(STREAM_CLOSED if stream.ended else PROTOCOL_ERROR, "headers in the wrong place")
            stream.ended = True
            stream.received(b"")
            return
        if number <= self._last:
            raise Fault(STREAM_CLOSED, "headers of a stream that is over")
        if number > self._final:  # the client has not heard yet that nobody looks at it
            self._headers.skip(block)
            return
        self._last = number
        try:
            head = self._headers.read(block)
        except Malformed:
            self.write(frames.rst_stream(number, PROTOCOL_ERROR))
            self._count_reset()
            return
        if len(self._streams) >= MAX_STREAMS:
            self.write(frames.rst_stream(number, REFUSED_STREAM))
            self._count_reset()
            return
        stream = self._streams[number] = self._app.stream(self, number, head)
        if flags & END_STREAM:
            stream.ended = True
        stream.opened()
        if stream.ended and number in self._streams:
            stream.received(b"")

    def _priority(self, _: int, number: int, payload: bytes) -> None:
        if number == 0 or len(payload) != 5:
            raise Fault(FRAME_SIZE_ERROR if number else PROTOCOL_ERROR, "a priority of nothing")
        self._count_idle()

    def _rst_stream(self, _: int, number: int, payload: bytes) -> None:
        if len(payload) != frames.NUMBER.size:
            raise Fault(FRAME_SIZE_ERROR, "a reset of the wrong size")
        self._require_known(number)
        stream = self._streams.get(number)
        if stream is not None:
            self._count_reset()
            self._resets += 1  # that which its end takes off again
            stream.cancelled()
            self.closed(stream)

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Fault(PROTOCOL_ERROR, "settings of a stream")
        if flags & ACK:
            if payload or not self._settled:
                raise Fault(FRAME_SIZE_ERROR if payload else PROTOCOL_ERROR, "an acknowledgement that is none")
            return
        values = frames.set_by(payload)
        if frames.INITIAL_WINDOW_SIZE in values:
            self._resize(values[frames.INITIAL_WINDOW_SIZE])
        largest = values.get(frames.MAX_FRAME_SIZE, self.max_frame)
        self.max_frame = min(largest, 4 * frames.DEFAULT_FRAME)  # larger ones would hold up the other streams
        self._settled = True
        self._count_idle()
        self.write(frames.frame(SETTINGS, ACK, 0))
        self._pump()  # behind the acknowledgement: by the settings from before, the client may have no room for it

    def _resize(self, window: int) -> None:
        more, self.initial_window = window - self.initial_window, window
        for stream in list(self._streams.values()):
            stream.window += more
            if stream.window > frames.LARGEST_WINDOW:
                raise Fault(FLOW_CONTROL_ERROR, "a window that is too large")

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Fault(PROTOCOL_ERROR, "a ping of a stream")
        if len(payload) != 8:
            raise Fault(FRAME_SIZE_ERROR, "a ping of the wrong size")
        self._count_idle()
        if not flags & ACK:
            self.write(frames.frame(PING, ACK, 0, payload))
        elif payload == GOODBYE:
            self._leave_now()

    def _goaway(self, _: int, number: int, payload: bytes) -> None:
        """The client will ask for nothing more, and hang up."""
        if number or len(payload) < 8:  # a stream, and a code
            raise Fault(PROTOCOL_ERROR if number else FRAME_SIZE_ERROR, "a farewell that is none")

    def _window_update(self, _: int, number: int, payload: bytes) -> None:
        more = frames.increment(payload)
        if number == 0:
            self.window += more
            if not more or self.window > frames.LARGEST_WINDOW:
                raise Fault(FLOW_CONTROL_ERROR if more else PROTOCOL_ERROR, "a window that is not allowed")
            self._pump()
            return
        self._require_known(number)
        stream = self._streams.get(number)
        if stream is None:
            return  # it is over already
        stream.window += more
        if not more or stream.window > frames.LARGEST_WINDOW:
            stream.cancelled()
            stream.reset(FLOW_CONTROL_ERROR if more else PROTOCOL_ERROR)
        elif stream.is_sending:
            stream.pump()

    def _push_promise(self, _: int, __: int, ___: bytes) -> None:
        raise Fault(PROTOCOL_ERROR, "clients promise nothing")

    def _require_known(self, number: int) -> None:
        if number == 0 or self._last < number <= self._final or number % 2 == 0:
            raise Fault(PROTOCOL_ERROR, "a stream that was never opened")

    def _count_reset(self) -> None:
        """Requests that are taken back as soon as they are made cost us more than their client."""
        self._resets += 1
        if self._resets > MAX_RESETS:
            raise Fault(ENHANCE_YOUR_CALM, "too many requests that nobody waits for")

    def _count_idle(self) -> None:
        self._idle_frames += 1
        if self._idle_frames > MAX_IDLE_FRAMES:
            raise Fault(ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    # The way out

    def _pump(self) -> None:
        blocked, self._blocked = self._blocked, {}
        for stream in blocked.values():
            stream.pump()

    def _flush(self) -> None:
        self._gathering = False
        if self._out:
            out, self._out = self._out, []
            if not self._transport.is_closing():
                self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _leave_now(self) -> None:
        if self._final != self._last and not self._over:
            self._final = self._last
            self.write(frames.goaway(self._last, NO_ERROR))
            if not self._streams:
                self._hang_up()

    def _end(self, code: int, what: str) -> None:
        """The client has broken the protocol."""
        self.write(frames.goaway(self._last, code, what))
        streams, self._streams = self._streams, {}
        self._blocked.clear()
        for stream in streams.values():
            stream.cancelled()
        self._hang_up()

    def _hang_up(self) -> None:
        """Close it, when what there is to read has been read: closed at once, it might be reset by what still comes."""
        if self._over:
            return
        self._over = True
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


_READ: Final[dict[int, Callable[[Connection, int, int, bytes], None]]] = {
    DATA: Connection._data,
    HEADERS: Connection._header_block,
    PRIORITY: Connection._priority,
    RST_STREAM: Connection._rst_stream,
    SETTINGS: Connection._settings,
    PUSH_PROMISE: Connection._push_promise,
    PING: Connection._ping,
    GOAWAY: Connection._goaway,
    WINDOW_UPDATE: Connection._window_update,
    CONTINUATION: Connection._continuation,
}
