"""Force: charge a cost even if it does not fit, because the client has already used it. Twin of force.lua.

A window counts the cost even above its limit. A bucket goes into debt, and nothing fits until the debt is paid off.
Each function takes a state, the time, a quota and a cost, as the `admit` of its algorithm does, and returns the state
to store.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Final

from headgate.algorithms import calendar_window, gcra, held, leaky_bucket, sliding_window_log, token_bucket
from headgate.algorithms.debt import Debt
from headgate.core.quota import MAX_INT, MAX_REFILL_US, Quota

Force = Callable[[Any, int, Quota, int], Any]

MAX_COUNT: Final = 2**52  # largest count of a window: with a limit added, still below 2^53


def max_debt(quota: Quota) -> int:
    """Return the largest debt of a bucket, in units: what takes 100 years to pay off, or the largest exact number."""
    return min(MAX_COUNT, MAX_INT - quota.burst, MAX_REFILL_US * quota.limit // quota.window_us)


def _fixed_window(state: Any, now: int, quota: Quota, cost: int) -> Any:
    start = now - now % quota.window_us
    count = state[1] if state is not None and state[0] >= start else 0
    return (start, min(MAX_COUNT, count + cost))


def _calendar_window(state: Any, now: int, quota: Quota, cost: int) -> Any:
    start, _ = calendar_window.period(now, quota)
    count = state[1] if state is not None and state[0] >= start else 0
    return (start, min(MAX_COUNT, count + cost))


def _sliding_window_counter(state: Any, now: int, quota: Quota, cost: int) -> Any:
    window = quota.window_us
    start = now - now % window
    current = previous = 0
    if state is not None:
        since, current, previous = state
        if since > now:  # from the future
            current, previous = min(quota.limit, current + previous), 0
        elif since < start:
            current, previous = 0, current if since >= start - window else 0
    return (start, min(MAX_COUNT, current + cost), previous)


def _sliding_window_log(state: Any, now: int, quota: Quota, cost: int) -> Any:
    stamp = sliding_window_log._stamp(now, quota)
    if state is not None:
        state = sliding_window_log._current(state, now - quota.window_us, stamp)
    if state is None:
        cost = min(MAX_COUNT, cost)
        return (array("q"), 0, 0, cost, stamp, stamp, cost)
    entries, first, end, total, oldest, newest, newest_cost = state
    cost = max(0, min(MAX_COUNT - total, cost))
    if cost == 0:
        return state
    if newest == stamp:
        return (entries, first, end, total + cost, oldest, stamp, newest_cost + cost)
    del entries[end:]
    entries.append(newest)
    entries.append(newest_cost)
    return (entries, first, end + 2, total + cost, oldest, stamp, cost)


def _token_bucket(state: Any, now: int, quota: Quota, cost: int) -> Any:
    tokens, part = token_bucket._tokens_now(state, now, quota)
    return (max(-max_debt(quota), tokens - cost), part, now)


def _leaky_bucket(state: Any, now: int, quota: Quota, cost: int) -> Any:
    level, part = leaky_bucket._level_now(state, now, quota)
    level = min(quota.burst + max_debt(quota), level + cost)
    return (level, part, now) if level < quota.burst else Debt((level, part, now), now)


def _gcra(state: Any, now: int, quota: Quota, cost: int) -> Any:
    limit = quota.limit
    horizon, horizon_part = quota.refill
    tat, part = now, 0
    if state is not None:
        tat, part = (state, 0) if isinstance(state, int) else state
        if tat < now:
            tat, part = now, 0
        elif (tat, min(part, limit - 1)) > (now + horizon, horizon_part):
            tat, part = gcra._beyond(state, now, quota)
        part = min(part, limit - 1)
    step, part = divmod(cost * quota.window_us + part, limit)
    tat, largest = tat + step, now + horizon + MAX_REFILL_US
    if tat >= largest:
        tat, part = largest, 0
    if tat >= now + horizon:
        return Debt((tat, part), now)
    return (tat, part) if part else tat


def _of_held(bucket: held.Bucket, force: Force) -> Force:
    """Extend `force` to buckets with open reservations."""

    def force_held(state: Any, now: int, quota: Quota, cost: int) -> Any:
        if not isinstance(state, held.ReservedBucket):
            return force(state, now, quota, cost)
        return held.update_reservations(
            state, force(state.state, now, quota, cost), bucket.level(state.state, now, quota)
        )

    return force_held


FORCES: dict[str, Force] = {
    "fixed_window": _fixed_window,
    "calendar_window": _calendar_window,
    "sliding_window_log": _sliding_window_log,
    "sliding_window_counter": _sliding_window_counter,
    "token_bucket": _of_held(token_bucket, _token_bucket),
    "leaky_bucket": _of_held(leaky_bucket, _leaky_bucket),
    "gcra": _of_held(gcra, _gcra),
}
