"""Where a limiter finds the rules that are in force, and who changes them."""

from __future__ import annotations

from time import monotonic
from typing import Protocol, runtime_checkable

from headgate.rules.snapshot import Snapshot


class Holder:
    """The snapshot in force. It is replaced in one step: who has read `current` has all of it, or all of the next."""

    __slots__ = ("current", "since")

    def __init__(self, snapshot: Snapshot) -> None:
        self.current = snapshot
        self.since = monotonic()  # when it was put in force, in seconds

    def swap(self, snapshot: Snapshot) -> None:
        """Put another snapshot in force, for every check that begins from now on."""
        self.current = snapshot
        self.since = monotonic()


@runtime_checkable
class Source(Protocol):
    """Where rules come from: a file, a database. It keeps its holder's snapshot up to date.

    A source that was made has a good snapshot; what it cannot read or apply later leaves that one in force.
    """

    @property
    def holder(self) -> Holder:
        """Return the source's holder; it stays the same, and any number of limiters may share it."""
        ...

    def reload(self) -> Snapshot:
        """Read the rules again, now, and put them in force; returns what is in force.

        Raises `InvalidRule` if they are invalid: then nothing has changed. Safe to call from any thread.
        """
        ...

    def close(self) -> None:
        """Stop following changes. The holder keeps what it has."""
        ...
