"""GrpcServer: the service's remote procedures on a port."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from headgate.service.access import Access
from headgate.service.grpc.calls import handler_of
from headgate.service.grpc.gate import Gate
from headgate.service.grpc.health import SERVING, Health
from headgate.service.grpc.reflection import reflection_handlers
from headgate.service.rpc.method import Service
from headgate.telemetry.meter import Meter

MAX_MESSAGE: Final = 4 * 1024 * 1024  # bytes; larger ones are RESOURCE_EXHAUSTED
HANDSHAKE_SECONDS: Final = 10  # in which a client has to be ready to call, from when it connects
IDLE_SECONDS: Final = 600  # without a call, after which a client is told to connect again when it has one
GOODBYE: Final = 0.02  # seconds in which clients are told that it stops, before they get their last answers


class GrpcServer:
    """Serves `services`, and grpc.health.v1, which asks for no token. Belongs to one event loop.

    `reflection` tells callers which services and messages there are. `reuse_port` lets several processes have the same
    port. A server is started once.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        access: Access,
        meter: Meter | None = None,
        reflection: bool = False,
        reuse_port: bool = False,
        max_message: int = MAX_MESSAGE,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        self._services = services
        self._access = access
        self._meter = meter or Meter()
        self._reflection = reflection
        self._interceptors = interceptors
        self._options = (
            ("grpc.so_reuseport", int(reuse_port)),
            ("grpc.max_receive_message_length", max_message),
            ("grpc.max_send_message_length", -1),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1_000),
            ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1_000),
        )
        self._gate = Gate()
        self._server: grpc.aio.Server | None = None
        self._health = Health()

    async def start(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Listen at `host:port` or `unix:/path`, with TLS if there are credentials. Returns the port, which is another
        if it was 0. Raises `OSError` if the address is not to be had."""
        server = self._server = grpc.aio.server(interceptors=self._interceptors, options=self._options)
        handlers: list[Any] = [handler_of(service, self._access, self._meter, self._gate) for service in self._services]
        if self._reflection:
            handlers += reflection_handlers([service.name for service in self._services], self._access)
        server.add_generic_rpc_handlers(handlers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        try:
            if credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"gRPC: cannot listen at {address}: {error}") from error
        for name in ("", *(service.name for service in self._services)):
            await self._health.set(name, SERVING)
        await server.start()
        return port

    async def drain(self) -> None:
        """Say NOT_SERVING to those who ask for health, and serve on."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace: float | None = None) -> None:
        """Take no new calls, and wait so many seconds for those under way; None: do not wait."""
        if self._server is not None:
            await self.drain()
            self._health.dismiss()
            if grace:
                await self._gate.close()
            stopping = asyncio.create_task(self._server.stop(grace))
            await asyncio.sleep(GOODBYE)
            self._gate.open()
            await stopping
