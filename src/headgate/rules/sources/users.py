"""A directory of users who are too many to keep in memory: looks them up on demand and caches them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Condition, Thread, current_thread
from typing import Final, NamedTuple

from headgate.errors import DatabaseError
from headgate.rules.directory import UNKNOWN, Unknown
from headgate.rules.users import MAX_ID, User

MAX_BATCH: Final = 500  # users in one query
RETRY_SECONDS: Final = 0.5  # delay after a failure

log = logging.getLogger("headgate")


@dataclass(frozen=True, slots=True)
class UsersStatus:
    """Figures of a directory since its creation."""

    cached: int  # users in memory now, including those without tier and overrides
    queries: int
    looked_up: int  # users looked up by those queries
    failures: int  # queries that failed
    unanswered: int  # requests decided without their user: on the default tier, or by the last known data
    failing: bool  # whether the last query failed or takes too long
    hits: int = 0  # requests whose user was in memory
    misses: int = 0  # requests whose user had to be looked up


_Answer = Future[User | Unknown | None]


class _CachedUser(NamedTuple):
    user: User | None
    until: float


class CachedDirectory:
    """Looks up users with `fetch` in a separate thread: one query for all users that are waited for, each once.

    Caches at most `size` users for `seconds`, including users without tier and overrides. No check waits longer than
    `deadline` seconds, or at all while `fetch` fails or hangs. Then the last known data of the user applies, or no
    tier.

    `fetch` may raise `DatabaseError`. `now` returns the time in seconds, for tests.
    """

    def __init__(
        self,
        fetch: Callable[[Collection[str]], Mapping[str, User]],
        *,
        size: int = 100_000,
        seconds: float = 300.0,
        deadline: float = 0.25,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.has_tiers = True
        self.has_overrides = True
        self._fetch = fetch
        self._size = max(1, size // 2)  # of each of the two generations: see headgate.rules.recent
        self._seconds = seconds
        self._deadline = deadline
        self._now = now
        self._changed = Condition()  # guards everything below, except reads of _young
        self._young: dict[str, _CachedUser] = {}
        self._old: dict[str, _CachedUser] = {}
        self._waited_for: dict[str, _Answer] = {}
        self._queue: list[tuple[str, _Answer]] = []
        self._asking_since: float | None = None
        self._retry_at = float("-inf")
        self._thread: Thread | None = None
        self._closed = False
        self._failing = False
        self._queries = self._looked_up = self._failures = self._unanswered = 0
        self._hits = self._misses = 0  # counted without the lock: threads may lose a count now and then

    def recall(self, user_id: str) -> User | Unknown | None:
        entry = self._young.get(user_id) or self._promote(user_id)
        if entry is None:
            return UNKNOWN if len(user_id) <= MAX_ID else None
        if self._now() >= entry.until:
            return UNKNOWN
        self._hits += 1
        return entry.user

    def find(self, user_id: str) -> User | None:
        known = self.recall(user_id)
        if known is UNKNOWN:
            self._misses += 1
            answer = self._begin_lookup(user_id)
            if answer is not None:
                try:
                    known = answer.result(self._deadline)
                except TimeoutError:
                    self._note_failure(f"no answer within {self._deadline:g} s")
        return self._last_known(user_id) if known is UNKNOWN else known

    async def find_async(self, user_id: str) -> User | None:
        known = self.recall(user_id)
        if known is UNKNOWN:
            self._misses += 1
            answer = self._begin_lookup(user_id)
            if answer is not None:
                try:
                    async with asyncio.timeout(self._deadline):
                        known = await asyncio.wrap_future(answer)
                except TimeoutError:
                    self._note_failure(f"no answer within {self._deadline:g} s")
        return self._last_known(user_id) if known is UNKNOWN else known

    def forget(self, user_ids: Collection[str] | None) -> None:
        """Look these users up again when they are next needed; None: all users."""
        with self._changed:
            if user_ids is None:
                user_ids = [*self._young, *self._old, *self._waited_for]
            for user_id in user_ids:
                self._young.pop(user_id, None)
                self._old.pop(user_id, None)
                # Waiting callers get the earlier answer; it is not cached, and later callers do not wait for it.
                self._waited_for.pop(user_id, None)

    def status(self) -> UsersStatus:
        with self._changed:
            cached = len(self._young.keys() | self._old.keys())
            return UsersStatus(
                cached=cached,
                queries=self._queries,
                looked_up=self._looked_up,
                failures=self._failures,
                unanswered=self._unanswered,
                failing=self._failing,
                hits=self._hits,
                misses=self._misses,
            )

    def close(self) -> None:
        """Stop looking users up. Cached users stay available."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join(self._deadline)

    def reset_after_fork(self) -> None:
        """Reset in a child process, which has neither the parent's thread nor its waiting callers."""
        self._changed = Condition()
        self._waited_for.clear()
        self._queue.clear()
        self._asking_since = None
        self._thread = None

    def _promote(self, user_id: str) -> _CachedUser | None:
        """Return an entry of the old generation, and move it to the young one."""
        if user_id not in self._old:
            return None
        with self._changed:
            entry = self._old.pop(user_id, None)
            if entry is not None:
                self._put(user_id, entry)
            return entry

    def _put(self, user_id: str, entry: _CachedUser) -> None:
        if len(self._young) >= self._size:
            self._old = self._young
            self._young = {}
        self._young[user_id] = entry

    def _begin_lookup(self, user_id: str) -> _Answer | None:
        """Return a future for the answer; None if there is no point in waiting."""
        with self._changed:
            now = self._now()
            hangs = self._asking_since is not None and now - self._asking_since > self._deadline
            if self._closed or hangs or now < self._retry_at:
                return None
            answer = self._waited_for.get(user_id)
            if answer is None:
                answer = Future()
                answer.set_running_or_notify_cancel()  # a caller that gives up must not cancel it for the others
                self._waited_for[user_id] = answer
                self._queue.append((user_id, answer))
                if self._thread is None or not self._thread.is_alive():
                    self._thread = Thread(target=self._run, name="headgate-users", daemon=True)
                    self._thread.start()
                self._changed.notify()
            return answer

    def _last_known(self, user_id: str) -> User | None:
        with self._changed:
            self._unanswered += 1
            entry = self._young.get(user_id) or self._old.get(user_id)
            return None if entry is None else entry.user

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if self._closed:
                    for _, answer in self._queue:
                        answer.set_result(UNKNOWN)
                    return
                batch, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]
                self._asking_since = self._now()
            self._ask(batch)

    def _ask(self, batch: list[tuple[str, _Answer]]) -> None:
        found: Mapping[str, User] | None = None
        try:
            found = self._fetch({user_id for user_id, _ in batch})
        except DatabaseError as error:
            self._note_failure(str(error))
        except Exception as error:
            log.exception("rules: users could not be looked up")
            self._note_failure(repr(error))
        with self._changed:
            self._asking_since = None
            self._queries += 1
            if found is None:
                self._failures += 1
                self._retry_at = self._now() + RETRY_SECONDS
            else:
                self._looked_up += len(batch)
            if found is not None and self._failing:
                self._failing = False
                log.warning("rules: users are looked up again")
            until = self._now() + self._seconds
            for user_id, answer in batch:
                if self._waited_for.get(user_id) is answer:  # not invalidated in the meantime
                    del self._waited_for[user_id]
                    if found is not None:
                        self._put(user_id, _CachedUser(found.get(user_id), until))
        for user_id, answer in batch:
            answer.set_result(UNKNOWN if found is None else found.get(user_id))

    def _note_failure(self, why: str) -> None:
        with self._changed:
            if self._failing:
                return
            self._failing = True
        log.error(
            "rules: users cannot be looked up (%s): users who are not cached are on the default tier for now", why
        )
