"""Lost slices: the store may have charged them, but its answer did not arrive.

Each slice has its own idempotency key, and the node repeats the call with the same key. If the store has charged the
slice, it replays the first answer; if not, it charges the slice now. Either way, this node then has the slice, to spend
or to return.
"""

from __future__ import annotations

from typing import Final

from headgate.core.check import IDEMPOTENCY_US
from headgate.features.leases.calls import Fetch

AGAIN_US: Final = 200_000  # delay before the call for a slice is repeated; doubles each time
GIVE_UP_US: Final = IDEMPOTENCY_US // 5  # well before a store deletes its first answer, and would charge again


class LostSlices:
    """The lost slices of one node. Not thread-safe: `Leases` has the lock."""

    def __init__(self) -> None:
        self._lost: dict[str, tuple[Fetch, int, int]] = {}  # by key: the slice, when to ask again, and the next pause

    def __bool__(self) -> bool:
        return bool(self._lost)

    @property
    def tokens(self) -> int:
        """The tokens in all lost slices."""
        return sum(fetch.size for fetch, _, _ in self._lost.values())

    def add(self, fetch: Fetch, at_us: int) -> None:
        """Remember a slice whose answer was lost."""
        known = self._lost.get(fetch.key)
        pause_us = AGAIN_US if known is None else known[2]
        self._lost[fetch.key] = (fetch, at_us + pause_us, 2 * pause_us)

    def forget(self, fetch: Fetch) -> bool:
        """Remove a slice, because the store has answered. Return whether its answer had been lost before."""
        return self._lost.pop(fetch.key, None) is not None

    def due(self, at_us: int) -> list[Fetch]:
        """Return the slices to fetch again now."""
        return [fetch for fetch, again_us, _ in self._lost.values() if at_us >= again_us]

    def all(self) -> list[Fetch]:
        """Return all lost slices."""
        return [fetch for fetch, _, _ in self._lost.values()]

    def give_up(self, at_us: int) -> int:
        """Drop slices that are too old, or whose lease is gone. Return the tokens that this strands."""
        return self._forget(
            [fetch for fetch in self.all() if fetch.lease.gone or not 0 <= at_us - fetch.sent_us < GIVE_UP_US]
        )

    def clear(self) -> int:
        """Drop all slices. Return the tokens that this strands."""
        return self._forget(self.all())

    def _forget(self, fetches: list[Fetch]) -> int:
        for fetch in fetches:
            del self._lost[fetch.key]
        return sum(fetch.size for fetch in fetches)
