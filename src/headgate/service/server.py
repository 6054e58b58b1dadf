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
from pathlib import Path
from typing import Final, NamedTuple

import uvloop
from grpc.aio import ServerInterceptor

from headgate.db import Changes
from headgate.db.events import Events
from headgate.http.asgi import App
from headgate.service.admin import admin_app
from headgate.service.admin.context import needs
from headgate.service.admin.events import events_router
from headgate.service.grpc.credentials import Certificates as GrpcCertificates
from headgate.service.grpc.server import GrpcServer
from headgate.service.node import Node
from headgate.service.pages import Pages
from headgate.service.rest.app import HttpApp
from headgate.service.rpc.envoy import RateLimitService
from headgate.service.rpc.rate_limiter import RateLimiter
from headgate.service.sockets import CannotListen, allow_many, bound, close
from headgate.service.tls import Certificates
from headgate.service.web import WebServer
from headgate.settings import Address, Settings, flag, variable

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
AT_ONCE: Final = 1  # exit code of a process that a second signal ended
LOOK_SECONDS: Final = 1.0  # between looks at the certificates

log = logging.getLogger("headgate")


class Addresses(NamedTuple):
    """Where a service listens, with the ports that it really has."""

    http: Address
    grpc: Address


class Worker(NamedTuple):
    """Which of several processes this is that share their ports."""

    number: int
    sockets: Path  # the directory of those by which they tell one another their metrics


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
        self._certificates: Certificates | None = None
        grpc_certificates: GrpcCertificates | None = None
        if settings.tls_certificate is not None and settings.tls_key is not None:
            files = (settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
            self._certificates = Certificates(*files)
            grpc_certificates = GrpcCertificates(*files)
        self._credentials = None if grpc_certificates is None else grpc_certificates.credentials()
        self._node = Node(settings, worker=0 if worker is None else worker.number)

    async def start(self, stack: AsyncExitStack) -> Addresses:
        """Listen. `stack` gets what is to be undone at the end, in the order in which it has to be."""
        settings, node, shared = self._settings, self._node, self._worker is not None
        sockets = bound(settings.http_address, "http_address", shared=shared)
        stack.callback(close, sockets)
        if not shared:
            close(bound(settings.grpc_address, "grpc_address"))  # gRPC does not say why it cannot have a port
        await node.open()
        stack.push_async_callback(node.close)
        pages = Pages(node.metrics)
        if self._worker is not None:
            pages = Pages(node.metrics, self._worker.number, settings.workers, self._worker.sockets)
        await pages.start()
        stack.callback(pages.close)
        self._web = WebServer(
            self._http_app(pages), tls=None if self._certificates is None else self._certificates.context
        )
        self._grpc = GrpcServer(
            [RateLimiter(node.plane), RateLimitService(node.plane)],
            access=node.access,
            meter=node.meter,
            reflection=settings.reflection,
            reuse_port=shared,
            interceptors=self._interceptors(),
        )
        await self._web.start(sockets)
        try:
            port = await self._grpc.start(str(settings.grpc_address), self._credentials)
        except OSError as error:
            choose = f"choose another with {flag('grpc_address')} (or {variable('grpc_address')})"
            raise CannotListen(f"cannot listen on {settings.grpc_address}: {error}; {choose}") from error
        if self._certificates is not None:
            watching = asyncio.create_task(self._watch(self._certificates))
            stack.push_async_callback(_cancelled, watching)
        return Addresses(
            settings.http_address._replace(port=sockets[0].getsockname()[1]), settings.grpc_address._replace(port=port)
        )

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

    def _interceptors(self) -> list[ServerInterceptor]:
        if self._node.tracing is None:
            return []
        return [import_module("headgate.telemetry.interceptor").TracingInterceptor(self._node.tracing)]

    async def drain(self) -> None:
        """Stop serving, without anybody noticing who had begun."""
        settings = self._settings
        self._node.draining = True
        self._web.drain()
        await self._grpc.drain()
        await asyncio.sleep(settings.drain_delay)
        cut_off, _ = await asyncio.gather(
            self._web.stop(settings.drain_timeout), self._grpc.stop(settings.drain_timeout)
        )
        if cut_off:
            log.warning("%d connections were cut off: their calls took longer than drain_timeout", cut_off)

    async def _watch(self, certificates: Certificates) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if await asyncio.to_thread(certificates.refresh):
                await self._web.replace_tls(certificates.context)


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


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
