"""ServerHandle: one process's use of the server of a directory. The server runs while any process uses it."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from threading import Thread
from typing import Final, Literal
from urllib.parse import quote
from weakref import finalize

from headgate.errors import StoreError, StoreUnavailable
from headgate.stores.breaker import State
from headgate.stores.embedded import server_supervisor
from headgate.stores.embedded.options import EmbeddedOptions, find_server, own_directory, read_url
from headgate.stores.protocol import StoreObserver

SUPERVISOR_LOCK: Final = "keeper.lock"
LOG: Final = "server.log"
LOG_LINES: Final = 8  # lines of the log to show in an error
START_SECONDS: Final = 15.0  # enough on a busy machine
LOOK_SECONDS: Final = 0.01
PING_SECONDS: Final = 1.0
MEND_SECONDS: Final = 0.2  # between attempts to restart a server that fails
MAX_PATH: Final = 100  # bytes of a socket's path: systems allow 103 or 107

log = logging.getLogger("headgate")


class ServerHandle:
    """One process's use of a server, which any process with the same directory may have started.

    The server answers once the handle is created. Raises `InvalidStore` if the URL is invalid, and `StoreUnavailable`
    if no server can be started. Forked children share their parent's handle: each has it until it closes the handle or
    ends.
    """

    def __init__(self, url: str) -> None:
        self._options: EmbeddedOptions = read_url(url)
        self.directory = self._options.directory
        self._binary = find_server(self._options.server)
        self._socket = _short(self.directory) / server_supervisor.SOCKET
        self._taken: tuple[int, finalize[..., ServerHandle]] | None = (
            None  # the directory's descriptor, and its finalizer
        )
        self._closed = False
        self._mending: Thread | None = None
        self._mended_at = 0.0
        try:
            self._ensure()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The URL of the Redis store on the server."""
        query = self._options.query
        return f"unix://{quote(str(self._socket))}{f'?{query}' if query else ''}"

    def mend(self) -> None:
        """Restart the server in the background if necessary. Called after a call to it failed.

        A supervisor restarts its server on its own. This restores a supervisor that was killed, and deleted files.
        """
        now = time.monotonic()
        if self._closed or now < self._mended_at + MEND_SECONDS:
            return
        if self._mending is not None and self._mending.is_alive():  # in a forked child, no thread is alive
            return
        self._mended_at = now
        self._mending = Thread(target=self._mend, name="headgate-embedded", daemon=True)
        with suppress(RuntimeError):  # no thread can start: the process is ending, or has too many
            self._mending.start()

    def close(self) -> None:
        """Stop using the server. It ends when no process uses it; this does not wait for its end."""
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        if self._taken is not None:
            self._taken[1]()

    def _mend(self) -> None:
        try:
            self._ensure()
        except (StoreUnavailable, OSError) as error:
            log.warning("the embedded store could not be restarted yet, trying again: %s", error)
        if self._closed:  # in the meantime
            self._let_go()

    def _ensure(self) -> None:
        """Lock the directory, and make sure that there are a supervisor and a server that answers."""
        deadline = time.monotonic() + START_SECONDS
        try:
            _own(self.directory)
            self._take(deadline)
            _link(self._socket.parent, self.directory)
            was_started = False
            while True:
                lock = _lock(self.directory / SUPERVISOR_LOCK)
                if lock is not None:  # there is no supervisor
                    if was_started:
                        raise StoreUnavailable(f"the embedded server cannot be started: {self._last_words()}")
                    self._start_supervisor(lock)
                    was_started = True
                    if self._mending is not None:
                        log.warning("the embedded store's server was gone: restarted it, and counts start from zero")
                if self._answers():
                    return
                if time.monotonic() > deadline:
                    raise StoreUnavailable(
                        f"the embedded server in {self.directory} does not answer: {self._last_words()}"
                    )
                time.sleep(LOOK_SECONDS)
        except OSError as error:
            raise StoreUnavailable(f"the embedded store cannot use {self.directory}: {error}") from error

    def _take(self, deadline: float) -> None:
        """Take a shared lock on the directory, which keeps its supervisor running."""
        if self._taken is not None and self._taken[1].alive and _same(self._taken[0], self.directory):
            return
        self._let_go()
        while True:
            taken = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(taken, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:  # the last user has just left, and the supervisor is about to end
                os.close(taken)
                if time.monotonic() > deadline:
                    raise StoreUnavailable(f"the embedded server in {self.directory} does not end") from None
                time.sleep(LOOK_SECONDS)
                continue
            self._taken = (taken, finalize(self, os.close, taken))  # never unlocked: forked children share the lock
            if _same(taken, self.directory):
                return
            self._let_go()  # the directory was deleted in the meantime, and there is a new one

    def _start_supervisor(self, lock: int) -> None:
        """Start a supervisor, and pass it the lock."""
        descriptors = [lock]
        try:
            said = os.open(self.directory / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            descriptors.append(said)
            subprocess.run(
                [_python(), "-I", "-S", server_supervisor.__file__, str(self._binary), self._options.maxmemory],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=(lock,),
                start_new_session=True,  # so that Ctrl-C does not reach it
                umask=0o077,
                check=False,  # the log shows what went wrong
            )
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as server:
            server.settimeout(PING_SECONDS)
            try:
                server.connect(str(self._socket))
                server.sendall(b"PING\r\n")
                return server.recv(16).startswith(b"+PONG")
            except OSError:
                return False

    def _last_words(self) -> str:
        file = self.directory / LOG
        try:
            lines = file.read_text(errors="replace").splitlines()
        except OSError as error:
            return f"{file}: {error.strerror}"
        return "\n".join([f"the end of {file} reads", *lines[-LOG_LINES:]])


class RestartingObserver:
    """An observer that restarts the server when a call fails, and forwards everything to another observer."""

    def __init__(self, handle: ServerHandle, observer: StoreObserver | None) -> None:
        self._handle = handle
        self._observer = observer

    def called(self, seconds: float, groups: int) -> None:
        if self._observer is not None:
            self._observer.called(seconds, groups)

    def failed(self, error: StoreError, seconds: float, groups: int) -> None:
        self._handle.mend()
        if self._observer is not None:
            self._observer.failed(error, seconds, groups)

    def breaker(self, node: str, state: State | Literal["gone"]) -> None:
        if self._observer is not None:
            self._observer.breaker(node, state)


def _own(directory: Path) -> None:
    """Create a directory, or check that this user owns it. Raises `OSError`, or `StoreUnavailable` if not."""
    if directory.parent == own_directory():
        _own(directory.parent)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.stat()
    if found.st_uid != os.geteuid():
        raise StoreUnavailable(f"the embedded store cannot use {directory}: it belongs to another user")
    if found.st_mode & stat.S_IWOTH:
        raise StoreUnavailable(f"the embedded store does not use {directory}: every user may write to it")


def _short(directory: Path) -> Path:
    """Return the directory, or a link to it, with a path that is short enough for a socket."""
    if len(os.fsencode(directory / server_supervisor.SOCKET)) <= MAX_PATH:
        return directory
    short = own_directory() / sha256(os.fsencode(directory)).hexdigest()[:16]
    if len(os.fsencode(short / server_supervisor.SOCKET)) > MAX_PATH:
        raise StoreUnavailable(
            f"the embedded store cannot use {directory}: the path of a socket in it, and of one in {short}, would be "
            f"longer than {MAX_PATH} bytes; use a directory with a shorter path"
        )
    return short


def _link(short: Path, directory: Path) -> None:
    if short == directory:
        return
    _own(short.parent)
    with suppress(FileExistsError):
        short.symlink_to(directory)


def _same(descriptor: int, directory: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), directory.stat())
    except FileNotFoundError:
        return False


def _lock(path: Path) -> int | None:
    """Lock a file, and return its descriptor; None if another process has locked it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _python() -> str:
    """Return a Python executable to run the supervisor: this one, unless Python is embedded in a program like uWSGI."""
    for candidate in (Path(sys.executable), Path(sys.prefix) / "bin" / "python3"):
        if candidate.name.startswith("python") and os.access(candidate, os.X_OK):
            return str(candidate)
    raise StoreUnavailable(f"the embedded store found no Python to run its supervisor with, beside {sys.executable!r}")
