"""Bounds: the quotas that one table's checks use, reduced to the few that the sweep has to judge a state by.

Subjects of one table may have different quotas: overrides, anchors, or a rule that was changed. A state does not say
which quota it was charged with. It has expired, or does not limit its subject, only if that is true under each of them.
"""

from __future__ import annotations

from headgate.core.quota import BUCKETS, CALENDAR, Quota


class Bounds:
    """The quotas that bound all quotas of a table: `quotas`. To include one more takes the same time for any number.

    Under one of `quotas`, a state expires no earlier than under any quota included, and under one of them it has no
    more remaining.
    """

    __slots__ = ("_by_window", "_largest", "_least", "_lowest", "_strictest", "quotas")

    def __init__(self, quota: Quota) -> None:
        self.quotas: tuple[Quota, ...] = (quota,)
        self._least = self._largest = quota.capacity
        self._lowest = self._strictest = quota  # of buckets: the lowest rate, and the one under which most is used
        self._by_window = {_window_of(quota): quota}

    def include(self, quota: Quota) -> None:
        if quota.algorithm in BUCKETS:
            self._include_bucket(quota)
        else:
            self._include_window(quota)

    def _include_window(self, quota: Quota) -> None:
        """Keep a quota of every window: even a longer one may begin later, and leave out what a shorter one counts."""
        window = _window_of(quota)
        if window in self._by_window and quota.limit >= self._least:
            return
        self._least = min(self._least, quota.limit)
        self._by_window.setdefault(window, quota)
        self.quotas = tuple([one.with_limit(self._least) for one in self._by_window.values()])

    def _include_bucket(self, quota: Quota) -> None:
        """Keep the bucket that takes longest to be full, and the one that has least left."""
        rate, lowest, strictest = _rate_of(quota), self._lowest, self._strictest
        if rate < _rate_of(lowest):
            lowest = quota
        # What a gcra bucket has taken is kept as a time, which stands for more the higher the rate is.
        if rate > _rate_of(strictest) if quota.algorithm == "gcra" else rate < _rate_of(strictest):
            strictest = quota
        least, largest = min(self._least, quota.burst), max(self._largest, quota.burst)
        if (lowest, strictest, least, largest) != (self._lowest, self._strictest, self._least, self._largest):
            self._lowest, self._strictest, self._least, self._largest = lowest, strictest, least, largest
            self.quotas = (strictest.with_rate(strictest.limit, least), lowest.with_rate(lowest.limit, largest))


def _window_of(quota: Quota) -> tuple[int, int]:
    """Return what tells windows apart: the length, and the boundaries of a calendar's periods."""
    return quota.window_us, quota.burst if quota.algorithm == CALENDAR else 0


def _rate_of(quota: Quota) -> float:
    return quota.limit / quota.window_us
