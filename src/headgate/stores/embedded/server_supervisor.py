"""The supervisor of one directory's server: runs it while any process uses it, and restarts it when it dies.

This is a separate program that uses only the standard library and runs in the directory:
`python server_supervisor.py <server binary> <maxmemory>`. It starts with an open, locked descriptor of `keeper.lock`:
while it lives, there is no other supervisor. Users hold a shared lock on the directory. When the supervisor gets an
exclusive lock, the last user has ended, for whatever reason. It is detached from the process that started it, so that
the server outlives that process.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Final

SOCKET: Final = "server.sock"
PID: Final = "server.pid"
BACKOFF: Final = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)  # seconds before a server that died is restarted
STEADY_SECONDS: Final = 10.0  # a server that dies after this time is restarted at once
STOP_SECONDS: Final = 5.0  # how long the server has to end
LOG_BYTES: Final = 1 << 20  # largest size of the log, which is then truncated
PR_SET_PDEATHSIG: Final = 1


class ServerSupervisor:
    def __init__(self, binary: str, maxmemory: str) -> None:
        self._command = [
            binary,
            *("--port", "0", "--unixsocket", SOCKET, "--unixsocketperm", "700", "--dir", ".", "--pidfile", PID),
            *("--save", "", "--appendonly", "no", "--databases", "1"),
            *("--maxmemory", maxmemory, "--maxmemory-policy", "noeviction"),
            *("--daemonize", "no", "--logfile", "", "--loglevel", "warning"),
        ]
        self._directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self._over = Event()
        self._lock = Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._tie = _tie()

    def run(self) -> int:
        """Keep the server running until no process uses it. Returns the exit code: not 0 if it cannot be started."""
        Thread(target=self._end_with_last_user, daemon=True).start()
        deaths, is_first = 0, True
        while True:
            began = time.monotonic()
            code = self._serve()
            if self._over.is_set():
                break
            lasted = time.monotonic() - began
            if is_first and code > 0 and lasted < STEADY_SECONDS:
                return 1  # it has logged the reason
            is_first = False
            deaths = 0 if lasted > STEADY_SECONDS else deaths + 1
            _say(f"the server ended with {code}; restarting it")
            self._over.wait(BACKOFF[min(deaths, len(BACKOFF) - 1)])
        for name in (SOCKET, PID):
            Path(name).unlink(missing_ok=True)
        return 0

    def _serve(self) -> int:
        """Run the server to its end, and return its exit code."""
        with self._lock:  # so that it is not started after the end
            if self._over.is_set():
                return 0
            if os.fstat(1).st_size > LOG_BYTES:
                os.ftruncate(1, 0)
            try:
                self._server = subprocess.Popen(self._command, preexec_fn=self._tie)  # noqa: PLW1509 - one thread waits
            except OSError as error:
                _say(f"{self._command[0]} cannot be run: {error.strerror}")
                return 1
        return self._server.wait()

    def _end_with_last_user(self) -> None:
        fcntl.flock(self._directory, fcntl.LOCK_EX)
        with self._lock:
            self._over.set()
            server = self._server
        if server is not None:
            server.terminate()
            time.sleep(STOP_SECONDS)  # this process ends before that
            server.kill()


def _tie() -> Callable[[], None] | None:
    """Return a function that makes the system kill a child when this process dies; None except on Linux."""
    if sys.platform != "linux":
        return None
    libc, supervisor = ctypes.CDLL(None), os.getpid()

    def tie() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # the supervisor died just now
            os._exit(1)

    return tie


def end_leftover() -> None:
    """End the server of a killed supervisor, which may still run where it was not tied to the supervisor."""
    with socket.socket(socket.AF_UNIX) as leftover:
        leftover.settimeout(STOP_SECONDS)
        with suppress(OSError):
            leftover.connect(SOCKET)
            leftover.sendall(b"SHUTDOWN NOSAVE\r\n")
            while leftover.recv(4096):  # until it closes the connection
                pass
    for name in (SOCKET, PID):
        Path(name).unlink(missing_ok=True)


def _say(text: str) -> None:
    print(f"supervisor: {text}", flush=True)


def main() -> int:
    # An init system may signal all processes at once. The supervisor ignores the signal, because its users may need the
    # server until they end. It uses an empty handler instead of SIG_IGN, which the server would inherit.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    end_leftover()
    if os.fork():  # the process that started this one continues
        os._exit(0)
    return ServerSupervisor(*sys.argv[1:]).run()


if __name__ == "__main__":
    sys.exit(main())
