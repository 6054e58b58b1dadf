"""Supervisor of several processes that serve on the same ports: starts, watches, restarts and stops them.

Each worker is a whole service. The kernel distributes connections between them. The supervisor reserves the ports, and
serves nothing. It does not import the modules for serving, so that workers start sooner.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final

from headgate.errors import HeadgateError, InvalidSettings, StoreError
from headgate.rules.sources.collection import collection_paused
from headgate.service.directory import DataDirectory, admin_token
from headgate.service.process import AT_ONCE, ListenAddresses, WorkerNumber
from headgate.service.sockets import close, reserve
from headgate.settings import Settings, names_of
from headgate.settings_fields import Address
from headgate.stores.embedded.server_handle import ServerHandle
from headgate.telemetry.logs import configure_logging

BACKOFF: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds before a worker that died is restarted
STEADY_SECONDS: Final = 10.0  # after which a worker that dies is restarted at once
LATEST: Final = 10.0  # seconds for workers to end, besides draining

log = logging.getLogger("headgate")


class WorkerFailed(HeadgateError):
    """A worker could not start. The message has its reason."""


def run(settings: Settings, started: Callable[[ListenAddresses], None]) -> None:
    """Serve with `settings.workers` processes until a signal. Calls `started` when all of them serve.

    Raises what `server.run` raises, and `WorkerFailed` if a worker cannot start.
    """
    with ExitStack() as stack:
        reserved: dict[str, Address] = {}
        for name, address in ListenAddresses.of(settings).by_name().items():
            shared, reserved[name] = reserve(address, f"{name}_address")
            stack.callback(close, shared)
        admin_token(settings, DataDirectory(settings.data_dir))  # created here once, not by every worker
        if settings.embedded:  # owned by the supervisor, so that counts outlive workers
            stack.callback(_counters(settings).close)
        settings = settings.model_copy(update={f"{name}_address": address for name, address in reserved.items()})
        # Not in the data directory: its path may be too long for a socket.
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-")))
        signals = stack.enter_context(_signals())
        _Supervisor(settings, sockets, signals, lambda: started(ListenAddresses(**reserved))).run()


def _counters(settings: Settings) -> ServerHandle:
    try:
        handle = ServerHandle(settings.store_url)
    except (ValueError, StoreError) as error:
        name = "store" if settings.store is not None else "workers"
        raise InvalidSettings(
            f"{names_of(name)}: {settings.workers} workers cannot share their counters: {error}; or set "
            f"{names_of('store')} to a Redis, or to memory:// to let each worker count separately"
        ) from error
    log.info("all workers share their counters in a Valkey of their own: %s", handle.directory)
    return handle


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """Catch signals. Yields a socket from which to read them: each is a byte, its number."""
    received, sent = socket.socketpair()
    with received, sent:
        received.setblocking(False)
        sent.setblocking(False)
        previous = signal.set_wakeup_fd(sent.fileno(), warn_on_full_buffer=False)
        handlers = {
            number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        }
        try:
            yield received
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(previous)


class _WorkerProcess:
    """A worker's index, and its current process."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.process: SpawnProcess | None = None
        self.pipe: Connection | None = None
        self.serves = False
        self.started_at = 0.0
        self.start_at = 0.0  # when to restart it
        self.deaths = 0  # in a row

    def start(self, settings: Settings, sockets: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_work, args=(settings, self.index, sockets, theirs), name=f"headgate-{self.index}"
        )
        # Ctrl-C and hang-ups reach all of a terminal's processes; only the supervisor may signal the workers.
        ignored = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGHUP)]
        try:
            self.process.start()
        finally:
            for number, handler in ignored:
                signal.signal(number, handler)
        theirs.close()
        self.started_at = time.monotonic()

    def send(self, number: int) -> None:
        if self.process is not None and self.process.pid is not None and self.process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def receive(self) -> Any:
        """Return the worker's next message; None if there is none."""
        try:
            return self.pipe.recv() if self.pipe is not None and self.pipe.poll() else None
        except (EOFError, OSError):
            return None

    def exit_code(self) -> int | None:
        """Clean up after a process that ended, and return its exit code."""
        assert self.process is not None
        self.process.join()
        code = self.process.exitcode
        self.process.close()
        self.process = None
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None
        self.serves = False
        self.deaths = 0 if time.monotonic() - self.started_at > STEADY_SECONDS else self.deaths + 1
        return code


