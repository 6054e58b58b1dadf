"""Sliding window log: remembers every admitted check for exactly one window.

State: (entries, first, end, total, oldest, stamp, cost). The newest entry is `stamp` and `cost`. The older ones are in
`entries`, a flat array of stamp, cost, stamp, cost …, at the positions from `first` to `end`. `oldest` is the stamp of
the first entry, and `total` the cost of all entries. States share the array: a state ignores what is outside of its own
part. So a charge that is discarded leaves no trace, and no charge copies the log.

Memory is bounded: a limit above MAX_ENTRIES is logged in steps of `window / MAX_ENTRIES`. Each check is logged at the
end of its step, so that it never expires too early.
"""

from __future__ import annotations

from array import array
from typing import Final

from headgate.core.check import NEVER
from headgate.core.quota import Quota

MAX_ENTRIES: Final = 16_384
COMPACT_FROM: Final = 128

State = tuple["array[int]", int, int, int, int, int, int]


def admit(state: State | None, now: int, quota: Quota, cost: int) -> tuple[int, State | None]:
    limit, window = quota.limit, quota.window_us
    stamp = now if limit <= MAX_ENTRIES else _stamp(now, quota)
    live = state
    if live is not None and (live[5] > stamp or live[4] <= now - window):
        live = _current(live, now - window, stamp)
    if live is None:
        if cost > limit:
            return NEVER, state
        return 0, (array("q"), 0, 0, cost, stamp, stamp, cost) if cost else state
    entries, first, end, total, oldest, newest, newest_cost = live
    total += cost
    if total > limit:
        if cost > limit:
            return NEVER, live
        leaves = (
            oldest if total - limit == 1 else _stamp_that_frees(live, total - limit)
        )  # every entry costs at least 1
        return leaves + window - now, live
    if cost == 0:
        return 0, live
    if newest == stamp:
        return 0, (entries, first, end, total, oldest, stamp, newest_cost + cost)
    if len(entries) > end:
        del entries[end:]
    entries.append(newest)
    entries.append(newest_cost)
    return 0, (entries, first, end + 2, total, oldest, stamp, cost)


def figures(state: State | None, now: int, quota: Quota) -> tuple[int, int]:
    limit, window = quota.limit, quota.window_us
    if state is not None:
        state = _current(state, now - window, _stamp(now, quota))
    if state is None:
        return limit, 0
    remaining = limit - state[3]  # below 0 when the limit was lowered
    return remaining if remaining > 0 else 0, state[5] + window - now


def _current(state: State, horizon: int, stamp: int) -> State | None:
    """Return the state without expired entries and with none in the future; None if no entry is left."""
    oldest, newest = state[4], state[5]
    if newest <= horizon:
        return None
    if oldest <= horizon:
        state = _without_expired(state, horizon)
    return _rebase(state, stamp) if newest > stamp else state


def _stamp(time: int, quota: Quota) -> int:
    """Return the time under which a check at `time` is logged: the end of its step."""
    if quota.limit <= MAX_ENTRIES:
        return time
    step = -(quota.window_us // -MAX_ENTRIES)
    return -(time // -step) * step


def _without_expired(state: State, horizon: int) -> State:
    """Return the state without the entries stamped `horizon` or before. The newest entry must be later."""
    entries, first, end, total, _, stamp, cost = state
    while first < end and entries[first] <= horizon:
        total -= entries[first + 1]
        first += 2
    if first > COMPACT_FROM and first * 2 > len(entries):
        entries, first, end = entries[first:end], 0, end - first
    return (entries, first, end, total, entries[first] if first < end else stamp, stamp, cost)


def _rebase(state: State, stamp: int) -> State:
    """Return the state with all entries from the future moved to `stamp`, after the clock went back."""
    entries, first, end, total, oldest, _, cost = state
    while first < end and entries[end - 2] >= stamp:
        cost += entries[end - 1]
        end -= 2
    return (entries[first:end], 0, end - first, total, oldest if first < end else stamp, stamp, cost)


def _stamp_that_frees(state: State, needed: int) -> int:
    """Return the stamp of the entry that frees `needed` when it expires, counted from the oldest."""
    entries, first, end, _, _, stamp, _ = state
    while first < end:
        needed -= entries[first + 1]
        if needed <= 0:
            return entries[first]
        first += 2
    return stamp


def refund(state: State | None, now: int, quota: Quota, cost: int, charged_at: int, reset: int) -> State | None:
    if state is None:
        return None
    entries, first, end, total, _, newest, newest_cost = state
    stamp = _stamp(charged_at, quota)
    at = end
    while at > first and newest > stamp and entries[at - 2] > stamp:
        at -= 2
    if newest == stamp:
        cost = min(cost, newest_cost)
        newest_cost -= cost
    elif newest > stamp and at > first and entries[at - 2] == stamp:
        cost = min(cost, entries[at - 1])
        entries[at - 1] -= cost
        if entries[at - 1] == 0:
            del entries[at - 2 : at]
            end -= 2
    else:
        return state
    if newest_cost == 0 and end > first:
        end -= 2
        newest, newest_cost = entries[end], entries[end + 1]
    oldest = entries[first] if first < end else newest
    return (entries, first, end, total - cost, oldest, newest, newest_cost) if total > cost else None
