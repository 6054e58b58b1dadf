"""Real web servers for tests and benchmarks: started as a process on a free port of loopback, stopped at the end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.servers import free_port, gone
from tests.warm import Process, Warm

ROOT = Path(__file__).parent.parent
START_SECONDS = 30.0
STOP_SECONDS = 10.0

# What follows `python -m`, for an app `package.module:name`. HTTP/1.1, one process unless told otherwise.
COMMANDS: Mapping[str, str] = {
    "uvicorn": "uvicorn --host 127.0.0.1 --port {port} --log-level warning --no-access-log {app}",
    "granian": "granian --host 127.0.0.1 --port {port} --log-level warning --interface asgi --workers 1 {app}",
    "granian-wsgi": "granian --host 127.0.0.1 --port {port} --log-level warning --interface wsgi --workers 1 {app}",
    "hypercorn": "hypercorn --bind 127.0.0.1:{port} --log-level warning {app}",
    "gunicorn": "gunicorn --bind 127.0.0.1:{port} --log-level warning --workers 1 --threads 4 {app}",
}
WARM = ("uvicorn", "gunicorn")  # those that are quick to start once Python has imported them


def stay_clear_of_the_hour(seconds: float = 20) -> None:
    """Wait if the hour is about to turn: a sliding window would let go of what a test has just used up."""
    left = 3600 - time.time() % 3600
    if left < seconds:
        time.sleep(left)


@contextmanager
def serving(server: str, app: str, *options: str, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """A server with this app, and its base URL. It has the environment of the test, and `env`."""
    port = free_port()
    module, *arguments = [*COMMANDS[server].format(port=port, app=app).split(), *options]
    with running([sys.executable, "-m", module, *arguments], port, env=env, warm=module in WARM):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def running(
    command: list[str], port: int, *, env: Mapping[str, str] | None = None, warm: bool = False
) -> Iterator[Process]:
    """A process that listens on a port of loopback. What it printed is told if it does not start.

    `warm`: the command is `python -m module …`, and is done by a process that need not import what it needs.
    """
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    with tempfile.TemporaryFile() as printed:
        process: Process
        if warm:
            output = printed.fileno()
            process = Warm(command[2], command[3:], cwd=ROOT, env=environ, out=output, err=output)
        else:
            process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=printed, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    printed.seek(0)
                    raise RuntimeError(f"{' '.join(command)} did not start:\n{printed.read().decode()}")
                time.sleep(0.05)
            yield process
        finally:
            process.terminate()
            gone(process, STOP_SECONDS)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
