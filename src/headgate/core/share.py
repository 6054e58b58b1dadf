"""Shares: the parts of a quota that nodes or shards have. Pure; no I/O.

A node has a share while it cannot learn what the other nodes spend. A shard is a part of one subject's quota that is
kept in a place of its own. All parts together never exceed the quota.
"""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from headgate.core.quota import BUCKETS, MAX_REFILL_US, MAX_WINDOW_US, Quota


class Standing(NamedTuple):
    """The number of live nodes, and the rank of this node among them, from 0."""

    nodes: int = 1
    rank: int = 0


MAX_SHARDS: Final = 64
ALONE: Final = Standing()


@lru_cache(maxsize=4_096)
def share(quota: Quota, standing: Standing) -> Quota | None:
    """Return the quota of one node; None if there is nothing for it. The shares of all nodes add up to at most `quota`.

    The remainder of the division goes to the first nodes, one unit each. For a bucket, the window is multiplied by the
    number of nodes instead, if that is not too long: this divides its refill rate without rounding.
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
    return whole + (standing.rank < rest)


@lru_cache(maxsize=4_096)
def parts_of(quota: Quota, shards: int) -> tuple[Quota, ...]:
    """Return the quotas of all shards: fewer than `shards` if the quota, for example an override, is too small."""
    count = min(shards, quota.limit, quota.capacity)
    parts = (share(quota, Standing(count, index)) for index in range(count))
    return tuple(part for part in parts if part is not None)


def is_whole(quota: Quota, shards: int) -> bool:
    """Return whether each shard has a part and rounding loses nothing."""
    parts = parts_of(quota, shards)
    return len(parts) == shards and sum(part.capacity for part in parts) == quota.capacity
