"""The service's gRPC server, on an event loop of its own in a thread of the test's process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from headgate import AsyncLimiter, Rule
from headgate.service.access import Access
from headgate.service.data_plane import DataPlane
from headgate.service.grpc.server import GrpcServer
from headgate.service.rpc.envoy import RateLimitService
from headgate.service.rpc.method import Service
from headgate.service.rpc.rate_limiter import RateLimiter
from headgate.service.sockets import bind
from headgate.settings_fields import Address

T = TypeVar("T")


class Serving(NamedTuple):
    """A server that runs, and its loop."""

    address: str
    server: GrpcServer
    loop: asyncio.AbstractEventLoop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Have something done in the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)


@contextmanager
def serving(
    rules: list[Rule],
    *,
    access: Access | None = None,
    store: Any = "memory://",
    others: Sequence[Service] = (),
    **options: Any,
) -> Iterator[Serving]:
    """Both of our services, and `others`, at a free port of loopback."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> Serving:
        limiter = AsyncLimiter(rules, store=store)
        data = DataPlane(limiter)
        services: list[Service] = [RateLimiter(data), RateLimitService(data), *others]
        server = GrpcServer(services, access=access or Access(), **options)
        sockets = bind(Address("127.0.0.1", 0), "grpc_address")
        await server.start(sockets)
        return Serving(f"127.0.0.1:{sockets[0].getsockname()[1]}", server, loop)

    try:
        started = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
        try:
            yield started
        finally:
            started.run(started.server.stop(0))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
