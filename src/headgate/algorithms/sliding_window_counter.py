"""Sliding window counter: the count of this time bucket, plus a share of the last one that shrinks as this one ages.

State: (start, current, previous). Allowed while `floor(previous * (window - elapsed) / window) + current + cost
<= limit`. This assumes that requests were spread evenly over the previous bucket.
"""

from __future__ import annotations

from headgate.core.check import NEVER
from headgate.core.quota import Quota

State = tuple[int, int, int]


def admit(state: State | None, now: int, quota: Quota, cost: int) -> tuple[int, State | None]:
    limit, window = quota.limit, quota.window_us
    past = now % window
    start, left = now - past, window - past
    current = previous = 0
    if state is not None:
        since, current, previous = state
        if since != start:
            if since > now:
                # From the future. The previous count would fade too early here, so it counts in full.
                current, previous = min(limit, current + previous), 0
                state = (start, current, previous)
            elif since < start:
                current, previous = 0, current if since >= start - window else 0
    used = current + cost
    if used + previous * left // window <= limit:
        return 0, (start, used, previous) if cost else state
    if cost > limit:
        return NEVER, state
    return _until(limit - cost, current, previous, left, window), state


def figures(state: State | None, now: int, quota: Quota) -> tuple[int, int]:
    limit, window = quota.limit, quota.window_us
    past = now % window
    start, left = now - past, window - past
    current = previous = 0
    if state is not None:
        since, current, previous = state
        if since != start:
            if since > now:
                current, previous = min(limit, current + previous), 0
            elif since < start:
                current, previous = 0, current if since >= start - window else 0
    remaining = limit - current
    if previous:
        remaining -= previous * left // window
    reset = left + window - (window - 1) // current if current else _until(0, 0, previous, left, window)
    return remaining if remaining > 0 else 0, reset


def _until(room: int, current: int, previous: int, left: int, window: int) -> int:
    """Return the time until at most `room` is counted if no request comes. This bucket ends in `left`.

    `floor(count * left / window) <= room` holds as soon as `left` is `((room + 1) * window - 1) // count` or less.
    """
    if current > room:
        return left + window - ((room + 1) * window - 1) // current
    room -= current
    if previous <= room:
        return 0
    wait = left - ((room + 1) * window - 1) // previous
    return wait if wait > 0 else 0


def refund(state: State | None, now: int, quota: Quota, cost: int, charged_at: int, reset: int) -> State | None:
    if state is None:
        return None
    start, current, previous = state
    if charged_at >= start:
        return (start, max(0, current - cost), previous)
    if charged_at >= start - quota.window_us:
        return (start, current, max(0, previous - cost))
    return state
