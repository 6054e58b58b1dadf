"""GCRA: tracks the theoretical arrival time (tat), at which the next request would be exactly on schedule.

State: (tat, part), where tat is in whole microseconds and part is a fraction of one in 1/limit; or just tat when part
is 0, which is the common case and saves memory. Each unit of cost moves tat by `window / limit`. A check is allowed
while that leaves tat at most `burst * window / limit` ahead of now: the horizon. A tat beyond the horizon comes from
the future or from a larger burst, and is treated as if it were at the horizon: a full bucket. The exception is a
`Debt`, which `force` creates.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from headgate.algorithms import held
from headgate.algorithms.debt import Debt
from headgate.algorithms.held import Level, ReservedBucket
from headgate.algorithms.idle import idle
from headgate.core.check import NEVER
from headgate.core.quota import Quota

State = tuple[int, int] | Debt | int

_SELF: Final = sys.modules[__name__]


def admit(state: State | None, now: int, quota: Quota, cost: int) -> tuple[int, State | None]:
    limit = quota.limit
    horizon, horizon_part = quota.refill
    horizon += now
    tat, part = now, 0
    if isinstance(state, int):
        tat = state
    elif state is not None:
        try:
            tat, part = state
        except TypeError:  # it has open reservations
            return held.admit(_SELF, state, now, quota, cost)
    if tat < now:
        tat, part = now, 0
    elif tat > horizon or (tat == horizon and part > horizon_part):
        state = tat, part = _beyond(state, now, quota)
    elif part >= limit:
        part = limit - 1
    step, step_part = quota.step if cost == 1 else divmod(cost * quota.window_us, limit)
    tat += step
    part += step_part
    if part >= limit:
        tat, part = tat + 1, part - limit
    if tat < horizon or (tat == horizon and part <= horizon_part):
        return 0, ((tat, part) if part else tat) if cost else state
    return NEVER if cost > quota.burst else tat - horizon + (part > horizon_part), state


def figures(state: State | None, now: int, quota: Quota) -> tuple[int, int]:
    horizon, horizon_part = quota.refill
    horizon += now
    tat, part = now, 0
    if isinstance(state, int):
        tat = state
    elif state is not None:
        try:
            tat, part = state
        except TypeError:  # it has open reservations
            return held.figures(_SELF, state, now, quota)
    if tat < now:
        tat, part = now, 0
    elif tat > horizon or (tat == horizon and part > horizon_part):
        tat, part = _beyond(state, now, quota)
        if (tat, part) >= (horizon, horizon_part):
            return 0, tat - now + (part > 0)
    elif part >= quota.limit:
        part = quota.limit - 1
    remaining = ((horizon - tat) * quota.limit + horizon_part - part) // quota.window_us
    return remaining, tat - now + (part > 0)


def _beyond(state: State | None, now: int, quota: Quota) -> tuple[int, int] | Debt:
    """Return the state for a tat beyond the horizon: a debt stays, and any other state becomes exactly full."""
    if not isinstance(state, Debt):
        horizon, part = quota.refill
        return now + horizon, part
    tat, part = state
    if now < state.since:  # the clock went back
        return Debt((max(now, tat - (state.since - now)), min(part, quota.limit - 1)), now)
    return state if part < quota.limit else Debt((tat, quota.limit - 1), state.since)


def refund(state: State | ReservedBucket | None, now: int, quota: Quota, cost: int, charged_at: int, reset: int) -> Any:
    if state is None:
        return None
    if isinstance(state, ReservedBucket):
        return held.refund(_SELF, state, now, quota, cost, charged_at, reset)
    step, step_part = divmod(cost * quota.window_us, quota.limit)
    step -= idle(now, quota, cost, charged_at, reset)
    if step < 0:
        return state
    tat, part = (state, 0) if isinstance(state, int) else state
    tat, part = tat - step, part - step_part
    if part < 0:
        tat, part = tat - 1, part + quota.limit
    if isinstance(state, Debt):
        return Debt((tat, part), state.since)
    return (tat, part) if part else tat


def base(quota: Quota) -> int:
    return quota.limit


def level(state: State | None, now: int, quota: Quota) -> Level:
    if state is None:
        return 0, 0
    tat, part = _current(state, now, quota)
    return tat - now, part


def lower(state: State, now: int, quota: Quota, by: Level) -> State:
    tat, part = _current(state, now, quota)
    lost, part = divmod(part - by[1], quota.limit)
    tat += lost - by[0]
    if isinstance(state, Debt):
        return Debt((tat, part), min(now, state.since))
    return (tat, part) if part else tat


def _current(state: State, now: int, quota: Quota) -> tuple[int, int] | Debt:
    """Return tat and part: no earlier than now, and no later than the horizon unless the state is a debt."""
    tat, part = (state, 0) if isinstance(state, int) else state
    horizon, horizon_part = quota.refill
    if tat < now:
        return now, 0
    if tat > now + horizon or (tat == now + horizon and part > horizon_part):
        return _beyond(state, now, quota)
    return tat, min(part, quota.limit - 1)
