"""A connection of a thread's own: a command out, its reply in, and never later than a deadline.

redis-py makes the connection (TCP, TLS, Unix socket, as the URL says); its replies are read here, because its own
timeouts are per read, and a reply that trickles in would never be late.
"""

from __future__ import annotations

from functools import partial
from ssl import SSLWantReadError
from time import monotonic
from typing import Any, Final

from hiredis import Reader
from redis.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse
from redis.exceptions import TimeoutError as RedisTimeout

from headgate.stores.redis import script
from headgate.stores.redis.faults import reply_error
from headgate.stores.redis.options import Way
from headgate.stores.redis.tls import TlsConnection

STALE: Final = 0.01  # seconds without use after which a connection is looked at before it is trusted
ALMOST: Final = 0.95  # of the timeout: with that much left, the socket's own timeout is close enough
LATE: Final = 0.001  # seconds after the deadline in which replies are read that are there
CHUNK: Final = 65_536
_INCOMPLETE: Final = object()


class Wire:
    """Raises redis-py's exceptions and OSError; then, the connection is of no more use."""

    def __init__(self, way: Way, timeout: float, deadline: float) -> None:
        self._timeout = timeout
        self.used: float  # when it was last
        self._patient = True  # whether the socket's own timeout is close enough
        self._reader = Reader(protocolError=InvalidResponse, replyError=reply_error, notEnoughData=_INCOMPLETE)
        # Before the socket: the garbage collector finalizes what it finds first. redis-py's connection closes one that
        # nobody has closed; the socket would complain.
        self._connection: Any = None
        self._socket: Any = None
        arguments = {**way.arguments, "socket_connect_timeout": max(LATE, deadline - monotonic())}
        kind = way.kind or Connection if way.tls is None else partial(TlsConnection, way.tls, deadline)
        self._connection = kind(**arguments, socket_timeout=timeout, redis_connect_func=_nothing_more)
        try:
            self._connection.connect()
            self._socket = self._connection._sock
            self._socket.settimeout(timeout)
            self.used = monotonic()
            for command in greetings(way.arguments):
                self.ask(script.packed(command), deadline)
        except BaseException:
            self.close()
            raise

    def ask(self, command: bytes, deadline: float) -> Any:
        """The reply to a command. An error reply raises; the connection is still good then."""
        self.send(command, deadline)
        reply = self.receive(deadline)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def send(self, commands: bytes, deadline: float) -> None:
        """Send commands, packed; `receive` the reply to each."""
        left = deadline - monotonic()
        self._patient = left > self._timeout * ALMOST
        if not self._patient:
            self._limit(left)
        self._socket.sendall(commands)

    def receive(self, deadline: float) -> Any:
        """The next reply, which may be an exception."""
        reply = self._reader.gets()
        while reply is _INCOMPLETE:
            received = self._socket.recv(CHUNK)
            if not received:
                raise RedisConnectionError("the server closed the connection")
            self._reader.feed(received)
            reply = self._reader.gets()
            if reply is _INCOMPLETE:
                self._patient = False
                self._limit(deadline - monotonic())
        if not self._patient:
            self._socket.settimeout(self._timeout)
        self.used = monotonic()
        return reply

    def hurry(self, deadline: float) -> None:
        """Before `receive`: other servers were waited for meanwhile. What has come already is read all the same."""
        self._patient = False
        self._socket.settimeout(max(deadline - monotonic(), LATE))

    def is_good(self) -> bool:
        """Whether it can be used again: unless it was just used, the server may have closed it meanwhile."""
        if monotonic() - self.used < STALE:
            return True
        self._socket.settimeout(0)
        try:
            self._socket.recv(1)  # nobody asked anything: whatever is there to read means that it is of no use
        except (BlockingIOError, InterruptedError, SSLWantReadError):
            self._socket.settimeout(self._timeout)
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self._connection.disconnect()

    def _limit(self, seconds: float) -> None:
        if seconds <= 0:
            raise RedisTimeout("no time left")
        self._socket.settimeout(seconds)


def greetings(arguments: dict[str, Any]) -> list[script.Command]:
    """What a new connection says first."""
    greetings: list[script.Command] = []
    if arguments.get("password"):
        user = (arguments["username"],) if arguments.get("username") else ()
        greetings.append(("AUTH", *user, arguments["password"]))
    if arguments.get("db"):
        greetings.append(("SELECT", arguments["db"]))
    greetings.append(("CLIENT", "SETNAME", arguments["client_name"]))
    return greetings


def _nothing_more(_connection: Any) -> None:
    """Instead of redis-py's own greetings."""
