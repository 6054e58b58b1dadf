"""Listener: sockets that clients connect to, with or without TLS, until the last one who waits at them is greeted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from socket import socket
from ssl import SSLContext
from typing import Any, Final

BACKLOG: Final = 2_048
HANDSHAKE_SECONDS: Final = 10.0  # of TLS


class Listener:
    """Gives every client a `connection`. Belongs to one event loop."""

    def __init__(self, connection: Callable[[], asyncio.BaseProtocol], tls: SSLContext | None = None) -> None:
        self._connection = connection
        self._tls = tls
        self._sockets: list[socket] = []
        self._servers: list[asyncio.Server] = []

    async def start(self, sockets: Sequence[socket]) -> None:
        """Listen on sockets that are bound; they are its own from now on."""
        self._sockets = list(sockets)
        self._servers = await self._listen()

    async def replace_tls(self, tls: SSLContext) -> None:
        """Greet new clients with another certificate. Connections that there are go on."""
        before, self._tls = self._servers, tls
        self._servers = await self._listen()
        for server in before:
            server.close()

    async def stop(self) -> None:
        """Take no more clients, but for those who wait: they believe that they are connected."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        sockets, self._sockets = self._sockets, []
        await asyncio.gather(*(self._accept_last(bound) for bound in sockets))

    async def _accept_last(self, bound: socket) -> None:
        bound.setblocking(False)
        waiting = []
        with suppress(OSError):  # until there are none
            while True:
                waiting.append(bound.accept()[0])
        bound.close()
        loop = asyncio.get_running_loop()
        for client in waiting:
            with suppress(OSError):  # one that has left
                await loop.connect_accepted_socket(self._connection, client, **self._options())

    async def _listen(self) -> list[asyncio.Server]:
        """On copies of the sockets, so that what waits to be accepted survives a server that is closed."""
        loop = asyncio.get_running_loop()
        return [
            await loop.create_server(self._connection, sock=bound.dup(), backlog=BACKLOG, **self._options())
            for bound in self._sockets
        ]

    def _options(self) -> dict[str, Any]:
        return {} if self._tls is None else {"ssl": self._tls, "ssl_handshake_timeout": HANDSHAKE_SECONDS}
