"""The data that regions read from one another's stores: counts, and pages on which they agree."""

from __future__ import annotations

from typing import NamedTuple


class Counted(NamedTuple):
    """The count of a key of a window algorithm. In one bucket of time, it only grows."""

    start_us: int  # of the bucket, by the store's clock
    current: int
    previous: int = 0  # in the bucket before; a fixed_window does not remember it


class LedgerPage(NamedTuple):
    """A page of a ledger, and the time at which it was read, by the clock of the server that keeps it."""

    now_us: int
    text: str | None  # None: nothing was written, or it has expired


class Swap(NamedTuple):
    """A page to write if it has not changed since it was read. The store forgets it after `ttl_us`."""

    name: str
    before: str | None
    after: str
    ttl_us: int
