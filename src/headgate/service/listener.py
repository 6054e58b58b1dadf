"""Listener: accepts clients on sockets, with or without TLS, until a graceful stop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from socket import socket
from ssl import SSLContext
from typing import Any, Final, Protocol

BACKLOG: Final = 2_048
HANDSHAKE_SECONDS: Final = 10.0  # of TLS
MAX_CONNECTIONS: Final = 20_000
ROOM: Final = 0.1  # the share of idle connections to close when there are too many
TICK: Final = 1.0  # seconds between looks at all connections
POLL: Final = 0.02  # seconds between checks for open connections during the stop


class ClientConnection(Protocol):
    """A client's connection."""

    def leave(self) -> None:
        """Close the connection when all begun requests are answered."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...


class ClientConnections(Protocol):
    """All open connections."""

    @property
    def connections(self) -> set[Any]: ...  # of `ClientConnection`

    def tick(self, now: float) -> None:
        """Close slow connections. Called once a second, with the event loop's time."""
        ...


def make_room(idle: Sequence[ClientConnection]) -> bool:
    """Close some idle connections, given the longest idle first. Returns whether there were any."""
    for connection in idle[: max(1, int(len(idle) * ROOM))]:
        connection.abort()
    return bool(idle)


class SocketListener(ABC):
    """Creates a `connection` for every client, and manages all `clients`. Belongs to one event loop."""

    def __init__(
        self, connection: Callable[[], asyncio.BaseProtocol], clients: ClientConnections, tls: SSLContext | None = None
    ) -> None:
        self._connection = connection
        self._clients = clients
        self._tls = tls
        self._ticking: asyncio.Task[None] | None = None
        self._sockets: list[socket] = []
        self._servers: list[asyncio.Server] = []

    def count(self) -> int:
        """Return the number of open connections."""
        return len(self._clients.connections)

    async def start(self, sockets: Sequence[socket]) -> None:
        """Listen on bound sockets, and take ownership of them."""
        self._clients.tick(asyncio.get_running_loop().time())
        self._ticking = asyncio.create_task(self._tick())
        self._sockets = list(sockets)
        self._servers = await self._listen()

    async def replace_tls(self, tls: SSLContext) -> None:
        """Use another certificate for new clients. Open connections continue."""
        before, self._tls = self._servers, tls
        self._servers = await self._listen()
        for server in before:
            server.close()

    @abstractmethod
    def drain(self) -> None:
        """Let clients know that the server will stop, and continue to serve them."""

    async def stop(self, seconds: float) -> int:
        """Accept no more clients, and close connections as soon as their begun requests are answered.

        Aborts connections that take longer than `seconds`, and returns their number.
        """
        self.drain()
        await self._close()
        connections: set[ClientConnection] = self._clients.connections
        for connection in list(connections):
            connection.leave()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while connections and loop.time() < deadline:  # noqa: ASYNC110 - usually short
            await asyncio.sleep(POLL)
        left = list(connections)
        for connection in left:
            connection.abort()
        if self._ticking is not None:
            self._ticking.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticking
        return len(left)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK)
            self._clients.tick(loop.time())

    async def _close(self) -> None:
        """Accept no more clients, except those in the backlog: they believe that they are connected."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        sockets, self._sockets = self._sockets, []
        await asyncio.gather(*(self._accept_last(bound) for bound in sockets))

    async def _accept_last(self, bound: socket) -> None:
        bound.setblocking(False)
        waiting = []
        with suppress(OSError):  # until the backlog is empty
            while True:
                waiting.append(bound.accept()[0])
        bound.close()
        loop = asyncio.get_running_loop()
        for client in waiting:
            with suppress(OSError):  # the client has left
                await loop.connect_accepted_socket(self._connection, client, **self._options())

    async def _listen(self) -> list[asyncio.Server]:
        """Listen on copies of the sockets, so that the backlog survives when a server is closed."""
        loop = asyncio.get_running_loop()
        return [
            await loop.create_server(self._connection, sock=bound.dup(), backlog=BACKLOG, **self._options())
            for bound in self._sockets
        ]

    def _options(self) -> dict[str, Any]:
        return {} if self._tls is None else {"ssl": self._tls, "ssl_handshake_timeout": HANDSHAKE_SECONDS}
