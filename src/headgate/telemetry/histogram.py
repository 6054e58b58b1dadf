"""A histogram that is cheap to add to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts values in buckets with inclusive upper bounds."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)  # the last: above all bounds
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def read(self) -> tuple[list[tuple[float, int]], float]:
        """Return each bound with the number of values up to it, the last bound infinite; and the sum of all values."""
        counts, total = self._counts.copy(), self._total
        buckets, below = [], 0
        for bound, count in zip((*self._bounds, float("inf")), counts, strict=True):
            below += count
            buckets.append((bound, below))
        return buckets, total
