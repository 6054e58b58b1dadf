"""Connections to one server, for asyncio: the idle ones, and the one that is being opened.

They are opened one at a time, in the background, with their own time limit: a caller that times out does not interrupt
this, and the next caller finds the connection open. The event loop references each connection, so this module closes
the connections of a store that is garbage-collected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from weakref import finalize

from headgate.stores.redis.aio_connection import AsyncConnection
from headgate.stores.redis.faults import FAULTS
from headgate.stores.redis.options import ConnectionParams


class AsyncPool:
    """Calls `opened` with each new connection, or with the error if opening fails.

    `budget` is the seconds that opening one may take, by the clock passed to `tick`.
    """

    def __init__(self, params: ConnectionParams, budget: float, opened: Callable[[Exception | None], None]) -> None:
        self.opening_since: float | None = None  # by the clock passed to `open`; None: none is being opened
        self.began = 0.0  # when the last one began to be opened, by the event loop's clock
        self._params = params
        self._budget = budget
        self._opened = opened
        self._idle: list[AsyncConnection] = []  # never replaced by another list
        finalize(self, _let_go, self._idle).atexit = False
        self._task: asyncio.Task[None] | None = None
        self._overdue = False

    def take(self) -> AsyncConnection | None:
        """Return the idle connection that was used last."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    @property
    def idle(self) -> int:
        """How many connections are idle."""
        return len(self._idle)

    def give_back(self, connection: AsyncConnection) -> None:
        self._idle.append(connection)

    def open(self, now: float) -> None:
        """Open one more in the background, unless one is being opened."""
        if self._task is None:
            self.opening_since, self._overdue = now, False
            loop = asyncio.get_running_loop()
            self.began = loop.time()
            self._task = loop.create_task(self._open(AsyncConnection(loop)), context=Context())

    def tick(self, now: float) -> None:
        """Give up an attempt that takes longer than its time limit."""
        if self._task is not None and self.opening_since is not None and now - self.opening_since >= self._budget:
            self._overdue = True
            self._task.cancel()

    def doubt(self, since: float) -> None:
        """Close idle connections that were not used since then: they may be as dead as one on which a call failed."""
        for connection in self._idle:
            if connection.used < since:
                connection.close()
        self._idle[:] = [connection for connection in self._idle if connection.is_open]

    async def close(self) -> None:
        """Close idle connections, and open no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        while self._idle:
            connection = self._idle.pop()
            connection.close()
            await connection.closed

    def forget(self) -> None:
        """Reset for another event loop."""
        self._idle.clear()
        self._task = self.opening_since = None

    async def _open(self, connection: AsyncConnection) -> None:
        error: Exception | None = None
        try:
            await connection.open(self._params)
        except (*FAULTS, ValueError) as failure:  # ValueError: an invalid host name
            error = failure
        except asyncio.CancelledError:
            if not self._overdue:  # the store or the event loop is closed
                self._task = self.opening_since = None
                raise
            error = TimeoutError()
        else:
            connection.used = asyncio.get_running_loop().time()
            self._idle.append(connection)
        self._task = self.opening_since = None
        self._opened(error)


def _let_go(connections: list[AsyncConnection]) -> None:
    """Close connections that are no longer needed."""
    for connection in connections:
        connection.let_go()
