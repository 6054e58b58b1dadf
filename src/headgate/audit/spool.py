"""The spool: batches on disk that are not yet known to be in the database.

A directory has one subdirectory per run, that is per start of a process, which holds a lock on it while it lives. A
process that finds subdirectories of dead processes adopts them. Each holds segments: files with one line per batch,

    <CRC-32 of the rest, 8 hexadecimal digits> <number of the batch> <how many events> <payload>

Segments are only appended to, and deleted as a whole. A truncated or damaged line is skipped.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple
from zlib import crc32

SEGMENTS: Final = 16  # in a full spool: when it is full, one of them is dropped
READ_BYTES: Final = 1024 * 1024  # read at a time, plus one line
LOCK: Final = "lock"
NEW: Final = ".new-"  # prefix of a directory that is not locked yet

log = logging.getLogger("headgate")


@dataclass(slots=True, eq=False)
class Segment:
    """A file of a spool."""

    path: Path
    size: int = 0  # bytes of complete lines
    read: int = 0  # bytes known to be in the database
    events: int = 0  # in the rest
    sealed: bool = False  # no longer appended to
    dropped: bool = False


class SpooledBatch(NamedTuple):
    """A batch in a segment."""

    number: int
    events: int
    payload: bytes
    segment: Segment
    end: int  # its end in the segment


class Spool:
    """Batches in order of arrival, in a directory, up to `max_bytes`. Safe to share between threads.

    Raises `OSError` if the directory cannot be used.
    """

    def __init__(self, directory: Path, *, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._segments: list[Segment] = []  # the oldest first
        self._current: Segment | None = None  # the one that is appended to
        self._locks: dict[Path, int] = {}  # of the runs that we hold
        self._file = -1  # of the current segment
        self._made = 0  # number of our own segments
        self.size = 0
        self.backlog = 0  # events not known to be in the database
        self.dropped = 0  # events in dropped segments
        self.damaged = 0  # lines that could not be read
        self.run = f"{time.time_ns() // 1_000:014x}{os.urandom(1).hex()}"  # sorts by age
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._own = directory / self.run
        new = directory / f"{NEW}{self.run}"
        new.mkdir(mode=0o700)
        lock = _lock_run(new)
        if lock is None:
            raise OSError(f"{new}: another process holds the lock")
        self._locks[self._own] = lock
        new.rename(self._own)
        _sync(directory)

    def append(self, number: int, events: int, payload: bytes) -> None:
        """Add a batch. When this returns, it survives a crash. Raises `OSError`, and then adds nothing."""
        line = b"%d %d %b\n" % (number, events, payload)
        line = b"%08x %b" % (crc32(line), line)
        with self._lock:
            if len(line) > self._max_bytes:
                self.dropped += events
                return
            while self.size + len(line) > self._max_bytes:
                self._drop()
            segment = self._segment(len(line))
            try:
                _write(self._file, line)
                os.fsync(self._file)
            except OSError:
                self._seal()  # a truncated line is skipped, but nothing may follow it
                raise
            segment.size += len(line)
            segment.events += events
            self.size += len(line)
            self.backlog += events

    def adopt(self) -> int:
        """Take over the spools of ended processes. Returns the maximum number of their events."""
        adopted: list[Segment] = []
        with self._lock:
            for run in sorted(self._directory.iterdir()):
                if run in self._locks or run.name.startswith(NEW) or not run.is_dir():
                    continue
                lock = _lock_run(run)
                if lock is None:
                    continue
                self._locks[run] = lock
                found = [_scan(path) for path in sorted(run.glob("*.log"))]
                adopted += found
                if not found:
                    self._release(run)
            if adopted:
                self._segments = sorted([*adopted, *self._segments], key=lambda segment: segment.path)
                self.size += sum(segment.size for segment in adopted)
                self.backlog += sum(segment.events for segment in adopted)
        return sum(segment.events for segment in adopted)

    def read(self) -> tuple[str, list[SpooledBatch]]:
        """Return the next batches, all of one run, and that run. They stay in the spool until `remove`."""
        with self._lock:
            for segment in list(self._segments):
                records = self._records(segment)
                if records:
                    return segment.path.parent.name, records
                if segment.events:  # the file has lost them
                    self.dropped += segment.events
                    self.backlog -= segment.events
                    segment.events = 0
                self._finish(segment)
        return "", []

    def remove(self, records: Sequence[SpooledBatch]) -> None:
        """Remove batches that are now in the database."""
        with self._lock:
            for record in records:
                segment = record.segment
                if segment.dropped:  # dropped meanwhile, but written in time
                    self.dropped -= record.events
                    continue
                segment.read = record.end
                segment.events -= record.events
                self.backlog -= record.events
            for segment in {id(record.segment): record.segment for record in records}.values():
                self._finish(segment)

    def close(self) -> None:
        """Close the spool, and leave remaining batches to the next process."""
        with self._lock:
            self._seal()
            for segment in list(self._segments):
                self._finish(segment)
            for run, lock in self._locks.items():
                if run == self._own and not any(segment.path.parent == run for segment in self._segments):
                    _remove(run)
                os.close(lock)
            self._locks.clear()

    def _segment(self, size: int) -> Segment:
        """Return the segment to append a line of this size to."""
        if self._current is not None and self._current.size + size > self._max_bytes // SEGMENTS:
            self._seal()
        if self._current is None:
            path = self._own / f"{self._made:08d}.log"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._made += 1
            self._current = Segment(path)
            self._segments.append(self._current)
            _sync(self._own)
        return self._current

    def _seal(self) -> None:
        if self._current is not None:
            os.close(self._file)
            self._current.sealed = True
            self._current = None

    def _drop(self) -> None:
        """Make room by deleting the oldest segment."""
        segment = self._segments[0]
        if segment is self._current:
            self._seal()
        if not self.dropped:
            log.error("audit: the spool in %s is full: the oldest events are dropped", self._directory)
        segment.dropped = True
        self.dropped += segment.events
        self._delete(segment)

    def _finish(self, segment: Segment) -> None:
        """Delete a segment that is completely read."""
        if segment.sealed and not segment.dropped and segment.read >= segment.size:
            self._delete(segment)

    def _delete(self, segment: Segment) -> None:
        self._segments.remove(segment)
        self.size -= segment.size
        self.backlog -= segment.events
        segment.path.unlink(missing_ok=True)
        run = segment.path.parent
        if run != self._own and not any(other.path.parent == run for other in self._segments):
            self._release(run)

    def _records(self, segment: Segment) -> list[SpooledBatch]:
        """Return the next batches of a segment. Skips damaged lines before them."""
        records: list[SpooledBatch] = []
        start = end = segment.read
        try:
            file = segment.path.open("rb")
        except FileNotFoundError:
            end = segment.read = segment.size
            self._skip_damaged(segment)
            return records
        with file:
            file.seek(start)
            while end < segment.size and end - start < READ_BYTES:
                line = file.readline()
                parsed = _parse(line)
                if parsed is not None:
                    end += len(line)
                    records.append(SpooledBatch(*parsed, segment, end))
                elif records:
                    break  # skip it next time
                else:
                    end = segment.read = end + len(line) if line else segment.size
                    self._skip_damaged(segment)
        return records

    def _skip_damaged(self, segment: Segment) -> None:
        self.damaged += 1
        log.error("audit: %s: skipping damaged data that ends at byte %d", segment.path, segment.read)

    def _release(self, run: Path) -> None:
        """Remove the directory of a finished run."""
        _remove(run)
        lock = self._locks.pop(run, None)
        if lock is not None:  # otherwise the spool was closed meanwhile
            os.close(lock)


def _lock_run(run: Path) -> int | None:
    """Lock a run's directory. Returns the lock's file; None if a live process has it, or it no longer exists."""
    try:
        lock = os.open(run / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if (run / LOCK).stat().st_ino == os.fstat(lock).st_ino:
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock)  # its owner has just removed the directory
    return None


def _scan(path: Path) -> Segment:
    """Return a segment left by another process."""
    segment = Segment(path, sealed=True)
    with path.open("rb") as file:
        for line in file:
            segment.size += len(line)
            parsed = _parse(line)
            segment.events += 0 if parsed is None else parsed[1]
    return segment


def _parse(line: bytes) -> tuple[int, int, bytes] | None:
    """Return number, events and payload of a line; None if it is damaged."""
    checksum, _, rest = line.partition(b" ")
    if len(checksum) != 8 or not line.endswith(b"\n") or checksum != b"%08x" % crc32(rest):
        return None
    number, events, payload = rest[:-1].split(b" ", 2)
    return int(number), int(events), payload


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _sync(directory: Path) -> None:
    """Make sure that a directory's new entries survive a power failure."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _remove(run: Path) -> None:
    try:
        (run / LOCK).unlink(missing_ok=True)
        run.rmdir()
    except OSError:  # it contains files that are not ours
        log.warning("audit: %s is not empty: left as it is", run)
