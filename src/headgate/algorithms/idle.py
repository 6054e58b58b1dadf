"""Idle time, which the three buckets need for a refund. Twin of idle.lua."""

from __future__ import annotations

from headgate.core.quota import Quota


def idle(now: int, quota: Quota, cost: int, charged_at: int, reset: int) -> int:
    """Return how long a bucket would have been idle since `charged_at`, had `cost` not been charged: an upper bound.

    While a bucket is idle, its flow is lost; so that much of the charge has been made good already, and a refund must
    not give it back again. Right after the charge it took `reset` until the bucket was idle; without the charge, it
    would have taken less by the charge's own share, and more by whatever came since.
    """
    share, rest = divmod(cost * quota.window_us, quota.limit)
    busy = max(0, reset - 1 - share - (rest > 0))
    return max(0, now - charged_at - busy)
