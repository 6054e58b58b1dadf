"""Holder and Source: where a limiter finds the rules in force, and what updates them."""

from __future__ import annotations

from time import monotonic
from typing import Protocol, runtime_checkable

from headgate.rules.snapshot import Snapshot


class Holder:
    """The snapshot in force. It is replaced in one step, so a reader of `current` never sees a mix of two snapshots."""

    __slots__ = ("current", "since")

    def __init__(self, snapshot: Snapshot) -> None:
        self.current = snapshot
        self.since = monotonic()  # when it came into force, in monotonic seconds

    def swap(self, snapshot: Snapshot) -> None:
        """Put another snapshot in force for every check that starts from now on."""
        self.current = snapshot
        self.since = monotonic()


@runtime_checkable
class Source(Protocol):
    """A source of rules, such as a file or a database. It keeps its holder's snapshot up to date.

    A source starts with a valid snapshot. If it cannot read or apply a later version, the last one stays in force.
    """

    @property
    def holder(self) -> Holder:
        """Return the source's holder. It never changes, and any number of limiters may share it."""
        ...

    def reload(self) -> Snapshot:
        """Read the rules again now and put them in force. Return the snapshot in force.

        Raises `InvalidRule` if they are invalid, and then changes nothing. Safe to call from any thread.
        """
        ...

    def close(self) -> None:
        """Stop following changes. The holder keeps its snapshot."""
        ...
