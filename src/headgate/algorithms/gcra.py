"""GCRA: the theoretical arrival time (tat) at which the next request would be exactly on schedule.

State: (tat, part): whole microseconds, and the part of the next one in 1/limit. Each unit of cost moves tat by
`window / limit`; a check is allowed while that leaves tat at most `burst * window / limit` ahead of now: the horizon.
A tat beyond that, from the future or from a larger burst, is taken to be there: full, and no fuller than that; unless
it is a `Debt`, which `force` makes.
"""

from __future__ import annotations

from headgate.algorithms.debt import Debt
from headgate.algorithms.idle import idle
from headgate.core.check import NEVER
from headgate.core.quota import Quota

State = tuple[int, int] | Debt


def admit(state: State | None, now: int, quota: Quota, cost: int) -> tuple[int, State | None]:
    limit = quota.limit
    horizon, horizon_part = quota.refill
    horizon += now
    tat, part = now, 0
    if state is not None and state[0] >= now:
        tat, part = state
        if tat > horizon or (tat == horizon and part > horizon_part):
            state = tat, part = _beyond(state, now, quota)
        elif part >= limit:
            part = limit - 1
    step, step_part = quota.step if cost == 1 else divmod(cost * quota.window_us, limit)
    tat += step
    part += step_part
    if part >= limit:
        tat, part = tat + 1, part - limit
    if tat < horizon or (tat == horizon and part <= horizon_part):
        return 0, (tat, part) if cost else state
    return NEVER if cost > quota.burst else tat - horizon + (part > horizon_part), state


def figures(state: State | None, now: int, quota: Quota) -> tuple[int, int]:
    horizon, horizon_part = quota.refill
    horizon += now
    tat, part = now, 0
    if state is not None and state[0] >= now:
        tat, part = state
        if tat > horizon or (tat == horizon and part > horizon_part):
            tat, part = _beyond(state, now, quota)
            if tat >= horizon:
                return 0, tat - now + (part > 0)
        if part >= quota.limit:
            part = quota.limit - 1
    remaining = ((horizon - tat) * quota.limit + horizon_part - part) // quota.window_us
    return remaining, tat - now + (part > 0)


def _beyond(state: State, now: int, quota: Quota) -> State:
    """What a tat beyond the horizon means: a debt stands, and anything else is as full as can be."""
    if not isinstance(state, Debt):
        horizon, part = quota.refill
        return now + horizon, part
    if now < state.since:  # the clock went back
        return Debt((state[0] - (state.since - now), min(state[1], quota.limit - 1)), now)
    return state if state[1] < quota.limit else Debt((state[0], quota.limit - 1), state.since)


def refund(state: State | None, now: int, quota: Quota, cost: int, charged_at: int, reset: int) -> State | None:
    if state is None:
        return None
    step, step_part = divmod(cost * quota.window_us, quota.limit)
    step -= idle(now, quota, cost, charged_at, reset)
    if step < 0:
        return state
    tat, part = state[0] - step, state[1] - step_part
    left = (tat - 1, part + quota.limit) if part < 0 else (tat, part)
    return Debt(left, state.since) if isinstance(state, Debt) else left
