"""Storage: the place of rules and users, and whether they can be changed there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from headgate.db import Changes
from headgate.errors import ChangeConflict
from headgate.rules.holder import Source
from headgate.rules.snapshot import Snapshot

T = TypeVar("T")
Key = TypeVar("Key", str, tuple[str, str])


def page_of(items: Iterable[T], key: Callable[[T], Key], after: Key | None, max_items: int) -> list[T]:
    """Return a page of items that are in memory, in the order of their keys: those after the key `after`."""
    return sorted((one for one in items if after is None or key(one) > after), key=key)[:max_items]


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The rules and users of `source`. `changes` is None if they are in a file; `log` is None without a database."""

    source: Source
    changes: Changes | None
    log: Changes | None

    @property
    def snapshot(self) -> Snapshot:
        """The current snapshot."""
        return self.source.holder.current

    @property
    def writable(self) -> Changes:
        """The object that changes rules and users. Raises `ChangeConflict` if they are in a file."""
        if self.changes is None:
            raise ChangeConflict(f"{self.place}: change them there; this API can only read them")
        return self.changes

    @property
    def place(self) -> str:
        """The place of rules that are not in a database, for messages."""
        path = getattr(self.source, "path", None)
        return "the rules are not in a database" if path is None else f"the rules are in the file {path}"

    @property
    def kept_log(self) -> Changes:
        """The object that reads the change log. Raises `ChangeConflict` without a database."""
        if self.log is None:
            raise ChangeConflict("this service has no change log, because it has no database")
        return self.log
