"""Stream: one request and its response. Sending waits for the client's flow-control windows (`Outflow`)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headgate.service.http2.allowance import units_of_sent
from headgate.service.http2.frames import (
    DATA,
    DEFAULT_FRAME,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    HEAD,
    HEADERS,
    LARGEST_WINDOW,
    NO_ERROR,
    ProtocolError,
    frame,
    rst_stream,
    window_update,
)

if TYPE_CHECKING:
    from headgate.service.http2.connection import Connection


class Stream(ABC):
    """A stream of a connection. Each server's subclass handles requests."""

    __slots__ = (
        "_body",
        "_drained",
        "_trailers",
        "connection",
        "cost",
        "credit",
        "ended",
        "left",
        "number",
        "since",
        "taken",
    )

    def __init__(self, connection: Connection, number: int, length: int | None) -> None:
        self.connection = connection
        self.number = number
        self.since = connection.hub.now  # the event loop's time, to within a second
        self.credit = 0  # bytes that the client accepts beyond the initial window
        self.cost = 0  # units of work that the request has caused: see `allowance`
        self.left = length  # bytes of the body that are still to come, if the request declares its length
        self.taken = 0  # bytes received since the last window update
        self.ended = False  # whether the request is complete
        self._body = b""  # data that waits to be sent
        self._trailers: bytes | None = None  # sent after the body, to end the stream
        self._drained: asyncio.Future[None] | None = None

    # Overridden by subclasses

    def on_headers(self) -> None:  # noqa: B027 - not all wait for it
        """Handle the arrival of the request's header fields."""

    @abstractmethod
    def on_data(self, data: bytes) -> None:
        """Handle a part of the request's body; the last one if the stream has `ended`."""

    def answer(self) -> None:  # noqa: B027 - not all wait for it
        """Answer the request: the stream is among the connection's `ready` ones."""

    @abstractmethod
    def on_cancel(self) -> None:
        """Handle a client that cancelled the request or left. Nothing can be sent."""

    def look(self, now: float) -> None:  # noqa: B027 - not all last
        """Check deadlines. Called once a second."""

    # Used by subclasses

    def respond(self, head: bytes, body: bytes, trailers: bytes) -> None:
        """Send a whole response: headers, body and trailers. Ends the stream."""
        connection = self.connection
        outflow = connection.outflow
        size = len(body)
        if size > outflow.max_frame or size > outflow.initial_window + self.credit or size > outflow.window:
            self.begin(head)
            self.finish(trailers, body)
            return
        outflow.window -= size
        number, pack = self.number, HEAD.pack
        connection.write(
            b"%b%b%b%b%b%b"
            % (
                pack(len(head) >> 8, len(head) & 255, HEADERS, END_HEADERS, number),
                head,
                pack(size >> 8, size & 255, DATA, 0, number),
                body,
                pack(len(trailers) >> 8, len(trailers) & 255, HEADERS, END_HEADERS | END_STREAM, number),
                trailers,
            )
        )
        self._end()

    def begin(self, head: bytes) -> None:
        """Send the beginning of a response."""
        self.connection.write(frame(HEADERS, END_HEADERS, self.number, head))

    async def send(self, body: bytes) -> None:
        """Send a part of the response's body, and wait until the client has accepted it."""
        self._body += body
        self.pump()
        if self._body:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def finish(self, trailers: bytes, body: bytes = b"") -> None:
        """Send the rest of a response, and end the stream when all is sent. `trailers` may be empty."""
        self._body += body
        self._trailers = trailers
        self.pump()

    def refuse(self, head: bytes) -> None:
        """Send a response that is only headers. Ends the stream."""
        self._body = b""
        self.connection.write(frame(HEADERS, END_HEADERS | END_STREAM, self.number, head))
        self._end()

    def reset(self, code: int) -> None:
        """End the stream without a response."""
        self.connection.write(rst_stream(self.number, code))
        self.connection.forget(self)

    def admit(self) -> None:
        """Mark the request as authorized, so that its cost is not charged to the client's allowance."""
        self.connection.admit(self)

    def charge(self, units: int) -> None:
        """Charge work that the request causes. Raises `ProtocolError` if its client has caused too much."""
        self.cost += units
        self.connection.charge(units)

    def give_back(self) -> None:
        """Send a window update for the bytes that the client has sent."""
        if self.taken and not self.ended:
            self.connection.write(window_update(self.number, self.taken))
            self.taken = 0

    # Called by the connection

    def pump(self) -> None:
        """Send as much as the windows allow."""
        connection, outflow = self.connection, self.connection.outflow
        body, at, size = self._body, 0, len(self._body)
        while at < size:
            more = min(size - at, outflow.max_frame, outflow.initial_window + self.credit, outflow.window)
            if more <= 0:
                break
            connection.write(frame(DATA, 0, self.number, body[at : at + more]))
            self.credit -= more
            outflow.window -= more
            at += more
        connection.earn(units_of_sent(at))
        self._body = body[at:]
        if self._body:
            outflow.enqueue(self)
            return
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._trailers is not None:
            if self._trailers:
                connection.write(frame(HEADERS, END_HEADERS | END_STREAM, self.number, self._trailers))
            else:
                connection.write(frame(DATA, END_STREAM, self.number))
            self._end()

    @property
    def is_sending(self) -> bool:
        """Whether data waits to be sent."""
        return bool(self._body)

    def _end(self) -> None:
        if not self.ended:  # the rest of the request is not needed
            self.connection.write(rst_stream(self.number, NO_ERROR))
        self.connection.forget(self)


class Outflow:
    """A client's limits: bytes in a frame, the connection's window, and a stream's initial window. It does not send.

    A stream's own window is `initial_window` plus the stream's `credit`, so one setting changes all of them.

    A stream that waits for the connection's window is in a queue here. A stream that waits for its own window is in no
    list: the frame that widens the window names the stream. So the cost of a frame does not depend on how many streams
    wait. Streams go on once for all frames that came together.
    """

    __slots__ = ("_queue", "_was_resized", "initial_window", "max_frame", "window")

    def __init__(self) -> None:
        self.max_frame = DEFAULT_FRAME
        self.window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self._queue: OrderedDict[int, Stream] = OrderedDict()  # streams that wait for the connection's window
        self._was_resized = False

    def widen(self, more: int) -> None:
        """Widen the connection's window by `more` bytes. Raises `ProtocolError`."""
        self.window += more
        if self.window > LARGEST_WINDOW:
            raise ProtocolError(FLOW_CONTROL_ERROR, "a window that is too large")

    def resize(self, window: int) -> None:
        """Change the initial window of all streams, existing ones included."""
        self.initial_window = window
        self._was_resized = True

    def enqueue(self, stream: Stream) -> None:
        """Queue a stream that has something to send, if its own window has room."""
        if self.initial_window + stream.credit > 0:
            self._queue[stream.number] = stream

    def forget(self, stream: Stream) -> None:
        """Remove a stream that has ended."""
        self._queue.pop(stream.number, None)

    def clear(self) -> None:
        self._queue.clear()

    def pump(self, streams: Iterable[Stream]) -> None:
        """Let queued streams send as far as there is room. `streams` are all open ones. Raises `ProtocolError`."""
        if self._was_resized:
            self._was_resized = False
            for stream in streams:
                if self.initial_window + stream.credit > LARGEST_WINDOW:
                    raise ProtocolError(FLOW_CONTROL_ERROR, "a window that is too large")
                if stream.is_sending:
                    self.enqueue(stream)
        while self._queue and self.window > 0:
            self._queue.popitem(last=False)[1].pump()
