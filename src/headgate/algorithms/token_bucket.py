"""Token bucket: tokens are added at `limit` per `window`, up to `burst`; a check takes `cost` of them.

State: (tokens, part, last): whole tokens, a fraction of the next one in 1/window, and the time of both. No fraction of
a token is ever lost. Tokens below 0 are a debt, which `force` creates.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from headgate.algorithms import held
from headgate.algorithms.debt import LONGEST
from headgate.algorithms.held import Level, ReservedBucket
from headgate.algorithms.idle import idle
from headgate.core.check import NEVER
from headgate.core.quota import Quota

State = tuple[int, int, int]

_SELF: Final = sys.modules[__name__]


def admit(state: State | None, now: int, quota: Quota, cost: int) -> tuple[int, State | None]:
    try:
        tokens, part = _tokens_now(state, now, quota)
    except TypeError:  # it has open reservations
        return held.admit(_SELF, state, now, quota, cost)
    if cost <= tokens:
        return 0, (tokens - cost, part, now) if cost else state
    if state is not None and state[2] > now:
        state = (tokens, part, now)  # from the future
    return NEVER if cost > quota.burst else _until(cost - tokens, part, quota), state


def figures(state: State | None, now: int, quota: Quota) -> tuple[int, int]:
    try:
        tokens, part = _tokens_now(state, now, quota)
    except TypeError:  # it has open reservations
        return held.figures(_SELF, state, now, quota)
    return tokens if tokens > 0 else 0, _until(quota.burst - tokens, part, quota)


def _tokens_now(state: State | None, now: int, quota: Quota) -> tuple[int, int]:
    """Return the tokens and the fraction of the next one now."""
    if state is None:
        return quota.burst, 0
    tokens, part, last = state
    window = quota.window_us
    if part >= window:
        part = window - 1
    if now > last:
        part += (now - last) * quota.limit
        if part >= window:
            gained, part = divmod(part, window)
            tokens += gained
    return (tokens, part) if tokens < quota.burst else (quota.burst, 0)


def _until(missing: int, part: int, quota: Quota) -> int:
    """Return the time until `missing` tokens have been added, given that `part` of the next one already has."""
    if missing > quota.burst and missing / quota.limit * quota.window_us >= LONGEST:
        return LONGEST
    return -((missing * quota.window_us - part) // -quota.limit) if missing else 0


def refund(state: State | ReservedBucket | None, now: int, quota: Quota, cost: int, charged_at: int, reset: int) -> Any:
    if state is None:
        return None
    if isinstance(state, ReservedBucket):
        return held.refund(_SELF, state, now, quota, cost, charged_at, reset)
    tokens, part = _tokens_now(state, now, quota)
    window = quota.window_us
    back = cost * window - idle(now, quota, cost, charged_at, reset) * quota.limit
    gained, part = divmod(part + max(0, back), window)
    return (tokens + gained, part, now) if tokens + gained < quota.burst else (quota.burst, 0, now)


def base(quota: Quota) -> int:
    return quota.window_us


def level(state: State | None, now: int, quota: Quota) -> Level:
    tokens, part = _tokens_now(state, now, quota)
    return (quota.burst - tokens - 1, quota.window_us - part) if part else (quota.burst - tokens, 0)


def lower(state: State, now: int, quota: Quota, by: Level) -> State:
    tokens, part = _tokens_now(state, now, quota)
    gained, part = divmod(part + by[1], quota.window_us)
    return (tokens + by[0] + gained, part, now)
