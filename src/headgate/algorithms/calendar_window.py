"""Calendar window: a count per day, week, month or year of a time zone.

State: (start, count): the start of the period, and the cost admitted in it. Allowed while `count + cost <= limit`. The
boundaries of the periods around now are packed in the quota's `burst`: see `headgate.core.calendar`.
"""

from __future__ import annotations

from headgate.core.calendar import unpack
from headgate.core.check import NEVER
from headgate.core.quota import Quota

State = tuple[int, int]


def period(now: int, quota: Quota) -> tuple[int, int]:
    """Return the start and end of the period that contains `now`."""
    before, start, following, last = unpack(quota.burst, quota.window_us)
    if start <= now < following:
        return start, following
    if before <= now < start:
        return before, start
    if following <= now < last:
        return following, last
    if now < before:  # outside the boundaries: all earlier periods are assumed to be as long as the first
        length = start - before
        begin = before + (now - before) // length * length
    else:
        length = last - following
        begin = last + (now - last) // length * length
    return begin, begin + length


def admit(state: State | None, now: int, quota: Quota, cost: int) -> tuple[int, State | None]:
    limit = quota.limit
    start, end = period(now, quota)
    used = cost
    if state is not None:
        since, count = state
        if since >= start:
            used += count
            if since > now:
                state = (start, count)  # from the future
    if used <= limit:
        return 0, (start, used) if cost else state
    return NEVER if cost > limit else end - now, state


def figures(state: State | None, now: int, quota: Quota) -> tuple[int, int]:
    start, end = period(now, quota)
    since, count = state or (0, 0)
    if since < start or count == 0:
        return quota.limit, 0
    remaining = quota.limit - count  # below 0 when the limit was lowered
    return remaining if remaining > 0 else 0, end - now


def refund(state: State | None, now: int, quota: Quota, cost: int, charged_at: int, reset: int) -> State | None:
    if state is None or charged_at < state[0]:
        return state
    return (state[0], max(0, state[1] - cost))
