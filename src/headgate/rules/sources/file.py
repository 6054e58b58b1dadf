"""Rules from a TOML file, which may change while it is in use.

    source = FileSource("rules.toml", watch=True, sighup=True)
    limiter = Limiter(source)

`Limiter("rules.toml", watch=True)` is short for the same without SIGHUP.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Final

from headgate.core.clock import Clock, SystemClock
from headgate.core.file_fingerprint import FileFingerprint, fingerprint_of
from headgate.core.fork import renew_in_children
from headgate.errors import InvalidRule, Problem
from headgate.rules.holder import Holder
from headgate.rules.snapshot import Snapshot
from headgate.rules.sources import sighup as hangup
from headgate.rules.sources.collection import collection_paused
from headgate.rules.sources.document import parsed, snapshot_of
from headgate.rules.sources.watcher import Watcher

SETTLED: Final = 0.05  # seconds without change after which a file counts as written
MAX_SETTLING: Final = 2.0  # seconds after which it is read anyway
TICK_NS: Final = 1_000_000_000  # a file changed less than this before it was read may change again unnoticed


log = logging.getLogger("headgate")


@dataclass(frozen=True, slots=True)
class FileStatus:
    """How a source is doing."""

    version: str  # of the snapshot in force
    loads: int  # how often rules were read and put in force
    rejected: int  # how often the file was invalid
    stale: bool  # whether it was invalid when last read: the rules in force are older


class FileSource:
    """Keeps the rules of a file in force.

    `watch` reloads it when it changes (needs `headgate[watch]`), `sighup` when the process gets that signal (to
    be made in the main thread). An invalid file leaves the last good rules in force, and every problem
    in the log as an error. `clock` tells which overrides have expired. `facts` are declared besides those of the file.

    The version of its snapshots is `<number of the load>-<hash of the content>`.

    Raises `InvalidRule` if the file is invalid at the start. Safe to use from any thread.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        watch: bool = False,
        sighup: bool = False,
        clock: Clock | None = None,
        facts: Sequence[str] = (),
    ) -> None:
        self.path = Path(path)
        self._facts = tuple(facts)
        self._clock: Clock = clock or SystemClock()
        self._lock = Lock()  # of what follows: one load at a time, so that an older never replaces a newer
        self._loads = self._rejected = 0
        self._stale = False
        self._digest = ""  # of the content in force
        self._seen = ""  # of the content last read, good or not
        self._fingerprint: FileFingerprint | None = ()  # of the file when it was last read
        self._holder = Holder(self._load())
        self._watcher = Watcher(self.path, self.refresh) if watch else None
        self._unsubscribe = hangup.subscribe(self.reload_and_log) if sighup else None
        renew_in_children(self)

    def forked(self) -> None:
        """In a forked child: a load that was under way is not here. It may have noted what it had not put in force."""
        if self._lock.locked():
            self._digest = self._seen = ""
            self._fingerprint = ()
        self._lock = Lock()

    @property
    def holder(self) -> Holder:
        return self._holder

    def reload(self) -> Snapshot:
        """Read the file, now, and put its rules in force. One that has not changed is left alone.

        Raises `InvalidRule`: then what was in force still is.
        """
        with self._lock:
            try:
                snapshot = self._load()
            except Exception as error:
                self._stale = True
                self._rejected += isinstance(error, InvalidRule)
                raise
            self._stale = False
            if snapshot is not self._holder.current:
                self._holder.swap(snapshot)
                log.info("rules: version %s of %s is in force", snapshot.version, self.path)
            return snapshot

    def refresh(self) -> None:
        """Reload the file if it is another than when it was last read, once it is no longer being written.

        It never raises: what is wrong is logged, and what is in force stays so.
        """
        fingerprint = fingerprint_of(self.path)
        if fingerprint == self._fingerprint:
            return
        deadline = time.monotonic() + MAX_SETTLING
        while time.monotonic() < deadline:
            time.sleep(SETTLED)
            before, fingerprint = fingerprint, fingerprint_of(self.path)
            if fingerprint == before:
                break
        if not self._is_known():
            self.reload_and_log()

    def status(self) -> FileStatus:
        """How it is doing."""
        return FileStatus(self._holder.current.version, self._loads, self._rejected, self._stale)

    def close(self) -> None:
        """Stop following the file."""
        if self._watcher is not None:
            self._watcher.close()
        if self._unsubscribe is not None:
            self._unsubscribe()

    def reload_and_log(self) -> None:
        """`reload`, with what is wrong in the log instead of raised."""
        try:
            self.reload()
        except InvalidRule as error:
            log.error(  # noqa: TRY400 - a list of problems says more than a traceback
                "rules: %s is invalid: version %s stays in force. %d problems:\n%s",
                self.path,
                self._holder.current.version,
                len(error.problems),
                error,
            )
        except Exception:  # of any kind: the watcher's thread must outlive it, or the file would never be read again
            version = self._holder.current.version
            log.exception("rules: %s could not be loaded: version %s stays in force", self.path, version)

    def _is_known(self) -> bool:
        """Whether the content is what was read last, however new the file may look."""
        with self._lock:
            try:
                return self._read()[1] == self._seen
            except InvalidRule:
                return False

    def _read(self) -> tuple[bytes, str]:
        """The content and its digest. Takes the file's mark, unless it is too young to be told from a later one."""
        fingerprint = fingerprint_of(self.path)
        young = fingerprint is not None and time.time_ns() - fingerprint[0] < TICK_NS
        self._fingerprint = () if young else fingerprint
        content = _read(self.path)
        return content, blake2b(content, digest_size=6).hexdigest()

    def _load(self) -> Snapshot:
        file = str(self.path)
        content, digest = self._read()
        self._seen = digest
        if digest == self._digest:
            return self._holder.current
        with collection_paused():
            snapshot = snapshot_of(
                parsed(content, file), version=f"{self._loads + 1}-{digest}", file=file, facts=self._facts
            )
        self._loads += 1
        self._digest = digest
        self._remark(snapshot)
        return snapshot

    def _remark(self, snapshot: Snapshot) -> None:
        """Log what is no mistake, and may be one."""
        now_us = self._clock.now_us()
        tiers = {tier.name for tier in snapshot.tiers}
        for user in snapshot.users:
            if tiers and user.tier is not None and user.tier not in tiers:
                log.warning(
                    "%s: user %r: tier: %r is not one of the tiers (%s)",
                    *(self.path, user.id, user.tier, ", ".join(sorted(tiers))),
                )
            for override in user.overrides:
                if override.has_expired(now_us):
                    log.warning(
                        "%s: user %r: override of rule %r: expired at %s and is ignored",
                        *(self.path, user.id, override.rule, override.expires),
                    )


def load(path: str | os.PathLike[str]) -> Snapshot:
    """The snapshot that a file holds now. Raises `InvalidRule`, with every problem."""
    return FileSource(path).holder.current


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRule(Problem("", "", f"cannot be read: {error.strerror}", str(path))) from error
