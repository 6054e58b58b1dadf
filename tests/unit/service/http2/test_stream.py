"""Outflow: which streams go on, and how much work that takes."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.service.http2.frames import LARGEST_WINDOW, ProtocolError
from headgate.service.http2.stream import Outflow


class Sending:
    """A stream that has so many bytes to send."""

    def __init__(self, outflow: Outflow, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.credit = 0
        self.pumped = 0
        self._outflow = outflow

    @property
    def is_sending(self) -> bool:
        return self.size > 0

    def pump(self) -> None:
        self.pumped += 1
        more = min(self.size, self._outflow.window, self._outflow.initial_window + self.credit)
        self.size -= more
        self.credit -= more
        self._outflow.window -= more
        if self.size:
            stream: Any = self
            self._outflow.enqueue(stream)


def streams_of(outflow: Outflow, number: int, size: int) -> Any:
    return [Sending(outflow, 1 + 2 * one, size) for one in range(number)]


def test_streams_that_wait_for_themselves_cost_nothing() -> None:
    outflow = Outflow()
    outflow.resize(0)
    streams = streams_of(outflow, 1_000, 7)
    for _ in range(100):
        outflow.widen(1)
        outflow.pump(streams)
    assert sum(stream.pumped for stream in streams) == 0


def test_streams_that_wait_for_the_connection_go_on_in_order_while_there_is_room() -> None:
    outflow = Outflow()
    outflow.window = 0
    streams = streams_of(outflow, 1_000, 7)
    for stream in streams:
        outflow.enqueue(stream)
    for _ in range(100):
        outflow.widen(1)
        outflow.pump(streams)
    assert sum(stream.pumped for stream in streams) == 100  # one for each byte of room
    outflow.widen(10_000)
    outflow.pump(streams)
    assert [stream.size for stream in streams] == [0] * 1_000
    assert outflow.window == 10_100 - 7_000


def test_a_setting_reaches_all_streams() -> None:
    outflow = Outflow()
    outflow.resize(0)
    streams = streams_of(outflow, 10, 7)
    streams[0].credit = -3
    outflow.resize(5)
    outflow.pump(streams)
    assert [stream.size for stream in streams] == [5] + [2] * 9
    outflow.resize(7)
    outflow.pump(streams)
    assert [stream.size for stream in streams] == [3] + [0] * 9


def test_windows_that_are_too_large() -> None:
    outflow = Outflow()
    with pytest.raises(ProtocolError):
        outflow.widen(LARGEST_WINDOW)
    outflow = Outflow()
    streams = streams_of(outflow, 1, 7)
    streams[0].credit = 1
    outflow.resize(LARGEST_WINDOW)
    with pytest.raises(ProtocolError):
        outflow.pump(streams)


def test_a_stream_that_is_over_does_not_go_on() -> None:
    outflow = Outflow()
    outflow.window = 0
    (stream,) = streams_of(outflow, 1, 7)
    outflow.enqueue(stream)
    outflow.forget(stream)
    outflow.widen(100)
    outflow.pump([])
    assert stream.pumped == 0
