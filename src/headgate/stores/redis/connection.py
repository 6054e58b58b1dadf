"""A connection for threads: sends commands and receives their replies, never later than a deadline.

redis-py makes the connection (TCP, TLS, Unix socket, according to the URL). This module reads the replies, because
redis-py's timeouts are per read, so a reply that arrives in small pieces would never be late.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from ssl import SSLWantReadError
from time import monotonic
from typing import Any, Final

from hiredis import Reader
from redis.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse
from redis.exceptions import TimeoutError as RedisTimeout

from headgate.stores.process_clock import PROCESS, TICK_SECONDS, waits
from headgate.stores.redis import script
from headgate.stores.redis.faults import reply_error
from headgate.stores.redis.options import ConnectionParams
from headgate.stores.redis.tls import TlsConnection

STALE: Final = 0.01  # seconds without use after which a connection is checked before it is used
SHORTEST: Final = 0.001  # the shortest timeout of a socket, in seconds
LONG: Final = 8_192  # bytes that may not fit into the socket's buffer at once
CHUNK: Final = 65_536
_INCOMPLETE: Final = object()


class ThreadConnection:
    """A connection. Raises redis-py's exceptions and OSError, after which it must not be used.

    The exception is a RedisTimeout of `receive`: then you can wait for the reply again. Deadlines are times of `now`.
    """

    def __init__(
        self, params: ConnectionParams, timeout: float, deadline: float, now: Callable[[], float] = monotonic
    ) -> None:
        self.used: float  # time of the last use, by time.monotonic
        self.scripts: set[script.Argument] = set()  # digests that the server knows, unless it was restarted
        self.generation = 0  # for its owner: how often it had closed its connections before this one
        self._now = now
        self._socket_timeout = min(timeout, TICK_SECONDS)  # the socket's own timeout: most replies come sooner
        self._reader = Reader(protocolError=InvalidResponse, replyError=reply_error, notEnoughData=_INCOMPLETE)
        # Set before the socket: the garbage collector finalizes attributes in order. redis-py's connection closes an
        # open socket; the socket itself would warn.
        self._connection: Any = None
        self._socket: Any = None
        seconds = max(SHORTEST, deadline - now())
        kind = (
            params.kind or Connection
            if params.tls is None
            else partial(TlsConnection, params.tls, monotonic() + seconds)
        )
        arguments = {**params.arguments, "socket_connect_timeout": seconds}
        self._connection = kind(**arguments, socket_timeout=timeout, redis_connect_func=_nothing_more)
        try:
            self._connection.connect()
            self._socket = self._connection._sock
            self._socket.settimeout(self._socket_timeout)
            self.used = monotonic()
            for command in greetings(params.arguments):
                self.ask(script.encode_command(command), deadline)
        except BaseException:
            self.close()
            raise

    def ask(self, command: bytes, deadline: float) -> Any:
        """Return the reply to a command. An error reply raises, and the connection stays usable."""
        self.send(command, deadline)
        reply = self.receive(deadline)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def send(self, commands: bytes, deadline: float) -> None:
        """Send packed commands. Then call `receive` for each reply."""
        if len(commands) < LONG:
            self._socket.sendall(commands)
            return
        self._socket.settimeout(max(SHORTEST, deadline - self._now()))
        self._socket.sendall(commands)
        self._socket.settimeout(self._socket_timeout)

    def receive(self, deadline: float) -> Any:
        """Return the next reply, which may be an exception. After a timeout, you can wait for it again."""
        reply = self._reader.gets()
        while reply is _INCOMPLETE:
            began = monotonic()
            try:
                received = self._socket.recv(CHUNK)
            except TimeoutError:
                received = self._wait(began, deadline)
            if not received:
                raise RedisConnectionError("the server closed the connection")
            self._reader.feed(received)
            reply = self._reader.gets()
            if reply is _INCOMPLETE and self._now() >= deadline:
                raise RedisTimeout("no time left")
        self.used = monotonic()
        return reply

    def is_good(self) -> bool:
        """Return whether it can be used again: if it was idle for a while, the server may have closed it."""
        if monotonic() - self.used < STALE:
            return True
        self._socket.settimeout(0)
        try:
            self._socket.recv(1)  # no command is open, so unexpected data makes it unusable
        except (BlockingIOError, InterruptedError, SSLWantReadError):
            self._socket.settimeout(self._socket_timeout)
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self._connection.disconnect()

    def _wait(self, began: float, deadline: float) -> bytes:
        """Return the data that arrives before the deadline, after `_socket_timeout` seconds without any."""
        PROCESS.overslept(began + self._socket_timeout, monotonic())
        try:
            for seconds in waits(self._now, deadline):
                self._socket.settimeout(seconds)
                try:
                    received: bytes = self._socket.recv(CHUNK)
                except TimeoutError:
                    continue
                return received
        finally:
            self._socket.settimeout(self._socket_timeout)
        raise RedisTimeout("no time left")


def greetings(arguments: dict[str, Any]) -> list[script.Command]:
    """Return the first commands of a new connection."""
    greetings: list[script.Command] = []
    if arguments.get("password"):
        user = (arguments["username"],) if arguments.get("username") else ()
        greetings.append(("AUTH", *user, arguments["password"]))
    if arguments.get("db"):
        greetings.append(("SELECT", arguments["db"]))
    greetings.append(("CLIENT", "SETNAME", arguments["client_name"]))
    return greetings


def _nothing_more(_connection: Any) -> None:
    """Do nothing, in place of redis-py's own greetings."""
