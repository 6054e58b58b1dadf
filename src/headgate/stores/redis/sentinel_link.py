"""A connection to one Sentinel that stays open: it answers queries, and announces failovers.

With RESP3, one connection does both, so the next query notices a subscription that has fallen silent.
"""

from __future__ import annotations

import logging
from ssl import SSLWantReadError
from time import monotonic
from typing import Any, Final

from hiredis import PushNotification
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from headgate.stores.redis import script
from headgate.stores.redis.connection import _INCOMPLETE, CHUNK, ThreadConnection
from headgate.stores.redis.options import ConnectionParams
from headgate.stores.redis.sentinel import CHANNELS, SentinelReport, is_about, read_report

RETRY_SECONDS: Final = (1.0, 8.0)  # between attempts to connect to a Sentinel that is down: first, and at most

log = logging.getLogger("headgate")


class SentinelLink:
    """A link to one Sentinel. Raises redis-py's exceptions and OSError.

    An invalid answer raises `LookupError` or `ValueError`. After any of these, call `drop`.
    """

    def __init__(self, params: ConnectionParams, service: str, patience: float) -> None:
        self.name = params.name
        self.retry_at = float("-inf")
        self._params = params
        self._service = service
        self._patience = patience  # seconds to wait for an answer
        self._questions = b"".join(
            script.encode_command(("SENTINEL", question, service)) for question in ("MASTER", "REPLICAS")
        )
        self._pause = RETRY_SECONDS[0]
        self._connection: _SentinelConnection | None = None
        self._announced = False
        self._warned = False

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def fileno(self) -> int:
        assert self._connection is not None
        return self._connection.fileno()

    def open(self) -> None:
        """Connect and subscribe."""
        deadline = monotonic() + self._patience
        self._connection = _SentinelConnection(self._params, self._patience, deadline)
        try:
            self._connection.ask(script.encode_command(("HELLO", 3)), deadline)
            self._connection.ask(script.encode_command(("SUBSCRIBE", *CHANNELS)), deadline)
        except ResponseError as error:
            if not self._warned:
                self._warned = True
                log.warning(
                    "Sentinel at %s announces no failovers (%s): allow its user HELLO and SUBSCRIBE; until then, "
                    "Headgate asks it once a second",
                    self.name,
                    error,
                )

    def ask(self) -> None:
        """Send the queries; `answer` reads the replies."""
        assert self._connection is not None
        self._connection.send(self._questions, monotonic() + self._patience)

    def answer(self, deadline: float) -> SentinelReport:
        assert self._connection is not None
        report = read_report(self._reply(deadline), self._reply(deadline))
        self._pause = RETRY_SECONDS[0]
        return report

    def hear(self) -> bool:
        """Return whether a failover was announced since the last call. Does not wait."""
        if self._connection is not None:
            for message in self._connection.take_replies():
                self._note(message)
        announced, self._announced = self._announced, False
        return announced

    def drop(self) -> None:
        """Close it after a failure, and do not reconnect for a while."""
        self.close()
        self.retry_at = monotonic() + self._pause
        self._pause = min(2 * self._pause, RETRY_SECONDS[1])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _reply(self, deadline: float) -> Any:
        assert self._connection is not None
        while isinstance(reply := self._connection.receive(deadline), PushNotification):
            self._note(reply)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _note(self, message: Any) -> None:
        self._announced = self._announced or is_about(message, self._service)


class _SentinelConnection(ThreadConnection):
    """A connection on which the server also sends messages on its own."""

    def fileno(self) -> int:
        number: int = self._socket.fileno()
        return number

    def take_replies(self) -> list[Any]:
        """Return the messages that have arrived, without waiting."""
        self._socket.settimeout(0)
        try:
            while received := self._socket.recv(CHUNK):
                self._reader.feed(received)
            raise RedisConnectionError("the server closed the connection")
        except (BlockingIOError, InterruptedError, SSLWantReadError):
            self._socket.settimeout(self._socket_timeout)
        messages = []
        while (message := self._reader.gets()) is not _INCOMPLETE:
            messages.append(message)
        return messages
