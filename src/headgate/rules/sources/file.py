"""Rules from a TOML file that may change while it is in use.

    source = FileSource("rules.toml", watch=True, sighup=True)
    limiter = Limiter(source)

`Limiter("rules.toml", watch=True)` is a short form without SIGHUP.
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
from headgate.rules.sources.document import parse_toml, snapshot_of
from headgate.rules.sources.watcher import Watcher

SETTLED: Final = 0.05  # seconds without a change after which a file counts as completely written
MAX_SETTLING: Final = 2.0  # seconds after which it is read in any case
TICK_NS: Final = 1_000_000_000  # a younger file may change again with the same fingerprint


log = logging.getLogger("headgate")


@dataclass(frozen=True, slots=True)
class FileStatus:
    """The status of a source."""

    version: str  # version of the snapshot in force
    loads: int  # how often rules were loaded and put in force
    rejected: int  # how often the file was invalid
    stale: bool  # whether it was invalid when last read, so that older rules are in force


class FileSource:
    """A source that keeps the rules of a file in force.

    `watch` reloads the file when it changes (needs `headgate[watch]`). `sighup` reloads it when the process gets
    SIGHUP; the source must then be created in the main thread. If the file is invalid, the last valid rules stay in
    force, and every problem is logged as an error. `clock` decides which overrides have expired. `facts` are declared
    in addition to those in the file.

    The version of a snapshot is `<number of the load>-<hash of the content>`.

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
        self._lock = Lock()  # guards the fields below: one load at a time, in order
        self._loads = self._rejected = 0
        self._stale = False
        self._digest = ""  # hash of the content in force
        self._seen = ""  # hash of the content last read, valid or not
        self._fingerprint: FileFingerprint | None = ()  # fingerprint of the file when it was last read
        self._holder = Holder(self._load())
        self._watcher = Watcher(self.path, self.refresh) if watch else None
        self._unsubscribe = hangup.subscribe(self.reload_and_log) if sighup else None
        renew_in_children(self)

    def reset_after_fork(self) -> None:
        """Reset in a forked child. A load in the parent does not finish here, so drop what it recorded."""
        if self._lock.locked():
            self._digest = self._seen = ""
            self._fingerprint = ()
        self._lock = Lock()

    @property
    def holder(self) -> Holder:
        return self._holder

    def reload(self) -> Snapshot:
        """Read the file now and put its rules in force. Does nothing if the content has not changed.

        Raises `InvalidRule`; the previous rules then stay in force.
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
        """Reload the file if it has changed since it was last read, once it is completely written.

        Never raises: errors are logged, and the previous rules stay in force.
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
        """Return the status of the source."""
        return FileStatus(self._holder.current.version, self._loads, self._rejected, self._stale)

    def close(self) -> None:
        """Stop following the file."""
        if self._watcher is not None:
            self._watcher.close()
        if self._unsubscribe is not None:
            self._unsubscribe()

    def reload_and_log(self) -> None:
        """Do `reload`, but log errors instead of raising them."""
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
        except Exception:  # any error: the watcher's thread must survive it, or the file would never be read again
            version = self._holder.current.version
            log.exception("rules: %s could not be loaded: version %s stays in force", self.path, version)

    def _is_known(self) -> bool:
        """Return whether the content is the one last read, even if the file looks newer."""
        with self._lock:
            try:
                return self._read()[1] == self._seen
            except InvalidRule:
                return False

    def _read(self) -> tuple[bytes, str]:
        """Return the content and its digest. Record the fingerprint, unless it might also fit a later content."""
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
                parse_toml(content, file), version=f"{self._loads + 1}-{digest}", file=file, facts=self._facts
            )
        self._loads += 1
        self._digest = digest
        self._log_warnings(snapshot)
        return snapshot

    def _log_warnings(self, snapshot: Snapshot) -> None:
        """Log warnings about entries that are valid but probably wrong."""
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
    """Return the snapshot in a file now. Raises `InvalidRule` with every problem."""
    return FileSource(path).holder.current


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRule(Problem("", "", f"cannot be read: {error.strerror}", str(path))) from error
