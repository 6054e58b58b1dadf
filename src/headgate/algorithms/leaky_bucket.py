"""Leaky bucket: a level that drains at `limit` per `window`; a check pours in `cost`, up to `burst`.

State: (level, part, last): the whole level, the fraction above it in 1/window, and the time of both. Requests leave the
bucket in order at a constant rate, so the level tells how long a request has to wait for its turn (`Decision.delay`).
A level above `burst` comes from a larger burst, and is treated as full, unless it is a `Debt`, which `force` creates.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from headgate.algorithms import held
from headgate.algorithms.debt import LONGEST, Debt
from headgate.algorithms.held import Level, ReservedBucket
from headgate.algorithms.idle import idle
from headgate.core.check import NEVER
from headgate.core.quota import Quota

State = tuple[int, int, int] | Debt

_SELF: Final = sys.modules[__name__]


def admit(state: State | None, now: int, quota: Quota, cost: int) -> tuple[int, State | None]:
    try:
        level, part = _level_now(state, now, quota)
    except TypeError:  # it has open reservations
        return held.admit(_SELF, state, now, quota, cost)
    burst = quota.burst
    charged = level + cost
    if charged < burst or (charged == burst and part == 0):
        return 0, (charged, part, now) if cost else state
    if state is not None and (state[2] > now or state[0] >= burst):
        state = _like(state, (level, part, now))  # from the future, or from a larger burst
    return NEVER if cost > burst else _until(charged - burst, part, quota), state


def figures(state: State | None, now: int, quota: Quota) -> tuple[int, int]:
    try:
        level, part = _level_now(state, now, quota)
    except TypeError:  # it has open reservations
        return held.figures(_SELF, state, now, quota)
    remaining = quota.burst - level - (part > 0)
    return remaining if remaining > 0 else 0, _until(level, part, quota)


def _level_now(state: State | None, now: int, quota: Quota) -> tuple[int, int]:
    """Return the level and its fraction now."""
    if state is None:
        return 0, 0
    level, part, last = state
    window = quota.window_us
    if part >= window:
        part = window - 1
    if now > last:
        part -= (now - last) * quota.limit
        if part < 0:
            level, part = level - 1, part + window
            if part < 0:
                leaked, part = divmod(part, window)  # below 0, rounded down
                level += leaked
            if level < 0:
                return 0, 0
    return (level, part) if level < quota.burst or isinstance(state, Debt) else (quota.burst, 0)


def _until(level: int, part: int, quota: Quota) -> int:
    """Return the time until `level` and `part` have drained."""
    if level > quota.burst and level / quota.limit * quota.window_us >= LONGEST:
        return LONGEST
    return -((level * quota.window_us + part) // -quota.limit)


def refund(state: State | ReservedBucket | None, now: int, quota: Quota, cost: int, charged_at: int, reset: int) -> Any:
    if state is None:
        return None
    if isinstance(state, ReservedBucket):
        return held.refund(_SELF, state, now, quota, cost, charged_at, reset)
    level, part = _level_now(state, now, quota)
    window = quota.window_us
    back = cost * window - idle(now, quota, cost, charged_at, reset) * quota.limit
    level, part = divmod(level * window + part - max(0, back), window)
    return _like(state, (level, part, now)) if level >= 0 else (0, 0, now)


def base(quota: Quota) -> int:
    return quota.window_us


def level(state: State | None, now: int, quota: Quota) -> Level:
    return _level_now(state, now, quota)


def lower(state: State, now: int, quota: Quota, by: Level) -> State:
    whole, part = _level_now(state, now, quota)
    lost, part = divmod(part - by[1], quota.window_us)
    return _like(state, (whole - by[0] + lost, part, now))


def _like(state: State, changed: State) -> State:
    """Return `changed`, as a debt if `state` is one."""
    return Debt(changed, state.since) if isinstance(state, Debt) else changed