class _Supervisor:
    def __init__(self, settings: Settings, sockets: Path, signals: socket.socket, started: Callable[[], None]) -> None:
        self._settings = settings
        self._sockets = sockets
        self._signals = signals
        self._started: Callable[[], None] | None = started  # None: already called
        self._workers = [_WorkerProcess(index) for index in range(settings.workers)]
        self._stopping = False
        self._kill_at = float("inf")

    def run(self) -> None:
        try:
            while self._alive() or not self._stopping:
                self._start_due()
                self._wait()
                for number in self._received_signals():
                    self._handle_signal(number)
                for worker in self._workers:
                    self._look(worker)
                if time.monotonic() > self._kill_at:
                    self._send(signal.SIGKILL)
        finally:
            self._send(signal.SIGKILL)
            for worker in self._alive():
                worker.exit_code()

    def _alive(self) -> list[_WorkerProcess]:
        return [worker for worker in self._workers if worker.process is not None]

    def _start_due(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            if worker.process is None and not self._stopping and worker.start_at <= now:
                worker.start(self._settings, self._sockets)

    def _wait(self) -> None:
        now = time.monotonic()
        times = [worker.start_at for worker in self._workers if worker.process is None and not self._stopping]
        times.append(self._kill_at)
        things: list[Any] = [self._signals]
        for worker in self._alive():
            assert worker.process is not None
            things.append(worker.process.sentinel)
            if worker.pipe is not None and not worker.serves:
                things.append(worker.pipe)
        next_at = min(times)
        wait(things, None if next_at == float("inf") else max(0.0, next_at - now))

    def _received_signals(self) -> bytes:
        try:
            return self._signals.recv(4_096)
        except BlockingIOError:
            return b""

    def _handle_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._send(number)
        elif self._stopping:
            self._send(signal.SIGTERM)  # the second signal for them, too
            sys.exit(AT_ONCE)
        else:
            self._stop()

    def _stop(self) -> None:
        self._stopping = True
        self._kill_at = time.monotonic() + self._settings.drain_delay + self._settings.drain_timeout + LATEST
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        for worker in self._workers:
            worker.send(number)

    def _look(self, worker: _WorkerProcess) -> None:
        """Read a worker's message, and restart it if it ended."""
        if worker.process is None:
            return
        problem = None
        if not worker.serves:
            match worker.receive():
                case ("serves",):
                    worker.serves = True
                case ("failed", str(message)):
                    problem = message
        if self._started is not None and all(one.serves for one in self._workers):
            self._started()
            self._started = None
        if problem is not None and self._started is not None:
            raise WorkerFailed(problem)
        if worker.process.is_alive() and problem is None:
            return
        code = worker.exit_code()
        if not self._stopping:
            if self._started is not None and worker.deaths >= len(BACKOFF):
                raise WorkerFailed(f"worker {worker.index} keeps ending, with exit code {code}")
            pause = BACKOFF[min(worker.deaths, len(BACKOFF)) - 1] if worker.deaths else 0.0
            worker.start_at = time.monotonic() + pause
            log.error(
                "worker %d ended%s: restarting it%s",
                worker.index,
                f": {problem}" if problem else f" with exit code {code}",
                f" in {pause:g} s" if pause else "",
            )


def _work(settings: Settings, index: int, sockets: Path, pipe: Connection) -> None:
    """Run a worker's process."""
    with collection_paused():
        from headgate.service import server  # noqa: PLC0415 - only in workers

    parent = multiprocessing.parent_process()
    assert parent is not None
    configure_logging(settings.log_format, settings.log_level, secrets=settings.secrets)
    try:
        server.run(
            settings,
            lambda _: pipe.send(("serves",)),
            worker=WorkerNumber(index, sockets),
            signals=(signal.SIGTERM,),
            stop_on=parent.sentinel,
        )
    except (HeadgateError, OSError) as error:
        with suppress(OSError):  # the supervisor has ended
            pipe.send(("failed", str(error)))
        sys.exit(2)
