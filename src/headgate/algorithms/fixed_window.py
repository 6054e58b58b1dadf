"""Fixed window: one count per time bucket.

State: (start, count): the start of the bucket, and the cost admitted in it. Allowed while `count + cost <= limit`.
Up to twice the limit can pass around a boundary, by design. The sliding algorithms avoid this.
"""

from __future__ import annotations

from headgate.core.check import NEVER
from headgate.core.quota import Quota

State = tuple[int, int]


def admit(state: State | None, now: int, quota: Quota, cost: int) -> tuple[int, State | None]:
    limit, window = quota.limit, quota.window_us
    past = now % window
    start = now - past
    used = cost
    if state is not None:
        since, count = state
        if since >= start:
            used += count
            if since > now:
                state = (start, count)  # from the future
    if used <= limit:
        return 0, (start, used) if cost else state
    return NEVER if cost > limit else window - past, state


def figures(state: State | None, now: int, quota: Quota) -> tuple[int, int]:
    limit, window = quota.limit, quota.window_us
    past = now % window
    since, count = state or (0, 0)
    if since < now - past or count == 0:
        return limit, 0
    remaining = limit - count  # below 0 when the limit was lowered
    return remaining if remaining > 0 else 0, window - past


def refund(state: State | None, now: int, quota: Quota, cost: int, charged_at: int, reset: int) -> State | None:
    if state is None or charged_at < state[0]:
        return state
    return (state[0], max(0, state[1] - cost))
