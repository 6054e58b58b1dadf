"""Fixed window: a count per bucket of time.

State: (start, count): when the bucket began, and what was admitted in it. Allowed while `count + cost <= limit`.
Up to twice the limit can pass around a boundary: that is the algorithm; the sliding ones do not have it.
"""

from __future__ import annotations

from headgate.core.check import NEVER
from headgate.core.quota import Quota

State = tuple[int, int]


def admit(state: State | None, now: int, quota: Quota, cost: int) -> tuple[int, State | None]:
    limit, window = quota.limit, quota.window_us
    start = now - now % window
    count = 0
    if state is not None:
        if state[0] > now:
            state = (start, state[1])  # from the future
        if state[0] >= start:
            count = state[1]
    if cost <= limit - count:
        return 0, (start, count + cost) if cost else state
    return NEVER if cost > limit else start + window - now, state


def figures(state: State | None, now: int, quota: Quota) -> tuple[int, int]:
    limit, window = quota.limit, quota.window_us
    start = now - now % window
    if state is None or state[0] < start or state[1] == 0:
        return limit, 0
    # A limit that was lowered can leave more counted than it now allows.
    return max(0, limit - state[1]), start + window - now


def refund(state: State | None, now: int, quota: Quota, cost: int, charged_at: int, reset: int) -> State | None:
    if state is None or charged_at < state[0]:
        return state
    return (state[0], max(0, state[1] - cost))
