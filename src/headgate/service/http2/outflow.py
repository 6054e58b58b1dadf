"""Outflow: a client's flow-control windows, and the streams that wait for them. It does not send.

A stream that waits for the connection's window is in a queue here. A stream that waits for its own window is in no
list: the frame that widens the window names the stream. So the cost of a frame does not depend on how many streams
wait. Streams go on once for all frames that came together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headgate.service.http2.frames import (
    DEFAULT_FRAME,
    DEFAULT_WINDOW,
    FLOW_CONTROL_ERROR,
    LARGEST_WINDOW,
    ProtocolError,
)

if TYPE_CHECKING:
    from headgate.service.http2.stream import Stream


class Outflow:
    """A client's limits: bytes in a frame, the connection's window, and a stream's initial window.

    A stream's own window is `initial_window` plus the stream's `credit`, so one setting changes all of them.
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
