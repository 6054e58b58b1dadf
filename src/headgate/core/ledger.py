"""The data that regions read from one another's stores: counts, and shared pages of text."""

from __future__ import annotations

from typing import NamedTuple


class Counted(NamedTuple):
    """The count of a key of a window algorithm. It only grows within one time bucket."""

    start_us: int  # start of the time bucket, by the store's clock
    current: int
    previous: int = 0  # count of the bucket before; fixed_window does not store it


class LedgerPage(NamedTuple):
    """A page of a ledger, and the time of the read, by the clock of the server that keeps it."""

    now_us: int
    text: str | None  # None: nothing was written, or it has expired


class Swap(NamedTuple):
    """A page to write if it has not changed since it was read. The store deletes it after `ttl_us`."""

    name: str
    before: str | None
    after: str
    ttl_us: int
