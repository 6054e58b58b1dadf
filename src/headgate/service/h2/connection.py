"""Connection: one client's, from its first byte to its last.

Frames that came together are looked at in one go, and what is to be sent in answer leaves in one go. Clients that are
slow, idle, or never finish what they begin lose their connections, as do those that break the protocol. While a client
does not read what it is sent, it is not listened to: so nothing piles up here that it has not asked for.

Work per byte is bounded, whatever a client sends. What a frame costs does not depend on how many streams there are.
Frames that bring nothing are charged to the client's `Allowance`, and a client that has used it up is cut off.
Connections take `Turns`, so that none holds up the others.
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any, Final

from headgate.service.h2 import allowance, frames
from headgate.service.h2.allowance import Allowance
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
from headgate.service.h2.headers import MAX_LIST, Fields, HeaderReader
from headgate.service.h2.hub import App, Hub, Malformed
from headgate.service.h2.outflow import Outflow
from headgate.service.h2.stream import Stream

FIRST_SECONDS: Final = 10.0  # in which a client has to be ready to ask, from when it connects
FRAME_SECONDS: Final = 10.0  # in which a frame, or a header block of several, has to be here
IDLE_SECONDS: Final = 600.0  # without a request, after which a client is told to connect again when it has one
UNREAD_SECONDS: Final = 30.0  # in which a client has to take something of what it is sent
LINGER_SECONDS: Final = 1.0  # for a client to hang up by itself, so that it has read all there is
GOODBYE_SECONDS: Final = 0.5  # for a client to hear that the server stops, before that counts
HELD_BACK_SECONDS: Final = 5  # for which a client may ask for more than there is time for
MAX_STREAMS: Final = 1_000  # at a time
MAX_STREAMS_OF_ALL: Final = 10_000  # at a time, of all clients: then strangers have to wait
FEW_STREAMS: Final = 10  # that a stranger may have even then
MAX_ABANDONED: Final = 2 * MAX_STREAMS  # requests that were answered before they were here as a whole
MAX_UNREAD: Final = 65_536  # bytes that may wait for this connection's turn
SMALL: Final = 64  # bytes: a frame with less of a body costs more than it brings
MAX_BLOCK: Final = MAX_LIST  # bytes of a header block
MAX_PARTS: Final = 64  # frames that a header block comes in
WINDOW: Final = 16 * 1024 * 1024  # bytes that a client may send on all streams together, until we have looked at them
GOODBYE: Final = b"headgate"  # what a ping says that the server stops by


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, app: App, hub: Hub) -> None:
        self.hub = hub
        self.used = hub.now  # when something last was asked or answered
        self.known = False  # whether the client has the right to make calls: until it has made one, it is a stranger
        self.address: str | None = None  # of the client
        self.outflow = Outflow()
        self._app = app
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._rest = b""  # of what came: frames that wait for their turn, or one that is not whole yet
        self._rest_since = inf
        self._held_back = False  # whether it is not read from until there is time for it
        self._held_back_for = 0  # seconds
        self._greeted = self._settled = False  # whether the preface is here, and the client's settings
        self._headers: HeaderReader[Any] = HeaderReader(app.head)
        self._block: tuple[int, int, list[bytes]] | None = None  # flags, stream, and parts of a block that goes on
        self._streams: dict[int, Stream] = {}
        # Streams that ended before their requests did: how many bytes those still have to have, where that is known.
        self._abandoned: OrderedDict[int, int | None] = OrderedDict()
        self._allowance = Allowance()
        self._last = 0  # the latest stream of the client's
        self._final = frames.LARGEST_STREAM  # streams above are not looked at: the client was told
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
        self.hub.turns.forget(self)
        self._over = True
        self._rest = b""
        self._cancel_streams()

    def pause_writing(self) -> None:
        self._unread_since = self._loop.time()
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._unread_since = inf
        if not self._held_back and not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._rest = self._rest + data if self._rest else data
        if not self._held_back:
            self.hub.turns.work(self)
            if len(self._rest) > MAX_UNREAD:
                self._hold_back()

    # What turns call

    def work(self, until: float) -> bool:
        """Look at frames that are here as a whole, until then. Returns whether there are more."""
        if self._over:
            return False
        data, size = self._rest, len(self._rest)
        self._gathering = True
        try:
            read = self._read(data, until)
            self.outflow.pump(self._streams.values())
        except Fault as fault:
            self._end(fault.code, str(fault))
            read = size
        self._rest = data[read:] if read < size else b""
        self._flush()
        has_more = self._has_frame()
        if not self._rest and self._block is None:
            self._rest_since = inf
        elif has_more:
            self._rest_since = inf  # it is we who are late
        elif self._rest_since == inf or (read and self._block is None):
            self._rest_since = self._loop.time()
        if not has_more:
            self._go_on()
        elif self._must_wait():
            self._hold_back()
            return False
        return has_more

    # What streams call

    def write(self, data: bytes) -> None:
        """Send frames, with all others of this tick; nothing, when it is over."""
        if self._over:
            return
        self._out.append(data)
        if not self._gathering:
            self._gathering = True
            self._loop.call_soon(self._flush)

    def admit(self, stream: Stream) -> None:
        """The client has the right to make this request."""
        self.known = True
        self.earn(stream.cost + allowance.ADMITTED)
        stream.cost = 0

    def earn(self, units: int) -> None:
        """Let the client cause so much more work."""
        self._allowance.earn(units)

    def charge(self, units: int) -> None:
        """Count work. Raises `Fault` if the client has caused too much that brings nothing."""
        if not self.known:
            self.hub.strangers.left -= units
        if not self._allowance.spend(units):
            raise Fault(ENHANCE_YOUR_CALM, "too much work for nothing")

    def closed(self, stream: Stream) -> None:
        """It is over."""
        if self._streams.pop(stream.number, None) is None:
            return
        self.hub.streams -= 1
        self.outflow.forget(stream)
        if not stream.ended:
            self._abandon(stream.number, stream.left)
        self.used = self.hub.now
        if self._final == self._last and not self._streams:
            self._hang_up()

    # What the server calls

    def look(self, now: float) -> None:
        """Once a second: end it if the client keeps us waiting."""
        self._allowance.refill()
        if not self._held_back:
            self._held_back_for = 0
        elif self._held_back_for >= HELD_BACK_SECONDS:
            self.abort()  # it has asked for more than there is time for; or it is gone, which we do not see meanwhile
            return
        else:
            self._held_back_for += 1
            self.hub.turns.work_later(self)
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

    def _read(self, data: bytes, until: float) -> int:
        """Look at frames that are whole, until then or until others have to come first: up to where. Raises `Fault`."""
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
            if self._over or monotonic() > until or self._must_wait():
                break
        return at

    def _has_frame(self) -> bool:
        """Whether a frame is here as a whole that was not looked at yet."""
        rest = self._rest
        if len(rest) < frames.HEAD_SIZE or self._over:
            return False
        return len(rest) >= frames.HEAD_SIZE + int.from_bytes(rest[:3], "big")

    def _must_wait(self) -> bool:
        """Whether strangers have caused so much work in this second that this one has to wait for the next."""
        return not self.known and self.hub.strangers.must_wait(self._allowance)

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

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block is not None and kind != CONTINUATION:
            raise Fault(PROTOCOL_ERROR, "a header block that does not go on")
        if not self._settled and kind != SETTINGS:
            raise Fault(PROTOCOL_ERROR, "settings come first")
        read = _READ.get(kind)
        if read is not None:
            read(self, flags, number, payload)
        else:  # what nobody knows is passed over
            self.charge(allowance.FRAME)

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        self._take(len(payload))
        stream = self._streams.get(number)
        if flags & frames.PADDED:
            padded, payload = len(payload), frames.unpadded(flags, payload)
        else:
            padded = len(payload)
        if stream is None:
            self._late_data(flags, number, len(payload))
            return
        if stream.ended:
            raise Fault(STREAM_CLOSED, "data behind the end of a stream")
        if len(payload) < SMALL and not (payload and flags & END_STREAM):
            stream.charge(allowance.FRAME)
        stream.taken += padded
        if stream.taken > self._app.window:
            raise Fault(FLOW_CONTROL_ERROR, "more data on a stream than there is room for")
        if flags & END_STREAM:
            stream.ended = True
        if stream.left is not None:
            stream.left -= len(payload)
            if stream.left < 0 or (stream.ended and stream.left):
                self._reset(stream, PROTOCOL_ERROR)
                return
        stream.received(payload)

    def _take(self, size: int) -> None:
        """Count bytes of bodies, and give room for as many back in time. Raises `Fault`."""
        self._taken += size
        if self._taken > WINDOW:
            raise Fault(FLOW_CONTROL_ERROR, "more data than there is room for")
        if self._taken > WINDOW // 2:
            self.write(frames.window_update(0, self._taken))
            self._taken = 0

    def _late_data(self, flags: int, number: int, size: int) -> None:
        """Some of a request's body, of which nobody waits for more. Raises `Fault` where it must not be."""
        self.charge(allowance.FRAME)
        self._require_known(number)
        if number > self._final:
            return
        if number not in self._abandoned:
            raise Fault(STREAM_CLOSED, "data behind the end of a stream")
        left = self._abandoned[number]
        if left is not None:
            left = self._abandoned[number] = left - size
            if left < 0 or (left and flags & END_STREAM):
                raise Fault(PROTOCOL_ERROR, "a body that is not as long as its request says")
        if flags & END_STREAM:
            del self._abandoned[number]

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
        self.charge(allowance.FRAME)
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
            self._end_with_fields(stream, flags, block)
        elif number > self._final or number in self._abandoned:  # nobody looks at it, and the client has not heard yet
            self.charge(allowance.FRAME)
            fields, _, _ = self._read_fields(block)
            if self._abandoned.pop(number, None) or (number <= self._final and not _are_trailers(flags, fields)):
                raise Fault(PROTOCOL_ERROR, "headers in the wrong place, or a body that is not as long as was said")
        elif number <= self._last:
            raise Fault(STREAM_CLOSED, "headers of a stream that is over")
        else:
            self._open(flags, number, block)

    def _read_fields(self, block: bytes) -> tuple[Fields, bool, int]:
        """The fields of a block, whether it changed the table, and what it cost to read. Raises `Fault`."""
        fields, count, changed = self._headers.read(block)
        units = allowance.units_of_block(len(block), count)
        self.charge(units)
        return fields, changed, units

    def _end_with_fields(self, stream: Stream, flags: int, block: bytes) -> None:
        fields, _, _ = self._read_fields(block)
        if stream.ended or not flags & END_STREAM:
            raise Fault(STREAM_CLOSED if stream.ended else PROTOCOL_ERROR, "headers in the wrong place")
        stream.ended = True
        if stream.left or not _are_trailers(flags, fields):
            self._reset(stream, PROTOCOL_ERROR)
        else:
            stream.received(b"")

    def _open(self, flags: int, number: int, block: bytes) -> None:
        """A new request."""
        self._last = number
        cost = allowance.REQUEST
        self.charge(cost)
        head = self._headers.recall(block)
        if head is None:
            fields, changed, units = self._read_fields(block)
            cost += units
            try:
                head = self._headers.make(block, fields, changed=changed)
            except Malformed:
                self._refuse(flags, number, PROTOCOL_ERROR)
                return
        hub = self.hub
        most = FEW_STREAMS if hub.streams >= MAX_STREAMS_OF_ALL and not self.known else MAX_STREAMS
        if len(self._streams) >= most:
            self._refuse(flags, number, REFUSED_STREAM)
            return
        stream = self._streams[number] = self._app.stream(self, number, head)
        hub.streams += 1
        stream.cost = cost
        if flags & END_STREAM:
            stream.ended = True
            if stream.left:
                self._reset(stream, PROTOCOL_ERROR)
                return
        stream.opened()
        if stream.ended and number in self._streams:
            stream.received(b"")

    def _refuse(self, flags: int, number: int, code: int) -> None:
        """End a stream that has not begun."""
        self.write(frames.rst_stream(number, code))
        if not flags & END_STREAM:
            self._abandon(number, None)

    def _reset(self, stream: Stream, code: int) -> None:
        """End a stream whose client breaks the protocol."""
        stream.cancelled()
        stream.reset(code)

    def _abandon(self, number: int, left: int | None) -> None:
        """Remember that a stream is over, and its request is not."""
        self._abandoned[number] = left
        if len(self._abandoned) > MAX_ABANDONED:
            self._abandoned.popitem(last=False)

    def _priority(self, _: int, number: int, payload: bytes) -> None:
        if number == 0 or len(payload) != 5:
            raise Fault(FRAME_SIZE_ERROR if number else PROTOCOL_ERROR, "a priority of nothing")
        if frames.NUMBER.unpack_from(payload)[0] & frames.LARGEST_STREAM == number:
            raise Fault(PROTOCOL_ERROR, "a stream that depends on itself")
        self.charge(allowance.FRAME)

    def _rst_stream(self, _: int, number: int, payload: bytes) -> None:
        if len(payload) != frames.NUMBER.size:
            raise Fault(FRAME_SIZE_ERROR, "a reset of the wrong size")
        self._require_known(number)
        self.charge(allowance.FRAME)
        stream = self._streams.get(number)
        if stream is not None:
            stream.cancelled()
            stream.ended = True
            self.closed(stream)
        else:
            self._abandoned.pop(number, None)

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Fault(PROTOCOL_ERROR, "settings of a stream")
        self.charge(allowance.FRAME + len(payload) // (8 * frames.SETTING.size))
        if flags & ACK:
            if payload or not self._settled:
                raise Fault(FRAME_SIZE_ERROR if payload else PROTOCOL_ERROR, "an acknowledgement that is none")
            return
        values = frames.set_by(payload)
        outflow = self.outflow
        if frames.INITIAL_WINDOW_SIZE in values:
            outflow.resize(values[frames.INITIAL_WINDOW_SIZE])
        largest = values.get(frames.MAX_FRAME_SIZE, outflow.max_frame)
        outflow.max_frame = min(largest, 4 * frames.DEFAULT_FRAME)  # larger ones would hold up the other streams
        self._settled = True
        self.write(frames.frame(SETTINGS, ACK, 0))

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Fault(PROTOCOL_ERROR, "a ping of a stream")
        if len(payload) != 8:
            raise Fault(FRAME_SIZE_ERROR, "a ping of the wrong size")
        self.charge(allowance.FRAME)
        if not flags & ACK:
            self.write(frames.frame(PING, ACK, 0, payload))
        elif payload == GOODBYE:
            self._leave_now()

    def _goaway(self, _: int, number: int, payload: bytes) -> None:
        """The client will ask for nothing more, and hang up."""
        if number or len(payload) < 8:  # a stream, and a code
            raise Fault(PROTOCOL_ERROR if number else FRAME_SIZE_ERROR, "a farewell that is none")
        self.charge(allowance.FRAME)

    def _window_update(self, _: int, number: int, payload: bytes) -> None:
        more = frames.increment(payload)
        self.charge(allowance.FRAME)
        stream = self._streams.get(number)
        if stream is None:
            if not more:
                raise Fault(PROTOCOL_ERROR, "a window that does not change")
            if number:
                self._require_known(number)  # and is over already
            else:
                self.outflow.widen(more)
            return
        stream.credit += more
        if not more or self.outflow.initial_window + stream.credit > frames.LARGEST_WINDOW:
            self._reset(stream, FLOW_CONTROL_ERROR if more else PROTOCOL_ERROR)
        elif stream.is_sending:
            self.outflow.enqueue(stream)

    def _push_promise(self, _: int, __: int, ___: bytes) -> None:
        raise Fault(PROTOCOL_ERROR, "clients promise nothing")

    def _require_known(self, number: int) -> None:
        if number == 0 or self._last < number <= self._final or number % 2 == 0:
            raise Fault(PROTOCOL_ERROR, "a stream that was never opened")

    # The way out

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
        self._cancel_streams()
        self._hang_up()

    def _cancel_streams(self) -> None:
        streams, self._streams = self._streams, {}
        self.hub.streams -= len(streams)
        self.outflow.clear()
        for stream in streams.values():
            stream.cancelled()

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


def _are_trailers(flags: int, fields: Fields) -> bool:
    """Whether header fields may end a request."""
    return bool(flags & END_STREAM) and not any(name[:1] == b":" for name, _ in fields)


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
