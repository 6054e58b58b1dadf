"""Connections to the database, with the driver's errors converted to ours."""

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
POOL: Final = 5  # connections kept open
WRITE_SECONDS: Final = 10.0  # that PostgreSQL may be silent in a write transaction, which may wait for another
LARGE_SECONDS: Final = 30.0  # … in one that reads many rows
MIGRATION_SECONDS: Final = 600.0  # … in one that changes tables, or waits for another node's migration
MIGRATING: Final = 0x6865_6164_6761_7465  # PostgreSQL's advisory lock of migrations: "headgate"
POSTGRES: Final[dict[str, Any]] = {
    "connect_timeout": 3,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # ms until a vanished host is noticed
    "prepare_threshold": None,  # connection poolers may not support prepared statements
    "application_name": "headgate",
}
NAMING: Final = ("host", "port", "dbname")  # parameters of a URL that may be shown

_AWAY: Final = (  # the database could not be reached, as opposed to: it refused
    *(psycopg.OperationalError, psycopg.InterfaceError, sqlite3.OperationalError, PoolTimeout, OSError),
)

Kind = Literal["sqlite", "postgresql"]


class Database:
    """A database by URL: `sqlite:///rules.db`, `postgresql://user:password@host:5432/name`.

    Opens connections on demand, and replaces those that break or do not answer. Safe to share between threads.
    Raises `ValueError` for any other URL.
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
            event.listen(self._engine, "checkin", _reset_timeout)
            self._reading = self._engine.execution_options(isolation_level="REPEATABLE READ")
            self._writing = self._engine.execution_options()

    @contextmanager
    def read(self, *, seconds: float = ANSWER_SECONDS) -> Iterator[Connection]:
        """Begin a read transaction, which sees the database at one moment. Raises `DatabaseError`.

        It also raises that if PostgreSQL is silent for `seconds`, as does `write`.
        """
        with self._use(), self._reading.begin() as connection:
            set_timeout(connection, seconds)
            yield connection

    @contextmanager
    def write(self, *, lock: bool = False, seconds: float = WRITE_SECONDS) -> Iterator[Connection]:
        """Begin a write transaction; on SQLite, the only one. `lock` makes it the only one on PostgreSQL too.

        It commits at the end, unless an exception was raised. Raises `DatabaseError`; if that happens during the
        commit, the change may have been made.
        """
        with self._use(), self._writing.begin() as connection:
            set_timeout(connection, seconds)
            if lock and self.kind == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATING})
            yield connection

    def prepare(self) -> None:
        """Switch a new SQLite database to WAL, so that readers do not wait for the writer. This is permanent."""
        if self.kind != "sqlite":
            return
        with self.errors():
            connection = self._engine.raw_connection()
            try:
                connection.cursor().execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):  # otherwise another process is doing the same
                    raise wrap_error(error, self.name) from error
            finally:
                connection.close()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert the driver's errors to ours, and keep the cause."""
        try:
            yield
        except SQLAlchemyError as error:
            raise wrap_error(error, self.name) from error

    def close(self) -> None:
        """Close all connections; those in use are closed when returned. The database cannot be used afterwards.

        A call that waits for PostgreSQL raises `DatabaseError`.
        """
        self._closed.set()
        self._engine.pool.dispose()

    def reset_after_fork(self) -> None:
        """Drop the connections in a forked child, without closing them: they are the parent's."""
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
            if self._closed.is_set():  # closed meanwhile
                self._engine.pool.dispose()


def wrap_error(error: Exception, name: str) -> DatabaseError:
    """Return our error for one of the driver's."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    what = " ".join(str(cause).split()) or type(cause).__name__
    away = getattr(error, "connection_invalidated", False) or isinstance(cause, _AWAY)
    return (DatabaseUnavailable if away else DatabaseError)(f"{name}: {what}")


def _parse_url(url: str) -> tuple[URL, Kind]:
    """Parse a URL. Raises `ValueError`, which shows nothing that may be a password."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # ValueError: an invalid port
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
    """Return a URL for display, with only those parameters that name the database: others may be secrets."""
    shown = {name: value for name, value in url.query.items() if name in NAMING}
    return url.set(drivername=kind, query=shown).render_as_string(hide_password=True)


def set_timeout(connection: Connection, seconds: float) -> None:
    """Set how long PostgreSQL may be silent in this transaction."""
    driver = connection.connection.driver_connection
    if isinstance(driver, BoundConnection):
        driver.seconds = seconds


def _reset_timeout(connection: BoundConnection | None, _: object) -> None:
    """Restore the default timeout of a returned connection, for its next user's ping."""
    if connection is not None:
        connection.seconds = ANSWER_SECONDS


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # we begin transactions, not the driver
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")  # acknowledged writes survive a power failure


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that starts to write later would fail if another has written meanwhile.
    writes = connection.get_execution_options().get("headgate_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
