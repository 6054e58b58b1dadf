"""Receiver: interprets the frames of one client, and keeps its streams. The connection does the sending.

The cost of a frame does not depend on the number of streams. Unproductive frames are charged to the client.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final

from headgate.service.http2 import allowance, frames
from headgate.service.http2.frames import (
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
    ProtocolError,
)
from headgate.service.http2.headers import MAX_LIST, Fields, HeaderReader
from headgate.service.http2.hub import App, Malformed
from headgate.service.http2.stream import Stream

if TYPE_CHECKING:
    from headgate.service.http2.connection import Connection

MAX_STREAMS: Final = 1_000  # of one client, at a time
MAX_STREAMS_OF_ALL: Final = 10_000  # of all clients, at a time: beyond that, strangers are refused
FEW_STREAMS: Final = 10  # that a stranger may still have then
MAX_ABANDONED: Final = 2 * MAX_STREAMS  # requests that were answered before their body was complete
MAX_READY: Final = 8  # requests that are read before they are answered: fewer than FEW_STREAMS
SMALL: Final = 64  # bytes: a smaller part of a body costs more than it brings
MAX_BLOCK: Final = MAX_LIST  # bytes of a header block
MAX_PARTS: Final = 64  # frames of one header block
WINDOW: Final = 16 * 1024 * 1024  # bytes that a client may send on all streams together before we have read them
GOODBYE: Final = b"headgate"  # the payload of the PING that follows the first GOAWAY


class Receiver:
    """Reads the frames of one connection, and opens, feeds and ends its streams."""

    def __init__(self, connection: Connection, app: App) -> None:
        self.streams: dict[int, Stream] = {}
        self.last = 0  # the client's latest stream
        self.final = frames.LARGEST_STREAM  # streams above it are ignored: GOAWAY was sent
        self.is_settled = False  # whether the client's settings have arrived
        self.block: tuple[int, int, list[bytes]] | None = None  # flags, stream, and parts of an unfinished header block
        self._connection = connection
        self._app = app
        self._greeted = False  # whether the preface has arrived
        self._headers = HeaderReader(app.head)
        # Streams that ended before their requests: the bytes that are still to come, if known.
        self._abandoned: OrderedDict[int, int | None] = OrderedDict()
        self._taken = 0  # bytes received since the last window update

    def read(self, data: bytes, until: float) -> int:
        """Read complete frames until the time `until`, and return how far. Raises `ProtocolError`."""
        at, size = 0, len(data)
        if not self._greeted:
            if not data.startswith(PREFACE):
                if PREFACE.startswith(data):
                    return 0
                raise ProtocolError(PROTOCOL_ERROR, "this port speaks HTTP/2 only, for gRPC")
            self._greeted, at = True, len(PREFACE)
        unpack, head_size, connection = frames.HEAD.unpack_from, frames.HEAD_SIZE, self._connection
        while size - at >= head_size:
            high, low, kind, flags, number = unpack(data, at)
            length = high << 8 | low
            if length > frames.DEFAULT_FRAME:
                raise ProtocolError(FRAME_SIZE_ERROR, "a frame that is too large")
            end = at + head_size + length
            if end > size:
                break
            payload = data[at + head_size : end]
            at = end
            if self.block is not None or not self.is_settled:
                self._require_in_order(kind)
            if kind > HEADERS or len(connection.ready) >= MAX_READY:
                connection.answer(until)  # answer before handling other frames
            handle = _HANDLERS.get(kind, Receiver._unknown)
            handle(self, flags, number & frames.LARGEST_STREAM, payload)
            if connection.is_over or monotonic() > until or (not connection.known and connection.must_wait()):
                break
        return at

    def _require_in_order(self, kind: int) -> None:
        """Raises `ProtocolError` if a frame of another kind has to come first."""
        if self.block is not None and kind != CONTINUATION:
            raise ProtocolError(PROTOCOL_ERROR, "a header block must continue with CONTINUATION")
        if not self.is_settled and kind != SETTINGS:
            raise ProtocolError(PROTOCOL_ERROR, "SETTINGS must come first")

    def _unknown(self, _: int, __: int, ___: bytes) -> None:
        """Ignore a frame of an unknown kind."""
        self._connection.charge(allowance.FRAME)

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        padded = size = len(payload)
        self._taken += padded
        if self._taken > WINDOW // 2:
            self._give_room()
        if flags & frames.PADDED:
            payload = frames.strip_padding(flags, payload)
            size = len(payload)
        stream = self.streams.get(number)
        if stream is None:
            self._late_data(flags, number, size)
            return
        if stream.ended:
            raise ProtocolError(STREAM_CLOSED, "DATA after the end of a stream")
        if size < SMALL and not (size and flags & END_STREAM):
            stream.charge(allowance.FRAME)
        stream.taken += padded
        if stream.taken > self._app.window:
            raise ProtocolError(FLOW_CONTROL_ERROR, "more DATA than the window of the stream allows")
        if flags & END_STREAM:
            stream.ended = True
        if stream.left is not None:
            stream.left -= size
            if stream.left < 0 or (stream.ended and stream.left):
                self._reset(stream, PROTOCOL_ERROR)
                return
        stream.on_data(payload)

    def _give_room(self) -> None:
        """Let the client send as many more bytes of bodies as it has sent. Raises `ProtocolError`."""
        if self._taken > WINDOW:
            raise ProtocolError(FLOW_CONTROL_ERROR, "more DATA than the window of the connection allows")
        self._connection.write(frames.window_update(0, self._taken))
        self._taken = 0

    def _late_data(self, flags: int, number: int, size: int) -> None:
        """Ignore data for a request that has ended. Raises `ProtocolError` if no data is allowed there."""
        self._connection.charge(allowance.FRAME)
        self._require_known(number)
        if number > self.final:
            return
        if number not in self._abandoned:
            raise ProtocolError(STREAM_CLOSED, "DATA after the end of a stream")
        left = self._abandoned[number]
        if left is not None:
            left = self._abandoned[number] = left - size
            if left < 0 or (left and flags & END_STREAM):
                raise ProtocolError(PROTOCOL_ERROR, "a body that is not as long as its request says")
        if flags & END_STREAM:
            del self._abandoned[number]

    def _header_block(self, flags: int, number: int, payload: bytes) -> None:
        if flags & (frames.PADDED | frames.PRIORITISED):
            payload = frames.block(flags, number, payload)
        if number % 2 == 0:
            raise ProtocolError(PROTOCOL_ERROR, "the number of a client's stream must be odd")
        if flags & END_HEADERS:
            self._begin(flags, number, payload)
        else:
            self.block = flags, number, [payload]
            self._connection.expect_more()

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self.block is None or self.block[1] != number:
            raise ProtocolError(PROTOCOL_ERROR, "CONTINUATION without HEADERS before it")
        self._connection.charge(allowance.FRAME)
        first_flags, _, parts = self.block
        parts.append(payload)
        if len(parts) > MAX_PARTS or sum(map(len, parts)) > MAX_BLOCK:
            raise ProtocolError(ENHANCE_YOUR_CALM, "a header block that is too large")
        if flags & END_HEADERS:
            self.block = None
            self._begin(first_flags, number, b"".join(parts))

    def _begin(self, flags: int, number: int, block: bytes) -> None:
        """Begin a request with its header fields; or accept the trailers after its body, which are ignored."""
        stream = self.streams.get(number)
        if stream is not None:
            self._end_with_fields(stream, flags, block)
        elif number > self.final or number in self._abandoned:  # ignored: the client does not know yet
            self._connection.charge(allowance.FRAME)
            fields, _, _ = self._read_fields(block)
            if self._abandoned.pop(number, None) or (number <= self.final and not _are_trailers(flags, fields)):
                raise ProtocolError(PROTOCOL_ERROR, "unexpected HEADERS, or a body of the wrong length")
        elif number <= self.last:
            raise ProtocolError(STREAM_CLOSED, "HEADERS of a closed stream")
        else:
            self._open(flags, number, block)

    def _read_fields(self, block: bytes) -> tuple[Fields, bool, int]:
        """Return a block's fields, whether it changed the table, and the cost to read it. Raises `ProtocolError`."""
        fields, count, changed = self._headers.read(block)
        units = allowance.units_of_block(len(block), count)
        self._connection.charge(units)
        return fields, changed, units

    def _end_with_fields(self, stream: Stream, flags: int, block: bytes) -> None:
        fields, _, _ = self._read_fields(block)
        if stream.ended or not flags & END_STREAM:
            raise ProtocolError(STREAM_CLOSED if stream.ended else PROTOCOL_ERROR, "unexpected HEADERS")
        stream.ended = True
        if stream.left or not _are_trailers(flags, fields):
            self._reset(stream, PROTOCOL_ERROR)
        else:
            stream.on_data(b"")

    def _open(self, flags: int, number: int, block: bytes) -> None:
        """Open a stream for a new request."""
        self.last = number
        cost = allowance.REQUEST
        self._connection.charge(cost)
        head = self._headers.recall(block)
        if head is None:
            fields, changed, units = self._read_fields(block)
            cost += units
            try:
                head = self._headers.make(block, fields, changed=changed)
            except Malformed:
                self._refuse(flags, number, PROTOCOL_ERROR)
                return
        hub = self._connection.hub
        max_streams = FEW_STREAMS if hub.streams >= MAX_STREAMS_OF_ALL and not self._connection.known else MAX_STREAMS
        if len(self.streams) >= max_streams:
            self._refuse(flags, number, REFUSED_STREAM)
            return
        stream = self.streams[number] = self._app.stream(self._connection, number, head)
        hub.streams += 1
        stream.cost = cost
        if flags & END_STREAM:
            stream.ended = True
            if stream.left:
                self._reset(stream, PROTOCOL_ERROR)
                return
        stream.on_headers()
        if stream.ended and number in self.streams:
            stream.on_data(b"")

    def _refuse(self, flags: int, number: int, code: int) -> None:
        """Reset a stream that has not begun."""
        self._connection.write(frames.rst_stream(number, code))
        if not flags & END_STREAM:
            self.abandon(number, None)

    def _reset(self, stream: Stream, code: int) -> None:
        """Reset a stream whose client broke the protocol."""
        stream.on_cancel()
        stream.reset(code)

    def abandon(self, number: int, left: int | None) -> None:
        """Remember a stream that ended before its request."""
        self._abandoned[number] = left
        if len(self._abandoned) > MAX_ABANDONED:
            self._abandoned.popitem(last=False)

    def _priority(self, _: int, number: int, payload: bytes) -> None:
        if number == 0 or len(payload) != 5:
            raise ProtocolError(FRAME_SIZE_ERROR if number else PROTOCOL_ERROR, "an invalid PRIORITY")
        if frames.NUMBER.unpack_from(payload)[0] & frames.LARGEST_STREAM == number:
            raise ProtocolError(PROTOCOL_ERROR, "a stream that depends on itself")
        self._connection.charge(allowance.FRAME)

    def _rst_stream(self, _: int, number: int, payload: bytes) -> None:
        if len(payload) != frames.NUMBER.size:
            raise ProtocolError(FRAME_SIZE_ERROR, "RST_STREAM of the wrong size")
        self._require_known(number)
        self._connection.charge(allowance.FRAME)
        stream = self.streams.get(number)
        if stream is not None:
            stream.on_cancel()
            stream.ended = True
            self._connection.forget(stream)
        else:
            self._abandoned.pop(number, None)

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ProtocolError(PROTOCOL_ERROR, "SETTINGS of a stream")
        self._connection.charge(allowance.FRAME + len(payload) // (8 * frames.SETTING.size))
        if flags & ACK:
            if payload or not self.is_settled:
                raise ProtocolError(FRAME_SIZE_ERROR if payload else PROTOCOL_ERROR, "an invalid SETTINGS with ACK")
            return
        values = frames.read_settings(payload)
        outflow = self._connection.outflow
        if frames.INITIAL_WINDOW_SIZE in values:
            outflow.resize(values[frames.INITIAL_WINDOW_SIZE])
        largest = values.get(frames.MAX_FRAME_SIZE, outflow.max_frame)
        outflow.max_frame = min(largest, 4 * frames.DEFAULT_FRAME)  # larger ones would delay other streams
        self.is_settled = True
        self._connection.write(frames.frame(SETTINGS, ACK, 0))

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ProtocolError(PROTOCOL_ERROR, "PING of a stream")
        if len(payload) != 8:
            raise ProtocolError(FRAME_SIZE_ERROR, "PING of the wrong size")
        self._connection.charge(allowance.FRAME)
        if not flags & ACK:
            self._connection.write(frames.frame(PING, ACK, 0, payload))
        elif payload == GOODBYE:
            self._connection.leave_now()

    def _goaway(self, _: int, number: int, payload: bytes) -> None:
        """Accept the client's GOAWAY: it will close the connection."""
        if number or len(payload) < 8:  # a stream, and a code
            raise ProtocolError(PROTOCOL_ERROR if number else FRAME_SIZE_ERROR, "GOAWAY of a stream, or too short")
        self._connection.charge(allowance.FRAME)

    def _window_update(self, _: int, number: int, payload: bytes) -> None:
        more = frames.increment(payload)
        self._connection.charge(allowance.FRAME)
        stream = self.streams.get(number)
        if stream is None:
            if not more:
                raise ProtocolError(PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            if number:
                self._require_known(number)  # the stream has ended
            else:
                self._connection.outflow.widen(more)
            return
        stream.credit += more
        if not more or self._connection.outflow.initial_window + stream.credit > frames.LARGEST_WINDOW:
            self._reset(stream, FLOW_CONTROL_ERROR if more else PROTOCOL_ERROR)
        elif stream.is_sending:
            self._connection.outflow.enqueue(stream)

    def _push_promise(self, _: int, __: int, ___: bytes) -> None:
        raise ProtocolError(PROTOCOL_ERROR, "a client must not send PUSH_PROMISE")

    def _require_known(self, number: int) -> None:
        if number == 0 or self.last < number <= self.final or number % 2 == 0:
            raise ProtocolError(PROTOCOL_ERROR, "a stream that was never opened")

    def cancel_streams(self) -> None:
        streams, self.streams = self.streams, {}
        self._connection.hub.streams -= len(streams)
        self._connection.outflow.clear()
        for stream in streams.values():
            stream.on_cancel()


def _are_trailers(flags: int, fields: Fields) -> bool:
    """Return whether header fields are valid trailers."""
    return bool(flags & END_STREAM) and not any(name[:1] == b":" for name, _ in fields)


_HANDLERS: Final[dict[int, Callable[[Receiver, int, int, bytes], None]]] = {
    DATA: Receiver._data,
    HEADERS: Receiver._header_block,
    PRIORITY: Receiver._priority,
    RST_STREAM: Receiver._rst_stream,
    SETTINGS: Receiver._settings,
    PUSH_PROMISE: Receiver._push_promise,
    PING: Receiver._ping,
    GOAWAY: Receiver._goaway,
    WINDOW_UPDATE: Receiver._window_update,
    CONTINUATION: Receiver._continuation,
}
