"""The real service for tests and benchmarks: `headgate serve` as a process, on free ports of loopback.

with warm_service(tmp_path) as service:
    httpx.post(f"{service.url}/v1/check", json={"user": "alice"})
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from tests.warm import Process, Warm

START_SECONDS = 60.0  # on a busy machine
STOP_SECONDS = 40.0
LATEST = 60.0  # after which a test gives up
COMMAND = (sys.executable, "-m", "headgate")
ROOT = Path(__file__).parent.parent
_SERVING = re.compile(r"serving: HTTP on (\S+), gRPC on ([^\s\",]+)(?:, admin on ([^\s\"]+))?")


@dataclass
class Service:
    """One that is serving. What it was not told, it has in `data_dir`."""

    url: str  # without a slash at its end
    grpc_address: str
    admin_token: str
    process: Process
    data_dir: Path
    log_file: Path
    admin_url: str = ""  # where the admin API, the console and metrics are
    secrets: list[str] = field(default_factory=list)  # what its log must not show; those of its settings are among them

    @property
    def log(self) -> str:
        """What it has logged so far, one JSON object in each line."""
        return self.log_file.read_text()

    @property
    def headers(self) -> dict[str, str]:
        """Those of requests to the admin API."""
        return {"Authorization": f"Bearer {self.admin_token}"}

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and wait for the end. Returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()


def environment(settings: Mapping[str, Any], base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of this process, without settings of its own, and with these."""
    kept = {name: value for name, value in (base or os.environ).items() if not name.startswith("HEADGATE_")}
    return kept | {f"HEADGATE_{name.upper()}": str(value) for name, value in settings.items()}


def running_service(tmp_path: Path, *flags: str, **settings: Any) -> AbstractContextManager[Service]:
    """A service with these settings, started by its command: `running_service(tmp_path, store=url, workers=2)`.

    In memory, on SQLite in `tmp_path/data`, with the sample rules (unless `samples=False`), on any free ports, unless
    told. Another one on the same `tmp_path` finds what the first has left. What it logged is shown if it does not
    start. Stopped at the end, if it has not been; and then its log is looked at, which must not show any secret.
    """
    return _served(_started, tmp_path, flags, settings)


def warm_service(tmp_path: Path, *flags: str, **settings: Any) -> AbstractContextManager[Service]:
    """The same where it does not matter how it was started: it has not to import what it needs."""
    return _served(_forked, tmp_path, flags, settings)


def _started(tmp_path: Path, arguments: list[str], env: dict[str, str], log: BinaryIO) -> Process:
    return subprocess.Popen([*COMMAND, *arguments], cwd=tmp_path, env=env, stdout=log, stderr=subprocess.STDOUT)


def _forked(tmp_path: Path, arguments: list[str], env: dict[str, str], log: BinaryIO) -> Process:
    return Warm("headgate", arguments, cwd=tmp_path, env=env, out=log.fileno(), err=log.fileno())


@contextmanager
def _served(
    start: Callable[[Path, list[str], dict[str, str], BinaryIO], Process],
    tmp_path: Path,
    flags: tuple[str, ...],
    settings: dict[str, Any],
) -> Iterator[Service]:
    samples = settings.pop("samples", True)
    data_dir = Path(settings.setdefault("data_dir", tmp_path / "data"))
    settings = {"http_address": "127.0.0.1:0", "grpc_address": "127.0.0.1:0", "drain_delay": 0, **settings}
    log_file = tmp_path / "service.log"
    with log_file.open("wb") as log:
        process = start(tmp_path, ["serve", *(["--samples"] if samples else []), *flags], environment(settings), log)
    try:
        http, grpc, admin = _addresses(process, log_file)
        scheme = "https" if "tls_certificate" in settings else "http"
        token = settings.get("admin_token") or (data_dir / "admin-token").read_text().strip()
        service = Service(
            *(f"{scheme}://{http}", grpc, token, process, data_dir, log_file),
            admin_url=f"{scheme}://{admin or http}",
            secrets=_secrets(token, settings),
        )
        yield service
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    told = [line for line in service.log.splitlines() if any(secret in line for secret in service.secrets)]
    assert told == []


def _secrets(admin_token: str, settings: Mapping[str, Any]) -> list[str]:
    passwords = [urlsplit(str(settings.get(name, ""))).password for name in ("store", "database_url")]
    return [secret for secret in (admin_token, settings.get("data_token"), *passwords) if secret]


def _addresses(process: Process, log_file: Path) -> tuple[str, str, str | None]:
    deadline = time.monotonic() + START_SECONDS
    while True:
        log = log_file.read_text()
        found = _SERVING.search(log)
        if found is not None:
            return found[1], found[2], found[3]
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the service did not start (exit code {process.poll()}):\n{log}")
        time.sleep(0.02)
