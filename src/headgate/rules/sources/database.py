"""Rules from a database that all nodes follow.

    source = DatabaseSource("postgresql://…")
    limiter = Limiter(source)

`Limiter("postgresql://…")` is a short form. `headgate.db.Changes` writes and changes the rules.
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
from headgate.db.connection import LARGE_SECONDS, Database, set_timeout
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
RETRY_SECONDS: Final = (0.1, 0.2, 0.3, 0.5)  # delays before listening again; the last one repeats
CLOSE_SECONDS: Final = 1.0  # how long `close` waits for a query in progress
MAX_FORGOTTEN: Final = 1_000  # users that changed at once; if more did, all are looked up again
CHANNEL: Final = "rules"  # in Redis, behind the store's prefix
SEEDED_BY: Final = "headgate"  # author in the change log

log = logging.getLogger("headgate")


@dataclass(frozen=True, slots=True)
class DatabaseStatus:
    """The status of a source."""

    version: str  # version of the snapshot in force
    failing: bool  # whether the last query of the database failed
    error: str | None  # why
    failing_since: float | None  # Unix time, in seconds
    loads: int  # how often rules were loaded and put in force
    failures: int  # how often the database could not be queried
    rejected: int  # versions of the rules that were invalid
    stale: bool  # whether the latest version was invalid, so that older rules are in force
    users: UsersStatus


class DatabaseSource:
    """A source that follows a database: PostgreSQL (`postgresql://…`) or SQLite (`sqlite:///rules.db`).

    Changes take effect within a second: PostgreSQL notifies, a SQLite file is checked a few times a second, and with
    `redis`, the URL of a store, notifications through Redis count too. Every `poll` seconds the source also checks
    without a notification. While the database is down, the last valid rules stay in force, and the source reconnects
    automatically.

    Users' tiers and overrides are not loaded in advance but looked up when their requests come. `users_cached` and
    `users_seconds` limit how many users are cached and for how long; `users_deadline` is how long a check waits for
    one.

    `migrated` first brings the database's tables up to date; `seed` is written to a database that was never used.
    Raises `DatabaseError` if the database cannot be reached at the start, and `InvalidRule` if its rules are invalid.
    With a `fallback`, it does not raise: the fallback is in force until the database can be reached and has valid
    rules.

    The caller must close a `Database` that it passes in. Safe to use from any thread.
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
        self._ready = False  # whether the database has its tables and its seed
        self._lock = Lock()  # guards the fields below: one load at a time, in order
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
        """Read the rules now and put them in force.

        Raises `InvalidRule` or `DatabaseError`; the previous rules then stay in force.
        """
        return self._catch_up(anyway=True)

    def refresh(self) -> None:
        """Check for changes and put them in force. Errors are logged, once."""
        try:
            self._catch_up()
        except DatabaseError as error:
            self._note_failure(error)
        except InvalidRule as error:
            log.error(  # noqa: TRY400 - a list of problems says more than a traceback
                "rules: version %d of %s is invalid: version %s stays in force. %d problems:\n%s",
                self._versions.version,
                self._database.name,
                self.holder.current.version,
                len(error.problems),
                error,
            )
        except Exception:  # any error: the thread that follows the rules must survive it, or they would never change
            log.exception("rules: %s cannot be followed: unexpected error", self._database.name)

    def changes(self, listener: ChangeListener | None = None) -> Changes:
        """Return an object that changes this database's rules. Changes take effect here as soon as they are committed.

        `listener` is called with each transaction.
        """
        return Changes(self._database, announce=self._announce, listener=listener)

    def status(self) -> DatabaseStatus:
        """Return the status of the source."""
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
        """Stop following the database, and close its connections."""
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

    def reset_after_fork(self) -> None:
        """Reset in a child process, which has neither the parent's threads nor a right to use its connections."""
        self._lock = Lock()
        self._database.reset_after_fork()
        self._directory.reset_after_fork()
        if not self._stop.is_set():
            self._start()

    def _catch_up(self, *, anyway: bool = False) -> Snapshot:
        """Put the changes since the last call in force; with `anyway`, everything."""
        with self._lock:
            self._make_ready()
            seen = self._versions
            problem: InvalidRule | None = None
            with self._database.read() as connection:
                now = queries.versions(connection)
                if now.version == seen.version and not anyway:
                    self._note_answer()
                    return self.holder.current
                set_timeout(connection, LARGE_SECONDS)
                later = now.version > seen.version  # else it is another database, or one restored from a backup
                changed = (
                    queries.find_changed_users(connection, seen.version, max_items=MAX_FORGOTTEN) if later else None
                )
                tiers, overrides = queries.has_users(connection)
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
            self._note_answer()
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
        """Do the one-time set-up as soon as the database can be reached."""
        if self._ready:
            return
        if self._migrated:
            migrate(self._database)
        if self._seed is not None:
            with Changes(self._database).begin(SEEDED_BY) as change:
                if change.is_first:
                    change.apply(self._seed)
                    log.info("rules: %s was empty: wrote the sample rules", self._database.name)
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
        """Run the thread: listen, check, and listen again when the connection breaks."""
        tries = 0
        while not self._stop.is_set():
            try:
                with closing(listen(self._database)) as self._listener:
                    tries = 0
                    while not self._stop.is_set():
                        self.refresh()  # first, because changes may have been missed before it listened
                        self._listener.wait(self._poll if self._error is None else RETRY_SECONDS[-1])
            except DatabaseError as error:
                self._note_failure(error)
            finally:
                self._listener = None
            self._stop.wait(RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)])
            tries += 1

    def _note_answer(self) -> None:
        if self._error is not None:
            self._error = self._failing_since = None
            log.warning("rules: %s answers again", self._database.name)

    def _note_failure(self, error: DatabaseError) -> None:
        with self._lock:
            self._failures += 1
            if self._error is None and not self._stop.is_set():  # else the error may come from closing
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
        raise ImportError("notifications of changes through Redis need redis: pip install 'headgate[redis]'") from error
    return channels.Channel(url, CHANNEL, heard)
