"""Rules from a database, which all nodes follow.

    source = DatabaseSource("postgresql://…")
    limiter = Limiter(source)

`Limiter("postgresql://…")` is short for the same. `headgate.db.Changes` is how rules get there and change.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from threading import Event, Lock, Thread, current_thread
from typing import Any, Final

from headgate.core.fork import renew_in_children
from headgate.db import queries
from headgate.db.changes import ChangeListener, Changes
from headgate.db.connection import LARGE_SECONDS, Database, allow
from headgate.db.listener import NotificationListener, listen
from headgate.db.migrations import migrate
from headgate.db.queries import Versions
from headgate.db.records import RuleRecord, unstorable
from headgate.errors import DatabaseError, InvalidRule
from headgate.rules.holder import Holder
from headgate.rules.snapshot import Snapshot
from headgate.rules.sources.collection import collection_paused
from headgate.rules.sources.users import CachedDirectory, UsersStatus
from headgate.rules.users import User

POLL_SECONDS: Final = 30.0
RETRY_SECONDS: Final = (0.1, 0.2, 0.3, 0.5)  # before the next try to listen again; the last one repeats
CLOSE_SECONDS: Final = 1.0  # that closing waits for a database that is being asked
MAX_FORGOTTEN: Final = 1_000  # users that changed at once; when more did, all are looked up again
CHANNEL: Final = "rules"  # of Redis, behind the store's prefix
SEEDED_BY: Final = "headgate"  # in the change log

log = logging.getLogger("headgate")


@dataclass(frozen=True, slots=True)
class DatabaseStatus:
    """How a source is doing."""

    version: str  # of the snapshot in force
    failing: bool  # whether the database could not be asked when it last should have been
    error: str | None  # why
    failing_since: float | None  # Unix time, in seconds
    loads: int  # how often rules were read and put in force
    failures: int  # how often the database could not be asked
    rejected: int  # versions of the rules that were invalid
    stale: bool  # whether the latest version was invalid: the rules in force are older
    users: UsersStatus


class DatabaseSource:
    """Keeps the rules of a database in force: of PostgreSQL (`postgresql://…`) or SQLite (`sqlite:///rules.db`).

    Changes are in force within a second: PostgreSQL notifies, a SQLite file is looked at a few times a second, and
    with `redis`, a URL as stores have it, what is announced there counts too. Every `poll` seconds it looks
    without a notification. While the database is down, the last good rules stay in force; it reconnects automatically.

    Users' tiers and overrides are not loaded but looked up when they come: `users_cached` and `users_seconds` say
    how many are remembered for how long, `users_deadline` how long a check waits for one.

    `migrated` first brings the database's tables up to date; `seed` is put into one that has never held anything.
    Raises `DatabaseError` when the database cannot be reached to begin with, `InvalidRule` when its rules are not
    good; with a `fallback`, that is in force instead until the database is there with good rules.

    A `Database` that it is given stays its caller's to close. Safe to use from any thread.
    """

    def __init__(
        self,
        database: str | Database,
        *,
        redis: str | None = None,
        poll: float = POLL_SECONDS,
        migrated: bool = True,
        seed: Snapshot | None = None,
        fallback: Snapshot | None = None,
        users_cached: int = 100_000,
        users_seconds: float = 300.0,
        users_deadline: float = 0.25,
    ) -> None:
        self._owned = isinstance(database, str)
        self._database = Database(database) if isinstance(database, str) else database
        self._poll = poll
        self._migrated = migrated
        self._seed = seed
        self._stop = Event()
        self._ready = False  # whether the database has its tables, and its seed
        self._lock = Lock()  # of what follows: one load at a time, so that an older never replaces a newer
        self._versions = Versions(0, 0)
        self._error: DatabaseError | None = None
        self._failing_since: float | None = None
        self._loads = self._failures = self._rejected = 0
        self._rejected_version: int | None = None  # the latest version of the rules, if it was invalid
        self._rules: dict[str, RuleRecord] = {}  # as last read
        self._directory = CachedDirectory(
            self._users, size=users_cached, seconds=users_seconds, deadline=users_deadline
        )
        self._holder: Holder | None = None if fallback is None else Holder(fallback)
        try:
            if fallback is None:
                self.reload()
            else:
                self.refresh()
        except BaseException:
            if self._owned:
                self._database.close()
            raise
        self._redis = redis
        self._start()
        renew_in_children(self)

    @property
    def holder(self) -> Holder:
        assert self._holder is not None
        return self._holder

    def reload(self) -> Snapshot:
        """Read the rules, now, and put them in force.

        Raises `InvalidRule` or `DatabaseError`: then what was in force still is.
        """
        return self._catch_up(anyway=True)

    def refresh(self) -> None:
        """Look whether anything has changed, and put it in force. What goes wrong is logged, once."""
        try:
            self._catch_up()
        except DatabaseError as error:
            self._failed(error)
        except InvalidRule as error:
            log.error(  # noqa: TRY400 - a list of problems says more than a traceback
                "rules: version %d of %s is invalid: version %s stays in force. %d problems:\n%s",
                self._versions.version,
                self._database.name,
                self.holder.current.version,
                len(error.problems),
                error,
            )
        except Exception:  # of any kind: the thread that follows the rules must outlive it, or they would never change
            log.exception("rules: %s could not be followed", self._database.name)

    def changes(self, listener: ChangeListener | None = None) -> Changes:
        """What changes the rules of this database; here they are in force as soon as they are committed.

        `listener` is called with each transaction.
        """
        return Changes(self._database, announce=self._announce, listener=listener)

    def status(self) -> DatabaseStatus:
        """How it is doing."""
        return DatabaseStatus(
            version=self.holder.current.version,
            failing=self._error is not None,
            error=None if self._error is None else str(self._error),
            failing_since=self._failing_since,
            loads=self._loads,
            failures=self._failures,
            rejected=self._rejected,
            stale=self._rejected_version is not None,
            users=self._directory.status(),
        )

    def close(self) -> None:
        """Stop following the database, and give back its connections."""
        self._stop.set()
        listener = self._listener
        if listener is not None:
            listener.wake()
        if self._channel is not None:
            self._channel.close()
        if self._thread is not current_thread():
            self._thread.join(CLOSE_SECONDS)
        self._directory.close()
        if self._owned:
            self._database.close()

    def _start(self) -> None:
        self._stop = Event()
        self._listener: NotificationListener | None = None
        self._channel: Any = None if self._redis is None else _channel(self._redis, self.refresh)
        self._thread = Thread(target=self._follow, name="headgate-rules", daemon=True)
        self._thread.start()

    def forked(self) -> None:
        """In a child process, which has neither the parent's threads nor any business with its connections."""
        self._lock = Lock()
        self._database.forked()
        self._directory.forked()
        if not self._stop.is_set():
            self._start()

    def _catch_up(self, *, anyway: bool = False) -> Snapshot:
        """Put in force what has changed since the last time; with `anyway`, everything."""
        with self._lock:
            self._make_ready()
            seen = self._versions
            problem: InvalidRule | None = None
            with self._database.read() as connection:
                now = queries.versions(connection)
                if now.version == seen.version and not anyway:
                    self._answered()
                    return self.holder.current
                allow(connection, LARGE_SECONDS)
                later = now.version > seen.version  # else it is another database, or one from a backup
                changed = queries.users_changed(connection, seen.version, most=MAX_FORGOTTEN) if later else None
                tiers, overrides = queries.users_kept(connection)
                snapshot = None if self._holder is None else self._holder.current
                if anyway or now.rules_version not in (seen.rules_version, self._rejected_version):
                    try:
                        with collection_paused():
                            content = queries.content(connection, self._rules if later and not anyway else None)
                            previous = None if self._holder is None else self._holder.current
                            snapshot = content.snapshot(now.version, self._directory, previous)
                            self._rules = content.rules
                    except InvalidRule as error:
                        problem = error
                elif snapshot is not None and now.rules_version == seen.rules_version:
                    snapshot = snapshot.at(str(now.version))
            self._answered()
            self._directory.has_tiers, self._directory.has_overrides = tiers, overrides
            self._directory.forget(changed)
            if problem is not None:
                self._rejected += 1
                self._rejected_version = now.rules_version
                self._versions = Versions(now.version, seen.rules_version)
                raise problem
            assert snapshot is not None
            if anyway or now.rules_version != self._rejected_version:
                self._rejected_version = None
            in_force = now.rules_version if self._rejected_version is None else seen.rules_version
            self._versions = Versions(now.version, in_force)
            self._swap(snapshot, loaded=in_force != seen.rules_version)
            return snapshot

    def _make_ready(self) -> None:
        """What is to be done once, as soon as the database can be reached."""
        if self._ready:
            return
        if self._migrated:
            migrate(self._database)
        if self._seed is not None:
            with Changes(self._database).begin(SEEDED_BY) as change:
                if change.is_first:
                    change.apply(self._seed)
                    log.info("rules: %s was empty, and has sample rules now", self._database.name)
        self._ready = True

    def _swap(self, snapshot: Snapshot, *, loaded: bool) -> None:
        if self._holder is None:
            self._holder = Holder(snapshot)
        else:
            self._holder.swap(snapshot)
        if loaded:
            self._loads += 1
            log.info("rules: version %s of %s is in force", snapshot.version, self._database.name)

    def _follow(self) -> None:
        """What the thread does: listen, look, and listen again when the connection broke."""
        tries = 0
        while not self._stop.is_set():
            try:
                with closing(listen(self._database)) as self._listener:
                    tries = 0
                    while not self._stop.is_set():
                        self.refresh()  # first, as it may have missed something before it listened
                        self._listener.wait(self._poll if self._error is None else RETRY_SECONDS[-1])
            except DatabaseError as error:
                self._failed(error)
            finally:
                self._listener = None
            self._stop.wait(RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)])
            tries += 1

    def _answered(self) -> None:
        if self._error is not None:
            self._error = self._failing_since = None
            log.warning("rules: %s answers again", self._database.name)

    def _failed(self, error: DatabaseError) -> None:
        with self._lock:
            self._failures += 1
            if self._error is None and not self._stop.is_set():  # else it may be that it was closed
                self._failing_since = time.time()
                log.error("rules: version %s stays in force: %s", self.holder.current.version, error)
            self._error = error

    def _users(self, ids: Collection[str]) -> dict[str, User]:
        with self._database.read() as connection:
            return queries.users(connection, [user_id for user_id in ids if unstorable(user_id) is None])

    def _announce(self, version: int) -> None:
        self.refresh()
        if self._channel is not None:
            self._channel.say(str(version))


def _channel(url: str, heard: Callable[[], None]) -> Any:
    try:
        channels = import_module("headgate.stores.redis.channel")
    except ImportError as error:
        raise ImportError("hearing of changes by Redis needs redis: pip install 'headgate[redis]'") from error
    return channels.Channel(url, CHANNEL, heard)
