"""Storage: where rules and users are, and whether they can be changed there."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.db import Changes
from headgate.errors import ChangeConflict
from headgate.rules.holder import Source
from headgate.rules.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Rules and users of `source`. `changes` is None where they are in a file, `log` without a database."""

    source: Source
    changes: Changes | None
    log: Changes | None

    @property
    def snapshot(self) -> Snapshot:
        """What is in force."""
        return self.source.holder.current

    @property
    def writable(self) -> Changes:
        """What changes rules and users. Raises `ChangeConflict` where they are in a file."""
        if self.changes is None:
            raise ChangeConflict(f"{self.place}: change them there; this API can only read them")
        return self.changes

    @property
    def place(self) -> str:
        """Where rules are if not in a database, for messages."""
        path = getattr(self.source, "path", None)
        return "the rules are not in a database" if path is None else f"the rules are in the file {path}"

    @property
    def kept_log(self) -> Changes:
        """What reads the change log. Raises `ChangeConflict` without a database."""
        if self.log is None:
            raise ChangeConflict("this service has no database, which would keep a change log")
        return self.log
