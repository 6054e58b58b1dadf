"""GrpcServer: the service's remote procedures on a port."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from socket import socket
from ssl import SSLContext
from typing import Final

from headgate.service.access import Access
from headgate.service.grpc.call import Around, Desk, call_of
from headgate.service.grpc.head import Heads, Route
from headgate.service.grpc.health import Health
from headgate.service.grpc.reflection import NAMES, Reflection
from headgate.service.h2.connection import Connection
from headgate.service.h2.hub import App, Hub
from headgate.service.listener import Listener
from headgate.service.rpc.method import Service
from headgate.telemetry.meter import Meter

MAX_MESSAGE: Final = 4 * 1024 * 1024  # bytes; larger ones are RESOURCE_EXHAUSTED
MOST_CONNECTIONS: Final = 20_000
SPARE: Final = 65_536  # bytes that a client may send on a stream beyond the largest message
TICK: Final = 1.0  # seconds between looks at all connections
POLL: Final = 0.02  # seconds between looks at what is left when it stops


class GrpcServer:
    """Serves `services`, and grpc.health.v1, which asks for no token. Belongs to one event loop.

    `reflection` tells callers which services and messages there are. `around` is entered around calls of services that
    the meter is told of. Raises nothing of its own: what goes wrong in a call ends that call. A server is started once:
    `start`, then `drain`, then `stop`.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        access: Access,
        meter: Meter | None = None,
        reflection: bool = False,
        tls: SSLContext | None = None,
        max_message: int = MAX_MESSAGE,
        most_connections: int = MOST_CONNECTIONS,
        around: Around | None = None,
    ) -> None:
        names = [service.name for service in services]
        self._health = Health(names)
        served: list[Service] = [*services, self._health]
        if reflection:
            served += [Reflection(name, (*names, self._health.name)) for name in NAMES]
        routes = {
            f"/{service.name}/{name}".encode(): Route(name, method, service.protocol)
            for service in served
            for name, method in service.methods.items()
        }
        desk = Desk(access, meter or Meter(), around, max_message)
        app = App(Heads(routes), partial(call_of, desk), max_message + SPARE)
        self._hub = Hub(most_connections)
        self._listener = Listener(lambda: Connection(app, self._hub), tls)
        self._ticking: asyncio.Task[None] | None = None

    async def start(self, sockets: Sequence[socket]) -> None:
        """Serve on sockets that are bound; they are its own from now on."""
        self._hub.tick(asyncio.get_running_loop().time())
        self._ticking = asyncio.create_task(self._tick())
        await self._listener.start(sockets)

    async def replace_tls(self, tls: SSLContext) -> None:
        """Greet new clients with another certificate. Connections that there are go on."""
        await self._listener.replace_tls(tls)

    def drain(self) -> None:
        """Say NOT_SERVING to those who ask for health, and serve on."""
        self._health.stop_serving()

    async def stop(self, seconds: float) -> int:
        """Take no more connections, tell clients so, and hang up when all that they have asked for is answered.

        Those that take longer than `seconds` are cut off; returns how many.
        """
        self.drain()
        self._health.dismiss()
        await self._listener.stop()
        connections = self._hub.connections
        for connection in list(connections):
            connection.leave()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while connections and loop.time() < deadline:  # noqa: ASYNC110 - what may last, or end at once
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
            self._hub.tick(loop.time())
