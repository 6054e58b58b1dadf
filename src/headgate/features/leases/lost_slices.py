"""Lost slices: the store may have charged them, but its answer did not arrive.

Each slice has its own idempotency key, and the node repeats the call with the same key. If the store has charged the
slice, it replays the first answer; if not, it charges the slice now. Either way, this node then has the slice, to spend
or to return. It has it once: no second call is made for a slice while one is on its way.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headgate.core.check import IDEMPOTENCY_US
from headgate.features.leases.calls import Fetch

AGAIN_US: Final = 200_000  # delay before the call for a slice is repeated; doubles each time
GIVE_UP_US: Final = IDEMPOTENCY_US // 5  # well before a store deletes its first answer, and would charge again


class LostSlice(NamedTuple):
    """A slice, and the calls for it."""

    fetch: Fetch
    again_us: int  # when to ask again
    pause_us: int  # after the next call that fails
    is_asked: bool = False  # a call is on its way


class LostSlices:
    """The lost slices of one node. Not thread-safe: `Leases` has the lock."""

    def __init__(self) -> None:
        self._lost: dict[str, LostSlice] = {}  # by key

    def __bool__(self) -> bool:
        return bool(self._lost)

    @property
    def tokens(self) -> int:
        """The tokens in all lost slices."""
        return sum(lost.fetch.size for lost in self._lost.values())

    def add(self, fetch: Fetch, at_us: int) -> None:
        """Remember a slice whose answer was lost. One that was given up since it was asked for again stays so."""
        known = self._lost.get(fetch.key)
        if known is not None or not fetch.is_repeated:
            pause_us = AGAIN_US if known is None else known.pause_us
            again = fetch._replace(is_repeated=True)
            self._lost[fetch.key] = LostSlice(again, at_us + pause_us, 2 * pause_us)

    def forget(self, fetch: Fetch) -> bool:
        """Remove a slice, because the store has answered. Return whether its answer had been lost before."""
        return self._lost.pop(fetch.key, None) is not None

    def take_due(self, at_us: int) -> list[Fetch]:
        """Return the slices to fetch again now. After a call that fails, `add` them again."""
        return self._take([lost for lost in self._lost.values() if at_us >= lost.again_us])

    def take_all(self) -> list[Fetch]:
        """Return all lost slices for which no call is on its way."""
        return self._take(list(self._lost.values()))

    def _take(self, some: list[LostSlice]) -> list[Fetch]:
        taken = [lost.fetch for lost in some if not lost.is_asked]
        for fetch in taken:
            self._lost[fetch.key] = self._lost[fetch.key]._replace(is_asked=True)
        return taken

    def give_up(self, at_us: int) -> int:
        """Drop slices that are too old, or whose lease is gone. Return the tokens that this strands."""
        known = [lost.fetch for lost in self._lost.values()]
        return self._forget(
            [fetch for fetch in known if fetch.lease.gone or not 0 <= at_us - fetch.sent_us < GIVE_UP_US]
        )

    def clear(self) -> int:
        """Drop all slices. Return the tokens that this strands."""
        return self._forget([lost.fetch for lost in self._lost.values()])

    def _forget(self, fetches: list[Fetch]) -> int:
        for fetch in fetches:
            del self._lost[fetch.key]
        return sum(fetch.size for fetch in fetches)
