"""Idle time of a bucket, which refunds need. Twin of idle.lua."""

from __future__ import annotations

from headgate.core.quota import Quota


def idle(now: int, quota: Quota, cost: int, charged_at: int, reset: int) -> int:
    """Return an upper bound of the time that a bucket would have been idle since `charged_at` without the charge.

    An idle bucket drains nothing. Without the charge, that capacity would have been lost, so a refund must not return
    it. Right after the charge, the bucket needed `reset` to become idle. Without the charge it would have needed less,
    by the charge's own share; later charges only make it idle later.
    """
    share, rest = divmod(cost * quota.window_us, quota.limit)
    busy = max(0, reset - 1 - share - (rest > 0))
    return max(0, now - charged_at - busy)
