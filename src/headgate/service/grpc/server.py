"""GrpcServer: the service's gRPC methods on a port."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from ssl import SSLContext
from typing import Final

from headgate.service.access import Access
from headgate.service.grpc.call import Around, CallContext, call_of
from headgate.service.grpc.call_headers import CallHeadersReader, MethodRoute
from headgate.service.grpc.health import HealthService
from headgate.service.grpc.reflection import NAMES, Reflection
from headgate.service.http2.connection import Connection
from headgate.service.http2.hub import App, Hub
from headgate.service.listener import MAX_CONNECTIONS, SocketListener
from headgate.service.rpc.method import Service
from headgate.telemetry.meter import Meter

MAX_MESSAGE: Final = 4 * 1024 * 1024  # bytes; larger ones are RESOURCE_EXHAUSTED
SPARE: Final = 65_536  # bytes that a client may send on a stream beyond the largest message


class GrpcServer(SocketListener):
    """Serves `services`, and grpc.health.v1, which needs no token. Belongs to one event loop.

    `reflection` describes services and messages to callers. The server enters `around` for each call that the meter
    counts. An error in a call ends only that call. A server starts once: call `start`, then `drain`, then `stop`.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        access: Access,
        meter: Meter | None = None,
        reflection: bool = False,
        tls: SSLContext | None = None,
        max_connections: int = MAX_CONNECTIONS,
        around: Around | None = None,
    ) -> None:
        names = [service.name for service in services]
        self._health = HealthService(names)
        served: list[Service] = [*services, self._health]
        if reflection:
            served += [Reflection(name, (*names, self._health.name)) for name in NAMES]
        routes = {
            f"/{service.name}/{name}".encode(): MethodRoute(name, method, service.protocol)
            for service in served
            for name, method in service.methods.items()
        }
        context = CallContext(access, meter or Meter(), around, MAX_MESSAGE)
        app = App(CallHeadersReader(routes), partial(call_of, context), MAX_MESSAGE + SPARE)
        self._hub = Hub(max_connections)
        super().__init__(lambda: Connection(app, self._hub), self._hub, tls)

    def drain(self) -> None:
        """Answer health checks with NOT_SERVING, and continue to serve calls."""
        self._health.stop_serving()

    async def stop(self, seconds: float) -> int:
        """Send GOAWAY to clients, end the calls of health's watchers, and stop as any listener does."""
        self._health.dismiss()
        return await super().stop(seconds)
