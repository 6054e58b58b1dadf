"""The auditor: records refusals in the background.

One thread moves events from memory to the spool on disk, another from there to the database. So neither a slow disk nor
a database that is down delays the other, or a check. Events in the spool survive the process. A batch that is
written twice, because the outcome of the first attempt is unknown, is in the database once.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event as Signal
from threading import Lock, Thread
from typing import Final, Self

from headgate.audit.buffer import Buffer, FlushWindow
from headgate.audit.digest import Digest
from headgate.audit.options import AuditOptions
from headgate.audit.spool import Spool, SpooledBatch
from headgate.audit.usage import UsageCounter
from headgate.core.clock import Clock, SystemClock
from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.core.quota import MICROSECONDS
from headgate.db.connection import Database
from headgate.db.events import Count, Event, EventBatch, Events
from headgate.db.usage import FIGURES, HOUR_SECONDS, MINUTE_SECONDS, UsageCount
from headgate.errors import DatabaseError

RETRY_SECONDS: Final = (0.5, 1.0, 2.0)  # before the next attempt to write to the database; the last one repeats
ADOPT_SECONDS: Final = 60.0  # between checks for spools of ended processes
RETAIN_SECONDS: Final = 600.0  # between checks for old events, once there are none
STEP: Final = 1_000  # old rows deleted in one step
PAUSE_SECONDS: Final = 0.05  # between steps
MAX_UNSPOOLED: Final = 600  # windows kept in memory while the spool cannot be written: a minute's worth

log = logging.getLogger("headgate")


@dataclass(frozen=True, slots=True)
class AuditStatus:
    """The state of an auditor. All figures except the last three count events since its creation."""

    recorded: int
    spooled: int  # written to disk
    written: int  # written to the database, including earlier processes' events
    dropped: int  # lost: the spool was full or damaged, or could not be written for long
    backlog: int  # not yet known to be in the database
    failed: int  # not recorded because of a bug
    deleted: int  # old rows
    spool_bytes: int
    error: str | None  # why the database or the spool cannot be written now


class Auditor:
    """A `Recorder` that stores events in a database, through a spool in `directory`.

    Processes of one machine may share `directory`. `node` names this process in events. The counts of `usage` are
    stored in the same way. Call `start` in the process that records, and `close` at its end. Without `start`, only
    `flush`, `write` and `retain` move events. Raises `OSError` if the directory cannot be used; the database may be
    down. Safe to share between threads.
    """

    def __init__(
        self,
        database: Database,
        directory: str | Path,
        *,
        node: str | None = None,
        options: AuditOptions | None = None,
        clock: Clock | None = None,
        usage: UsageCounter | None = None,
        tell: Callable[[Sequence[Event]], None] | None = None,
    ) -> None:
        self._tell = tell  # called with events as they leave memory; must not block
        self.options = options or AuditOptions()
        self._usage = usage
        self._events = Events(database)
        self._clock: Clock = clock or SystemClock()
        self._spool = Spool(Path(directory), max_bytes=self.options.spool_bytes)
        self._digest = Digest(self._spool.run, self.options.subjects)
        self._buffer = Buffer(node or f"{socket.gethostname()}:{os.getpid()}", self.options)
        self._flushing = Lock()
        self._unspooled: deque[tuple[EventBatch, int]] = deque()  # each with its number of events
        self._taken = 0  # events taken from the buffer
        self._writing = Lock()
        self._stop_flushing, self._stop_writing = Signal(), Signal()
        self._threads: list[Thread] = []
        self._spooled = self._written = self._dropped = self._failed = self._deleted = 0
        self._errors: dict[str, str] = {}  # by the part that fails

    def record(self, facts: Mapping[str, str], cost: Cost, decision: Decision) -> None:
        """Record a refusal, or what shadow rules would have refused. Never blocks, never raises."""
        try:
            self._buffer.add(facts, cost, decision)
        except Exception:  # a check must not fail because it could not be recorded
            self._failed += 1
            if self._failed == 1:
                log.exception("audit: a decision could not be recorded; further ones are counted")

    def start(self) -> None:
        """Start threads that flush, write and retain."""
        for name, work in (("spool", self._keep_flushing), ("write", self._keep_writing)):
            thread = Thread(target=work, name=f"headgate-audit-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def flush(self) -> None:
        """Write all recorded events to the spool. When this returns, they survive a crash.

        Raises `OSError` if the spool cannot be written; the next flush tries again.
        """
        with self._flushing:
            window, usage = self._buffer.take(), [] if self._usage is None else self._usage.take()
            if window is not None or usage:
                window = window or FlushWindow()
                made = self._digest.batch(window, usage)
                self._unspooled.append((made, window.recorded))
                if self._tell is not None and made.events:
                    self._tell(made.events)
                self._taken += window.recorded
                if len(self._unspooled) > MAX_UNSPOOLED:
                    self._dropped += self._unspooled.popleft()[1]
            while self._unspooled:
                batch, events = self._unspooled[0]
                self._spool.append(batch.number, events, _encode(batch))
                self._unspooled.popleft()
                self._spooled += events

    def write(self) -> None:
        """Write all events in the spool to the database. Raises `DatabaseError`; then they stay in the spool."""
        with self._writing:
            while True:
                run, records = self._spool.read()
                if not records:
                    return
                batches = [(record, batch) for record in records if (batch := _decode(record)) is not None]
                new = self._events.write(run, [batch for _, batch in batches], self._clock.now_us())
                self._spool.remove(records)
                self._written += sum(record.events for record, _ in batches[len(batches) - new :])
                self._dropped += sum(record.events for record in records) - sum(one.events for one, _ in batches)

    def adopt(self) -> None:
        """Take over the spools of ended processes in the directory."""
        found = self._spool.adopt()
        if found:
            log.warning("audit: found up to %d events that another process has left: writing them now", found)

    def retain(self) -> int:
        """Delete some rows older than their retention, in one short step. Returns their number; 0 if none are left.

        Raises `DatabaseError`.
        """
        options, now_us = self.options, self._clock.now_us()
        for retention, forget in (
            (options.retention, self._events.forget),
            (options.usage_retention, partial(self._events.forget_usage, MINUTE_SECONDS)),
            (options.usage_hourly_retention, partial(self._events.forget_usage, HOUR_SECONDS)),
        ):
            gone = 0 if retention is None else forget(now_us - round(retention * MICROSECONDS), max_items=STEP)
            self._deleted += gone
            if gone:
                return gone
        return 0

    def status(self) -> AuditStatus:
        """Return the auditor's state."""
        spool, errors = self._spool, list(self._errors.values())
        recorded = self._buffer.recorded
        # In the order in which events move. Each is counted at the next place before it leaves the last one, so none
        # is missed while it moves.
        backlog = recorded - self._taken
        backlog += sum(events for _, events in list(self._unspooled))
        backlog += spool.backlog
        return AuditStatus(
            recorded=recorded,
            spooled=self._spooled,
            written=self._written,
            dropped=self._dropped + spool.dropped,
            backlog=backlog,
            failed=self._failed,
            deleted=self._deleted,
            spool_bytes=spool.size,
            error="; ".join(errors) or None,
        )

    def close(self, timeout: float = 5.0) -> None:
        """Write remaining events, for at most `timeout` seconds. The rest stays in the spool for the next process."""
        deadline = time.monotonic() + timeout
        self._stop_flushing.set()
        self._attempt("spool", self.flush)
        self._stop_writing.set()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._spool.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _keep_flushing(self) -> None:
        while not self._stop_flushing.wait(self.options.flush_seconds):
            self._attempt("spool", self.flush)

    def _keep_writing(self) -> None:
        tries = 0
        adopt_at = retain_at = 0.0  # on the monotonic clock
        while True:
            last = self._stop_writing.is_set()
            now = time.monotonic()
            if now >= adopt_at:
                adopt_at = now + ADOPT_SECONDS
                self._attempt("spools of others", self.adopt)
            fine = self._attempt("database", self.write)
            if last:
                return
            pause = self.options.write_seconds
            if not fine:
                pause = RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
            elif now >= retain_at:
                deleted = self._deleted
                fine = self._attempt("retention", self.retain)
                if not fine:
                    pause = RETRY_SECONDS[-1]
                elif self._deleted > deleted:  # there may be more
                    pause = PAUSE_SECONDS
                else:
                    retain_at = now + RETAIN_SECONDS
            tries = 0 if fine else tries + 1
            self._stop_writing.wait(pause)

    def _attempt(self, what: str, work: Callable[[], object]) -> bool:
        """Do some work, and return whether it succeeded. Logs the first failure, and the recovery."""
        try:
            work()
        except (DatabaseError, OSError) as error:
            if what not in self._errors:
                log.error("audit: %s: events wait until this works again: %s", what, error)  # noqa: TRY400
            self._errors[what] = f"{what}: {error}"
            return False
        except Exception as error:  # the thread must not end
            if what not in self._errors:
                log.exception("audit: %s: events wait", what)
            self._errors[what] = f"{what}: {error!r}"
            return False
        if self._errors.pop(what, None) is not None:
            log.warning("audit: %s: works again", what)
        return True


def _encode(batch: EventBatch) -> bytes:
    return json.dumps([batch.events, batch.counts, batch.usage], ensure_ascii=False, separators=(",", ":")).encode()


def _decode(record: SpooledBatch) -> EventBatch | None:
    """Return the batch of a record; None if another version of Headgate wrote it, and this one cannot read it."""
    try:
        events, counts, *more = json.loads(record.payload)  # older versions, without usage, wrote two lists
        usage = [UsageCount(*count) for count in (more[0] if more else ())]
        if any(len(count.figures) != len(FIGURES) for count in usage):
            raise ValueError(f"usage must have {len(FIGURES)} figures")  # noqa: TRY301 - logged below
        return EventBatch(
            record.number, [Event(*event) for event in events], [Count(*count) for count in counts], usage
        )
    except (ValueError, TypeError):
        log.exception("audit: %s: batch %d cannot be read: skipped", record.segment.path, record.number)
        return None
