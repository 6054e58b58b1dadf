"""Share: the part of a quota that a node may spend by itself, while it cannot learn what the other nodes spend."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from headgate.core.quota import BUCKETS, MAX_REFILL_US, MAX_WINDOW_US, Quota


class Standing(NamedTuple):
    """How many nodes are alive, and the place of this one among them, from 0."""

    nodes: int = 1
    place: int = 0


ALONE: Final = Standing()


@lru_cache(maxsize=4_096)
def share(quota: Quota, standing: Standing) -> Quota | None:
    """The quota of one node; None when there is nothing for it. The shares of all nodes add up to `quota`, or less.

    What cannot be divided goes to the first nodes, a unit each. A bucket is filled as many times slower as there are
    nodes, by making its window longer, so that no part of the rate is lost to rounding.
    """
    nodes, _ = standing
    if nodes == 1:
        return quota
    if quota.calendar is not None:
        own = _part(quota.limit, standing)
        return quota.with_limit(own) if own else None
    limit, burst, window_us = _part(quota.limit, standing), _part(quota.burst, standing), quota.window_us
    if quota.algorithm in BUCKETS:
        if window_us * nodes <= MAX_WINDOW_US:
            limit, window_us = quota.limit, window_us * nodes
        burst = min(burst, MAX_REFILL_US * limit // window_us)
    else:
        burst = limit
    if not limit or not burst:
        return None
    return Quota(limit, timedelta(microseconds=window_us), burst=burst, algorithm=quota.algorithm)


def _part(number: int, standing: Standing) -> int:
    whole, rest = divmod(number, standing.nodes)
    return whole + (standing.place < rest)
