"""Connections to one server, for threads: the idle ones, and the one that is being opened.

They are opened one at a time, in the background, with their own time limit. The pool knows nothing of calls.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread
from time import monotonic
from typing import Any, Final

from headgate.stores.breaker import Breaker
from headgate.stores.process_clock import PROCESS
from headgate.stores.redis.connection import ThreadConnection
from headgate.stores.redis.faults import FAULTS
from headgate.stores.redis.options import ConnectionParams, RedisOptions

NEVER: Final = float("-inf")

Opened = Callable[[ThreadConnection | Exception], None]  # gets a connection to give back, or the error


class ConnectionPool:
    """The connections to a server, safe to share between threads."""

    def __init__(self, params: ConnectionParams, options: RedisOptions, breaker: Breaker) -> None:
        self.idle: list[ThreadConnection] = []
        self.open_count = 0  # connections, idle and in use
        self.opening_since: float | None = None  # by the process clock
        self.enough_until = NEVER  # no more connections are opened besides those that are open, by time.monotonic
        self._params = params
        self._options = options
        self._breaker = breaker
        self._lock = Lock()  # never held while waiting
        self._closed = 0  # number of `close` calls

    def take(self) -> ThreadConnection | None:
        """Return the idle connection that was used last, so that superfluous ones stay idle."""
        while True:
            try:
                connection = self.idle.pop()
            except IndexError:  # none left: another thread was faster
                return None
            if connection.is_good():
                return connection
            self.discard(connection)

    def give_back(self, connection: ThreadConnection) -> bool:
        """Make the connection idle. Return False, and close it, if the pool was closed in the meantime."""
        if connection.generation != self._closed:
            self.discard(connection)
            return False
        self.idle.append(connection)
        return True

    def discard(self, connection: ThreadConnection) -> None:
        connection.close()
        with self._lock:
            self.open_count -= 1

    def doubt(self, since: float) -> None:
        """Close idle connections that were not used since then: they may be as dead as one on which a call failed."""
        good = []
        with suppress(IndexError):
            while True:
                connection = self.idle.pop()
                if connection.used >= since:
                    good.append(connection)
                else:
                    self.discard(connection)
        self.idle += good

    def close(self) -> None:
        """Close idle connections; those in use are closed when they are returned."""
        with self._lock:
            self._closed += 1
        self.doubt(float("inf"))

    def open_another(self, opened: Opened) -> None:
        """Open one more connection in the background, unless there are enough or one is being opened."""
        if self.opening_since is None and self.open_count < self._options.max_in_flight:
            if self.open_count and monotonic() < self.enough_until:
                return
            self.open(opened)

    def open(self, opened: Opened) -> None:
        """Open one more connection in the background, unless one is being opened."""
        with self._lock:
            if self.opening_since is not None:
                return
            self.opening_since = now = PROCESS.read()
            self.open_count += 1
        self._breaker.ask(now)
        run_in_thread(self._connect, opened)

    def _connect(self, opened: Opened) -> None:
        generation = self._closed
        try:
            deadline = PROCESS.read() + self._options.patience
            connection = ThreadConnection(self._params, self._options.timeout, deadline, PROCESS.read)
        except (*FAULTS, ValueError) as error:  # ValueError: an invalid host name
            with self._lock:
                self.open_count -= 1
                self.opening_since = None
            opened(error)
            return
        connection.generation = generation
        opened(connection)


def run_in_thread(work: Callable[..., None], *arguments: Any) -> None:
    """Run a function in a new thread; if no thread can start, run it here."""
    try:
        Thread(target=work, args=arguments, name="headgate-redis", daemon=True).start()
    except RuntimeError:
        work(*arguments)
