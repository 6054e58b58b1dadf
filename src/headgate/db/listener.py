"""Listeners for changes of the database: PostgreSQL notifies; a SQLite file is polled."""

from __future__ import annotations

import select
import socket
import sqlite3
from contextlib import suppress
from threading import Event
from time import monotonic
from typing import Any, Final, Protocol

import psycopg

from headgate.db.bound import BoundConnection
from headgate.db.connection import POSTGRES, Database, wrap_error
from headgate.db.queries import CHANNEL
from headgate.errors import DatabaseUnavailable

SQLITE_SECONDS: Final = 0.2  # between two polls of a file


class NotificationListener(Protocol):
    """Listens for changes from its creation on. For one thread, except for `wake`."""

    def wait(self, seconds: float) -> None:
        """Wait until something may have changed, at most `seconds`. Raises `DatabaseError`."""
        ...

    def wake(self) -> None:
        """Make `wait` return at once, now and in future. Call it from any thread, even after `close`."""
        ...

    def close(self) -> None: ...


def listen(database: Database) -> NotificationListener:
    """Return a listener for a database. Raises `DatabaseError`."""
    return PostgresListener(database) if database.kind == "postgresql" else SqliteListener(database)


class PostgresListener:
    """A listener on its own connection, with LISTEN."""

    def __init__(self, database: Database) -> None:
        self._name = database.name
        self._mine, self._wake = socket.socketpair()
        url = database.url
        known = {"host": url.host, "port": url.port, "user": url.username, "password": url.password}
        arguments: dict[str, Any] = {name: value for name, value in known.items() if value is not None}
        arguments |= {"dbname": url.database, "autocommit": True, **POSTGRES, **url.query}
        try:
            self._connection = BoundConnection.connect(**arguments)
        except psycopg.Error as error:
            self._close_sockets()
            raise wrap_error(error, self._name) from error
        try:
            self._connection.execute(f"LISTEN {CHANNEL}")
        except psycopg.Error as error:
            self.close()
            raise wrap_error(error, self._name) from error

    def wait(self, seconds: float) -> None:
        try:
            if self._take_notifications():
                return
            select.select([self._connection.fileno(), self._mine.fileno()], [], [], seconds)
            self._take_notifications()
        except (psycopg.Error, OSError, ValueError) as error:  # ValueError: the socket is gone
            raise wrap_error(error, self._name) from error

    def wake(self) -> None:
        with suppress(OSError):  # closed: no call waits
            self._wake.send(b"!")

    def close(self) -> None:
        self._connection.close()
        self._close_sockets()

    def _take_notifications(self) -> bool:
        """Take all notifications, and return whether there were any."""
        return bool(list(self._connection.notifies(timeout=0)))

    def _close_sockets(self) -> None:
        self._mine.close()
        self._wake.close()


class SqliteListener:
    """A listener that polls the file's version, which is cheap, a few times a second."""

    def __init__(self, database: Database) -> None:
        self._name = database.name
        self._woken = Event()
        try:
            self._connection: Any = sqlite3.connect(str(database.url.database), check_same_thread=False)
            self._version = self._read_version()
        except sqlite3.Error as error:
            raise DatabaseUnavailable(f"{self._name}: {error}") from error

    def wait(self, seconds: float) -> None:
        deadline = monotonic() + seconds
        while not self._woken.wait(max(0.0, min(SQLITE_SECONDS, deadline - monotonic()))):
            try:
                version = self._read_version()
            except sqlite3.Error as error:
                raise DatabaseUnavailable(f"{self._name}: {error}") from error
            if version != self._version or monotonic() >= deadline:
                self._version = version
                return

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        self._connection.close()

    def _read_version(self) -> int:
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version
