"""One serving process: HTTP and gRPC on one event loop, with a graceful stop.

To stop, it reports that it is no longer serving; waits, so that load balancers notice; accepts no more calls, and
answers those that have begun; and saves its state. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack, suppress
from functools import partial
from importlib import import_module
from socket import socket
from ssl import SSLContext
from typing import Final

import uvloop

from headgate.db import Changes
from headgate.db.events import Events
from headgate.db.usage import UsageHistory
from headgate.http.asgi import App
from headgate.operations import Operations
from headgate.service.admin import admin_app
from headgate.service.admin.context import needs
from headgate.service.admin.events import events_router
from headgate.service.admin.trials import trials_router
from headgate.service.admin.usage import usage_router
from headgate.service.console import console_app
from headgate.service.fleet import Fleet
from headgate.service.grpc.server import GrpcServer
from headgate.service.http.app import HttpApp
from headgate.service.listener import MAX_CONNECTIONS
from headgate.service.node import Node
from headgate.service.process import AT_ONCE, ListenAddresses, WorkerNumber, allow_many_files
from headgate.service.rpc.envoy import RateLimitService
from headgate.service.rpc.rate_limiter import RateLimiter
from headgate.service.sockets import bind, close
from headgate.service.tls import Certificates
from headgate.service.web import WebServer
from headgate.service.worker_metrics import WorkerMetrics
from headgate.settings import Settings
from headgate.settings_fields import Address
from headgate.telemetry.meter import OpenConnections

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
LOOK_SECONDS: Final = 1.0  # between checks for new certificates

log = logging.getLogger("headgate")


def run(
    settings: Settings,
    started: Callable[[ListenAddresses], None],
    *,
    worker: WorkerNumber | None = None,
    signals: Collection[signal.Signals] = STOPPING,
    stop_on: int | None = None,
) -> None:
    """Serve until a signal, or until there is something to read from the file descriptor `stop_on`.

    Calls `started` when it is ready for calls. Raises `InvalidSettings`, `InvalidRule`, `DatabaseError` and
    `CannotListen` if it cannot start. Call it in the main thread.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings, started, worker, signals, stop_on))


async def _run(
    settings: Settings,
    started: Callable[[ListenAddresses], None],
    worker: WorkerNumber | None,
    signals: Collection[signal.Signals],
    stop_on: int | None,
) -> None:
    stopping = _stop_event(signals, stop_on)
    allow_many_files()
    server = Server(settings, worker)
    async with AsyncExitStack() as stack:
        addresses = await server.start(stack)
        gc.collect()
        gc.freeze()  # all objects so far are permanent: exclude them from collections
        if not stopping.is_set():
            started(addresses)
            await stopping.wait()
        log.info("stopping: a second signal ends it at once")
        await server.drain()
    log.info("stopped")


class Server:
    """The HTTP and gRPC servers of one node."""

    def __init__(self, settings: Settings, worker: WorkerNumber | None = None) -> None:
        self._settings = settings
        self._worker = worker
        self._servers: dict[str, WebServer | GrpcServer] = {}  # by name, as the addresses
        self._certificates: dict[str, Certificates] = {}
        if settings.tls_certificate is not None and settings.tls_key is not None:
            files = (settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
            self._certificates = {
                "http": Certificates(*files, protocol="http/1.1"),
                "grpc": Certificates(*files, protocol="h2"),
                "admin": Certificates(*files, protocol="http/1.1"),
            }
        self._node = Node(settings, worker=0 if worker is None else worker.number)

    async def start(self, stack: AsyncExitStack) -> ListenAddresses:
        """Start to listen. Pushes the cleanups onto `stack`, in the right order."""
        settings, node, shared = self._settings, self._node, self._worker is not None
        sockets: dict[str, list[socket]] = {}
        actual: dict[str, Address] = {}
        for name, address in ListenAddresses.of(settings).by_name().items():
            sockets[name] = bind(address, f"{name}_address", shared=shared)
            stack.callback(close, sockets[name])
            actual[name] = address._replace(port=sockets[name][0].getsockname()[1])
        await node.open()
        stack.push_async_callback(node.close)
        metrics = WorkerMetrics(node.metrics, self._worker, settings.workers)
        await metrics.start()
        stack.callback(metrics.close)
        self._fleet = Fleet(node) if settings.console else None
        if self._fleet is not None:
            stack.push_async_callback(_cancel, asyncio.create_task(self._fleet.keep_reporting()))
        self._servers["grpc"] = GrpcServer(
            [RateLimiter(node.plane), RateLimitService(node.plane)],
            access=node.access,
            meter=node.meter,
            reflection=settings.reflection,
            tls=self._tls("grpc"),
            around=None if node.tracing is None else node.tracing.check,
        )
        for name, app in self._http_apps(metrics).items():
            self._servers[name] = WebServer(app, meter=node.meter, tls=self._tls(name))
        for name, server in self._servers.items():
            node.meter.connections[name] = OpenConnections(server.count, MAX_CONNECTIONS)
        for name, server in self._servers.items():
            await server.start(sockets[name])
            if name in self._certificates:
                watching = asyncio.create_task(_watch(self._certificates[name], server))
                stack.push_async_callback(_cancel, watching)
        return ListenAddresses(**actual)

    def _tls(self, name: str) -> SSLContext | None:
        return self._certificates[name].context if name in self._certificates else None

    def _http_apps(self, metrics: WorkerMetrics) -> dict[str, App]:
        """Return the app of HTTP's address, and that of the admin API's address if it has its own."""
        node = self._node
        operations = Operations(
            source=node.source,
            limiter=node.limiter,
            changes=node.changes,
            log=node.changes or Changes(node.database),
        )
        admin = admin_app(
            operations=operations,
            access=node.access,
            tokens=node.tokens,
            routers=[
                events_router(Events(node.database), needs("events")),
                trials_router(Events(node.database)),
                usage_router(UsageHistory(node.database), node.limiter.clock.now_us, needs("events")),
            ],
        )
        console = None if self._fleet is None else console_app(node, operations, self._fleet, secure=self._settings.tls)
        make = partial(HttpApp, node.plane, node.access, health=node, metrics=metrics.page, identity=node.identity)
        if self._settings.admin_address is None:
            return {"http": self._trace(make(admin=admin, console=console))}
        return {
            "http": self._trace(make(serves="data")),
            "admin": self._trace(make(serves="admin", admin=admin, console=console)),
        }

    def _trace(self, app: App) -> App:
        if self._node.tracing is None:
            return app
        traced: App = import_module("headgate.telemetry.spans").TracedApp(app, self._node.tracing)
        return traced

    async def drain(self) -> None:
        """Stop gracefully: answer all calls that have begun."""
        settings = self._settings
        self._node.draining = True
        for server in self._servers.values():
            server.drain()
        await asyncio.sleep(settings.drain_delay)
        stops = [server.stop(settings.drain_timeout) for server in self._servers.values()]
        cut_off = sum(await asyncio.gather(*stops))
        if cut_off:
            log.warning("%d connections were cut off: their calls took longer than drain_timeout", cut_off)


def _stop_event(signals: Collection[signal.Signals], stop_on: int | None) -> asyncio.Event:
    """Return an event that the first signal sets. The second signal ends the process at once."""
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


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
