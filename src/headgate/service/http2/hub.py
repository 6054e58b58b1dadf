"""Hub: the state that all connections of one server share; and App: the application that they serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from headgate.service.http2.allowance import CommonAllowance
from headgate.service.http2.headers import Fields
from headgate.service.http2.scheduler import TURN, Scheduler
from headgate.service.listener import make_room

if TYPE_CHECKING:
    from headgate.service.http2.connection import Connection
    from headgate.service.http2.stream import Stream


class Malformed(Exception):
    """A request's header fields are invalid."""


class App(NamedTuple):
    """A server's application: `head` reads a request's header fields, and `stream` makes a stream from the result.

    `head` may raise `Malformed`. `window` is how many bytes of a request may come before its stream opens the window.
    """

    head: Callable[[Fields], Any]
    stream: Callable[[Connection, int, Any], Stream]
    window: int


class Hub:
    """The state that connections share. Belongs to one event loop."""

    def __init__(self, max_connections: int) -> None:
        loop = asyncio.get_running_loop()
        self._call_soon = loop.call_soon
        self.connections: set[Connection] = set()
        self.max_connections = max_connections
        self.now = 0.0  # the event loop's time, to within a second
        self.held = 0  # bytes of incomplete requests
        self.streams = 0  # requests in progress
        self.strangers = CommonAllowance()
        self.scheduler = Scheduler(loop.call_soon)

    def tick(self, now: float) -> None:
        """Refill allowances, and look at all connections. Called once a second."""
        self.now = now
        self.strangers.refill()
        self._look(iter(list(self.connections)), now)

    def make_room(self) -> bool:
        """Close some idle connections, the longest idle first. Returns whether there were any."""
        idle = sorted((one for one in self.connections if not one.busy), key=lambda one: one.used)
        return make_room(idle)

    def _look(self, connections: Iterator[Connection], now: float) -> None:
        """Look at connections, in several steps if that takes long."""
        until = monotonic() + TURN
        for connection in connections:
            connection.look(now)
            if monotonic() > until:
                self._call_soon(self._look, connections, now)
                return
