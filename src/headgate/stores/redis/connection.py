"""A connection for threads: commands out, their replies in, and never later than a deadline.

redis-py makes the connection (TCP, TLS, Unix socket, as the URL says); its replies are read here, because its own
timeouts are per read, and a reply that trickles in would never be late.
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

STALE: Final = 0.01  # seconds without use after which a connection is looked at before it is trusted
SHORTEST: Final = 0.001  # seconds for which a socket waits
LONG: Final = 8_192  # bytes that may not fit into the socket's buffer at once
CHUNK: Final = 65_536
_INCOMPLETE: Final = object()


class ThreadConnection:
    """Raises redis-py's exceptions and OSError; then, the connection is of no more use.

    But for a RedisTimeout of `receive`, after which the same reply can be waited for again. Deadlines go by `now`.
    """

    def __init__(
        self, params: ConnectionParams, timeout: float, deadline: float, now: Callable[[], float] = monotonic
    ) -> None:
        self.used: float  # when it was last, by time.monotonic
        self.scripts: set[script.Argument] = set()  # digests that the server knows, unless it has forgotten them
        self.generation = 0  # for its owner: how often it had closed its connections before this one
        self._now = now
        self._usual = min(timeout, TICK_SECONDS)  # the socket's own timeout: most replies come sooner
        self._reader = Reader(protocolError=InvalidResponse, replyError=reply_error, notEnoughData=_INCOMPLETE)
        # Before the socket: the garbage collector finalizes what it finds first. redis-py's connection closes an
        # open socket; the socket itself would complain.
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
            self._socket.settimeout(self._usual)
            self.used = monotonic()
            for command in greetings(params.arguments):
                self.ask(script.encode_command(command), deadline)
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
        if len(commands) < LONG:
            self._socket.sendall(commands)
            return
        self._socket.settimeout(max(SHORTEST, deadline - self._now()))
        self._socket.sendall(commands)
        self._socket.settimeout(self._usual)

    def receive(self, deadline: float) -> Any:
        """The next reply, which may be an exception. If it takes longer, it can be waited for again."""
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
        """Whether it can be used again: unless it was just used, the server may have closed it meanwhile."""
        if monotonic() - self.used < STALE:
            return True
        self._socket.settimeout(0)
        try:
            self._socket.recv(1)  # no command is open, so unexpected data makes it unusable
        except (BlockingIOError, InterruptedError, SSLWantReadError):
            self._socket.settimeout(self._usual)
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self._connection.disconnect()

    def _wait(self, began: float, deadline: float) -> bytes:
        """What comes within the deadline, after `_usual` seconds without anything."""
        PROCESS.overslept(began + self._usual, monotonic())
        try:
            for seconds in waits(self._now, deadline):
                self._socket.settimeout(seconds)
                try:
                    received: bytes = self._socket.recv(CHUNK)
                except TimeoutError:
                    continue
                return received
        finally:
            self._socket.settimeout(self._usual)
        raise RedisTimeout("no time left")


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
