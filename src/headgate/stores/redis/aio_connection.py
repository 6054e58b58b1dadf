"""A connection for asyncio: sends commands and receives their replies. It has no deadlines: its user closes it.

redis-py makes the connection (TCP, TLS, Unix socket, according to the URL). Then this class takes over its transport:
a reply goes from the socket to the waiting call without a task and a stream in between. Used by one call at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import redis.asyncio.connection as connections
from hiredis import Reader
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse

from headgate.stores.redis import script
from headgate.stores.redis.connection import greetings
from headgate.stores.redis.faults import reply_error
from headgate.stores.redis.options import ConnectionParams

Done = Callable[[list[Any] | Exception], None]

_INCOMPLETE: Final = object()


class AsyncConnection(asyncio.Protocol):
    """A connection. `ask` reports redis-py's exceptions and OSError to its callback; the connection is then closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_open = False
        self.used = 0.0  # time of the last use, by the event loop's clock
        self.scripts: set[script.Argument] = set()  # digests that the server knows, unless it was restarted
        self.closed: asyncio.Future[None] = loop.create_future()  # done when the socket is closed
        self._loop = loop
        self._connection: Any = None  # redis-py's, which would close a transport that was left open
        self._transport: Any = None
        self._reader = Reader(protocolError=InvalidResponse, replyError=reply_error, notEnoughData=_INCOMPLETE)
        self._replies: list[Any] = []
        self._missing = 0  # replies
        self._done: Done | None = None  # called with the result of the call in progress

    async def open(self, params: ConnectionParams) -> None:
        """Connect. Raises redis-py's exceptions and OSError; then, or when cancelled, nothing is left open."""
        kind: Any = getattr(connections, "Connection" if params.kind is None else params.kind.__name__)
        self._connection = kind(**params.arguments, socket_timeout=None, redis_connect_func=_nothing_more)
        if params.tls is not None:
            self._connection.ssl_context.context = params.tls.context()
        try:
            await self._connection.connect_check_health(check_health=False)
            self._take_over()
            said = [script.encode_command(command) for command in greetings(params.arguments)]
            replied: asyncio.Future[list[Any] | Exception] = self._loop.create_future()
            self.ask(b"".join(said), len(said), partial(_resolve, replied))
            replies = await replied
        except BaseException:
            self.close()
            raise
        for reply in replies if isinstance(replies, list) else [replies]:
            if isinstance(reply, Exception):
                self.close()
                raise reply

    def ask(self, commands: bytes, count: int, done: Done) -> None:
        """Send packed commands. Call `done` with the replies, which may be exceptions, or with the error."""
        self._replies, self._missing, self._done = [], count, done
        if self.is_open:
            self._transport.write(commands)
        else:
            self._loop.call_soon(self._end, RedisConnectionError("the connection is closed"))

    def close(self) -> None:
        """Close it at once. A call in progress gets no callback."""
        self.is_open, self._done = False, None
        writer = self._connection._writer
        if writer is not None:
            self._connection._reader = self._connection._writer = None
            writer.transport.abort()

    def let_go(self) -> None:
        """Let its event loop close it. Can be called from any thread, at any time."""
        with suppress(RuntimeError):  # the event loop is closed, and its connections with it
            self._loop.call_soon_threadsafe(self.close)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while self._missing:
                reply = self._reader.gets()
                if reply is _INCOMPLETE:
                    return
                self._replies.append(reply)
                self._missing -= 1
            more = self._done is None or self._reader.has_data()
        except InvalidResponse as error:
            self._end(error)
            return
        self._end(InvalidResponse("the server sent an unexpected reply") if more else None)

    def eof_received(self) -> None:
        self.is_open = False

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or RedisConnectionError("the server closed the connection"))
        if not self.closed.done():
            self.closed.set_result(None)

    def _take_over(self) -> None:
        self._transport = self._connection._writer.transport
        self.is_open = not (self._transport.is_closing() or self._connection._reader.at_eof())
        self._transport.set_protocol(self)

    def _end(self, error: Exception | None) -> None:
        """End the call in progress: its replies are complete, or there are none."""
        done, self._done = self._done, None
        if error is not None:
            self.close()
        else:
            self.used = self._loop.time()
        if done is not None:
            done(self._replies if error is None else error)


def _resolve(replied: asyncio.Future[list[Any] | Exception], replies: list[Any] | Exception) -> None:
    if not replied.done():  # the caller may have been cancelled in the same tick
        replied.set_result(replies)


async def _nothing_more(_connection: Any) -> None:
    """Do nothing, in place of redis-py's own greetings."""
