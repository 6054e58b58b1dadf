"""One process that serves: HTTP and gRPC on one event loop, from the start to a graceful end.

It ends in this order: it says that it is not serving any more; it waits, so that balancers notice; it takes no more
calls, and answers those that have begun; it writes down what is to be kept. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack, suppress
from importlib import import_module
from typing import Final

import uvloop

from headgate.db import Changes
from headgate.db.events import Events
from headgate.http.asgi import App
from headgate.service.admin import admin_app
from headgate.service.admin.context import needs
from headgate.service.admin.events import events_router
from headgate.service.grpc.call import Around
from headgate.service.grpc.server import GrpcServer
from headgate.service.listener import MOST_CONNECTIONS
from headgate.service.node import Node
from headgate.service.pages import Pages
from headgate.service.process import AT_ONCE, Addresses, Worker
from headgate.service.rest.app import HttpApp
from headgate.service.rpc.envoy import RateLimitService
from headgate.service.rpc.rate_limiter import RateLimiter
from headgate.service.sockets import allow_many, bound, close
from headgate.service.tls import Certificates
from headgate.service.web import WebServer
from headgate.settings import Settings
from headgate.telemetry.meter import OpenConnections

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
LOOK_SECONDS: Final = 1.0  # between looks at the certificates

log = logging.getLogger("headgate")


def run(
    settings: Settings,
    started: Callable[[Addresses], None],
    *,
    worker: Worker | None = None,
    signals: Collection[signal.Signals] = STOPPING,
    stop_on: int | None = None,
) -> None:
    """Serve until a signal, or until there is something to read from the file descriptor `stop_on`.

    `started` is told as soon as calls are answered. Raises `InvalidSettings`, `InvalidRule`, `DatabaseError` and
    `CannotListen` when it cannot begin. To be called in the main thread.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings, started, worker, signals, stop_on))


async def _run(
    settings: Settings,
    started: Callable[[Addresses], None],
    worker: Worker | None,
    signals: Collection[signal.Signals],
    stop_on: int | None,
) -> None:
    stopping = _stopping(signals, stop_on)
    allow_many()
    server = Server(settings, worker)
    async with AsyncExitStack() as stack:
        addresses = await server.start(stack)
        gc.collect()
        gc.freeze()  # what is here by now stays: collections need not look at it again
        if not stopping.is_set():
            started(addresses)
            await stopping.wait()
        log.info("stopping: a second signal ends it at once")
        await server.drain()
    log.info("stopped")


class Server:
    """The HTTP and gRPC servers of one node."""

    def __init__(self, settings: Settings, worker: Worker | None = None) -> None:
        self._settings = settings
        self._worker = worker
        self._http_tls = self._grpc_tls = None
        if settings.tls_certificate is not None and settings.tls_key is not None:
            files = (settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
            self._http_tls = Certificates(*files, protocol="http/1.1")
            self._grpc_tls = Certificates(*files, protocol="h2")
        self._node = Node(settings, worker=0 if worker is None else worker.number)

    async def start(self, stack: AsyncExitStack) -> Addresses:
        """Listen. `stack` gets what is to be undone at the end, in the order in which it has to be."""
        settings, node, shared = self._settings, self._node, self._worker is not None
        http = bound(settings.http_address, "http_address", shared=shared)
        stack.callback(close, http)
        grpc = bound(settings.grpc_address, "grpc_address", shared=shared)
        stack.callback(close, grpc)
        http_port, grpc_port = (sockets[0].getsockname()[1] for sockets in (http, grpc))
        await node.open()
        stack.push_async_callback(node.close)
        pages = Pages(node.metrics)
        if self._worker is not None:
            pages = Pages(node.metrics, self._worker.number, settings.workers, self._worker.sockets)
        await pages.start()
        stack.callback(pages.close)
        self._web = WebServer(
            self._http_app(pages), meter=node.meter, tls=None if self._http_tls is None else self._http_tls.context
        )
        self._grpc = GrpcServer(
            [RateLimiter(node.plane), RateLimitService(node.plane)],
            access=node.access,
            meter=node.meter,
            reflection=settings.reflection,
            tls=None if self._grpc_tls is None else self._grpc_tls.context,
            around=self._around(),
        )
        node.meter.connections = {
            "http": OpenConnections(self._web.count, MOST_CONNECTIONS),
            "grpc": OpenConnections(self._grpc.count, MOST_CONNECTIONS),
        }
        await self._web.start(http)
        await self._grpc.start(grpc)
        if self._http_tls is not None and self._grpc_tls is not None:
            for certificates, server in ((self._http_tls, self._web), (self._grpc_tls, self._grpc)):
                watching = asyncio.create_task(_watch(certificates, server))
                stack.push_async_callback(_cancelled, watching)
        return Addresses(settings.http_address._replace(port=http_port), settings.grpc_address._replace(port=grpc_port))

    def _http_app(self, pages: Pages) -> App:
        node = self._node
        admin = admin_app(
            source=node.source,
            limiter=node.limiter,
            access=node.access,
            changes=node.changes,
            log=node.changes or Changes(node.database),
            tokens=node.tokens,
            routers=[events_router(Events(node.database), needs("events"))],
        )
        app: App = HttpApp(node.plane, node.access, health=node, metrics=pages.page, admin=admin)
        if node.tracing is not None:
            app = import_module("headgate.telemetry.spans").TracedApp(app, node.tracing)
        return app

    def _around(self) -> Around | None:
        return None if self._node.tracing is None else self._node.tracing.check

    async def drain(self) -> None:
        """Stop serving, without anybody noticing who had begun."""
        settings = self._settings
        self._node.draining = True
        self._web.drain()
        self._grpc.drain()
        await asyncio.sleep(settings.drain_delay)
        cut_off = sum(
            await asyncio.gather(self._web.stop(settings.drain_timeout), self._grpc.stop(settings.drain_timeout))
        )
        if cut_off:
            log.warning("%d connections were cut off: their calls took longer than drain_timeout", cut_off)


def _stopping(signals: Collection[signal.Signals], stop_on: int | None) -> asyncio.Event:
    """Set by the first signal. The second ends the process, whatever it may be doing."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            os._exit(AT_ONCE)
        stopping.set()

    def stop_with_parent() -> None:
        assert stop_on is not None
        loop.remove_reader(stop_on)
        stopping.set()

    for number in signals:
        loop.add_signal_handler(number, stop)
    if stop_on is not None:
        loop.add_reader(stop_on, stop_with_parent)
    return stopping


async def _watch(certificates: Certificates, server: WebServer | GrpcServer) -> None:
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if await asyncio.to_thread(certificates.refresh):
            await server.replace_tls(certificates.context)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
