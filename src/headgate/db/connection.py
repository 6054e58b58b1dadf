"""Connections to the database, and what its driver's errors become."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any, Final, Literal

import psycopg
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from headgate.db.bound import ANSWER_SECONDS, BoundConnection
from headgate.errors import DatabaseError, DatabaseUnavailable

BUSY_SECONDS: Final = 10  # how long SQLite waits for another writer
POOL: Final = 5  # connections that are kept open
WRITE_SECONDS: Final = 10.0  # that PostgreSQL may be silent in a transaction that writes: it may wait for another
LARGE_SECONDS: Final = 30.0  # … in one that looks at many rows
MIGRATION_SECONDS: Final = 600.0  # … in one that changes tables, or waits for another node's migration
MIGRATING: Final = 0x6865_6164_6761_7465  # PostgreSQL's advisory lock of migrations: "headgate"
POSTGRES: Final[dict[str, Any]] = {
    "connect_timeout": 3,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # ms: a host that has vanished is noticed in this time
    "prepare_threshold": None,  # poolers between us and the server may not know prepared statements
    "application_name": "headgate",
}
NAMING: Final = ("host", "port", "dbname")  # parameters of a URL that are shown

_AWAY: Final = (  # could not be reached at all, as opposed to having said no
    *(psycopg.OperationalError, psycopg.InterfaceError, sqlite3.OperationalError, PoolTimeout, OSError),
)

Kind = Literal["sqlite", "postgresql"]


class Database:
    """A database by URL: `sqlite:///rules.db`, `postgresql://user:password@host:5432/name`.

    Opens connections when they are needed, and new ones for those that broke, or do not answer. Safe to share between
    threads.
    Raises `ValueError` on a URL that names no such database.
    """

    def __init__(self, url: str) -> None:
        self.url, self.kind = _parse_url(url)
        self._closed = Event()
        self.name = _display_url(self.url, self.kind)
        if self.kind == "sqlite":
            self._engine = create_engine(self.url, connect_args={"timeout": BUSY_SECONDS}, pool_size=POOL)
            event.listen(self._engine, "connect", _prepare_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
            self._reading = self._engine.execution_options()
            self._writing = self._engine.execution_options(headgate_writes=True)
        else:
            options = {**POSTGRES, **self.url.query}
            url_only = self.url.set(query={})
            self._engine = create_engine(
                url_only, connect_args=options, pool_size=POOL, pool_timeout=WRITE_SECONDS, pool_pre_ping=True
            )
            event.listen(self._engine, "do_connect", self._connect)
            event.listen(self._engine, "checkin", _settle)
            self._reading = self._engine.execution_options(isolation_level="REPEATABLE READ")
            self._writing = self._engine.execution_options()

    @contextmanager
    def read(self, *, seconds: float = ANSWER_SECONDS) -> Iterator[Connection]:
        """A transaction that sees the database as it was at one moment. Raises `DatabaseError`.

        That is also raised when PostgreSQL says nothing for so many seconds, here and in `write`.
        """
        with self._use(), self._reading.begin() as connection:
            allow(connection, seconds)
            yield connection

    @contextmanager
    def write(self, *, lock: bool = False, seconds: float = WRITE_SECONDS) -> Iterator[Connection]:
        """A transaction; on SQLite, the only one that writes. `lock` makes it the only one on PostgreSQL too.

        Committed at the end, unless something was raised. Raises `DatabaseError`; when that happens while
        committing, the change may have been made.
        """
        with self._use(), self._writing.begin() as connection:
            allow(connection, seconds)
            if lock and self.kind == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATING})
            yield connection

    def prepare(self) -> None:
        """Make a new SQLite database one whose readers do not wait for its writer. It stays so."""
        if self.kind != "sqlite":
            return
        with self.errors():
            connection = self._engine.raw_connection()
            try:
                connection.cursor().execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):  # else another process is busy doing the same
                    raise wrap_error(error, self.name) from error
            finally:
                connection.close()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns the driver's errors into ours, with the cause kept."""
        try:
            yield
        except SQLAlchemyError as error:
            raise wrap_error(error, self.name) from error

    def close(self) -> None:
        """Close all connections, those in use when they are returned. The database cannot be used afterwards.

        A call that waits for an answer of PostgreSQL raises `DatabaseError`.
        """
        self._closed.set()
        self._engine.pool.dispose()

    def reset_after_fork(self) -> None:
        """For a child process: leave the connections to the parent, whose they are."""
        self._engine.dispose(close=False)

    def _connect(self, _dialect: Any, _record: Any, args: Any, parameters: Any) -> BoundConnection:
        connection = BoundConnection.connect(*args, **parameters)
        connection.given_up = self._closed
        return connection

    @contextmanager
    def _use(self) -> Iterator[None]:
        if self._closed.is_set():
            raise DatabaseUnavailable(f"{self.name}: was closed")
        try:
            with self.errors():
                yield
        finally:
            if self._closed.is_set():  # meanwhile
                self._engine.pool.dispose()


def wrap_error(error: Exception, name: str) -> DatabaseError:
    """Our error for one of the driver's."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    what = " ".join(str(cause).split()) or type(cause).__name__
    away = getattr(error, "connection_invalidated", False) or isinstance(cause, _AWAY)
    return (DatabaseUnavailable if away else DatabaseError)(f"{name}: {what}")


def _parse_url(url: str) -> tuple[URL, Kind]:
    """Raises `ValueError`, which shows nothing that may be a password."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the latter of a port
        parsed = None
    if parsed is not None:
        if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
            authority = re.split("[/?#]", url.partition("://")[2], maxsplit=1)[0]
            if "@" in (parsed.host or "") or (parsed.password is not None and "@" not in authority):
                raise ValueError(
                    "database: a / ? # or @ is in the wrong place: in user, password and parameters they are written "
                    "%2F %3F %23 %40"
                )
            return parsed.set(drivername="postgresql+psycopg"), "postgresql"
        if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
            if parsed.database in (None, "", ":memory:"):
                raise ValueError("database: a URL of SQLite must name a file: write sqlite:///rules.db")
            return parsed.set(drivername="sqlite+pysqlite"), "sqlite"
    shown = "this" if parsed is None else f"{parsed.drivername}://…"
    raise ValueError(
        f"database: {shown} is not a URL of a database; use sqlite:///rules.db or postgresql://user@host/name"
    )


def _display_url(url: URL, kind: Kind) -> str:
    """A URL for people: of its parameters, those that say which database it is. Any other may be a secret."""
    told = {name: value for name, value in url.query.items() if name in NAMING}
    return url.set(drivername=kind, query=told).render_as_string(hide_password=True)


def allow(connection: Connection, seconds: float) -> None:
    """From now on, PostgreSQL may be silent for so long in this transaction."""
    driver = connection.connection.driver_connection
    if isinstance(driver, BoundConnection):
        driver.seconds = seconds


def _settle(connection: BoundConnection | None, _: object) -> None:
    """For who uses it next, and first looks whether it answers."""
    if connection is not None:
        connection.seconds = ANSWER_SECONDS


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # transactions begin when we say so, not when the driver thinks that they should
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")  # what was acknowledged survives a power failure


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that only turns to writing later would fail when another has written meanwhile.
    writes = connection.get_execution_options().get("headgate_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
