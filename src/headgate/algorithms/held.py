"""Buckets with open reservations: how much of each reservation can still be refunded. Twin of held.lua.

A bucket drains only while it is not empty. Had a reservation cost less, the bucket might have been empty earlier, and
the capacity that drained after that would have been lost. A refund must not return it. So a refund lowers a bucket no
further than the level of a hypothetical bucket that was empty right after the reservation and got all later charges.

For each open reservation, `low` is the distance from the level of the bucket down to that of the hypothetical one: the
most that settling it can refund. It starts as the level right after the reservation. Charges raise both levels, and
draining lowers both until the hypothetical bucket is empty. So `low` becomes the lowest level of the bucket since the
reservation. The `low` of an older reservation is at most that of a newer one. So a check updates only the `low` of the
newest reservation, and a settlement applies it to the older ones.

A level is a whole number and a fraction, as in the states: units and 1/window, or, for gcra, microseconds and 1/limit.

`docs/adr/0022-what-settling-gives-back.md` has the proof.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from headgate.core.quota import Quota

MAX_OPEN: Final = 1_024  # reservations tracked per bucket; one that is made while so many are open refunds nothing


Level = tuple[int, int]
NONE: Final = (0, 0)


class Bucket(Protocol):
    """The Python twin of a bucket algorithm."""

    def admit(self, state: Any, now: int, quota: Quota, cost: int) -> tuple[int, Any]: ...

    def figures(self, state: Any, now: int, quota: Quota) -> tuple[int, int]: ...

    def refund(self, state: Any, now: int, quota: Quota, cost: int, charged_at: int, reset: int) -> Any: ...

    def base(self, quota: Quota) -> int:
        """Return the denominator of a level's fraction."""
        ...

    def level(self, state: Any, now: int, quota: Quota) -> Level:
        """Return what the bucket has taken and not yet drained."""
        ...

    def lower(self, state: Any, now: int, quota: Quota, by: Level) -> Any:
        """Return the state with its level lowered by `by`, which is at most the level."""
        ...


class Open(NamedTuple):
    """An open reservation."""

    reservation: int  # the number that identifies it in its buckets
    low: Level  # how much can still be refunded
    since: int  # when it was charged
    reset: int  # after that

    def is_before(self, charged_at: int, reset: int) -> bool:
        """Return whether it was charged before another charge. At the same time, each charge makes the reset later."""
        return self.since < charged_at or (self.since == charged_at and self.reset < reset)


class ReservedBucket:
    """The state of a bucket with open reservations. Immutable.

    Unlike the other states, it cannot be unpacked. `admit` and `figures` detect it by the error, at no cost to plain
    states.
    """

    __slots__ = ("newest", "older", "state")

    def __init__(self, state: Any, newest: Open, older: tuple[Open, ...] = ()) -> None:
        self.state = state  # the state without reservations
        self.newest = newest
        self.older = older  # oldest first; each `low` is from the time when the next reservation was made

    def lowest(self, level: Level) -> Open:
        """Return the newest reservation, given the current level of the bucket."""
        return self.newest if self.newest.low <= level else self.newest._replace(low=level)


def plain(state: Any) -> Any:
    """Return a state without its reservations."""
    return state.state if isinstance(state, ReservedBucket) else state


def update_reservations(held: ReservedBucket, state: Any, level: Level) -> Any:
    """Return the state to store after a charge made at this level turned `held` into `state`."""
    newest = held.lowest(level)
    return state if newest.low == NONE else ReservedBucket(state, newest, held.older)


def admit(bucket: Bucket, held: Any, now: int, quota: Quota, cost: int) -> tuple[int, Any]:
    """Do `Bucket.admit` for a bucket with open reservations."""
    if not isinstance(held, ReservedBucket):
        raise TypeError(f"the state of a bucket: expected numbers, got {held!r}")
    wait, state = bucket.admit(held.state, now, quota, cost)
    if state is held.state:
        return wait, held
    return wait, update_reservations(held, state, bucket.level(held.state, now, quota))


def figures(bucket: Bucket, held: Any, now: int, quota: Quota) -> tuple[int, int]:
    """Do `Bucket.figures` for a bucket with open reservations."""
    if not isinstance(held, ReservedBucket):
        raise TypeError(f"the state of a bucket: expected numbers, got {held!r}")
    return bucket.figures(held.state, now, quota)


def open_reservation(bucket: Bucket, state: Any, now: int, quota: Quota, reservation: int) -> Any:
    """Return the state after a reservation was charged to it."""
    older: tuple[Open, ...] = ()
    since = now
    if isinstance(state, ReservedBucket) and state.newest.low != NONE:
        older = (*state.older, state.newest)
        since = max(now, state.newest.since)  # in order, even when the clock went back
        if len(older) >= MAX_OPEN:
            return state
    state = plain(state)
    _, reset = bucket.figures(state, now, quota)
    return ReservedBucket(state, Open(reservation, bucket.level(state, now, quota), since, reset), older)


def settle_reservation(
    bucket: Bucket, state: Any, now: int, quota: Quota, cost: int, reservation: int
) -> tuple[Any, int]:
    """Settle a reservation that cost `cost` less than reserved. Return the state to store and the amount refunded.

    Nothing is refunded for a reservation that the bucket does not know: it was empty or reset since then.
    """
    if not isinstance(state, ReservedBucket):
        return state, 0
    known = _current(bucket, state, now, quota)
    at = next((at for at, one in enumerate(known) if one.reservation == reservation), None)
    if at is None:
        return state, 0
    low, base = known[at].low, bucket.base(quota)
    back = min(divmod(cost * quota.window_us, base), low)
    left = _minus(low, back, base)
    rest = [one._replace(low=min(one.low, left)) for one in known[:at]]
    rest += (one._replace(low=_minus(one.low, back, base)) for one in known[at + 1 :])
    changed_state = state.state if back == NONE else bucket.lower(state.state, now, quota, back)
    return _state_with_open(changed_state, rest), units(bucket, back, quota)


def refund(bucket: Bucket, held: Any, now: int, quota: Quota, cost: int, charged_at: int, reset: int) -> Any:
    """Do `Bucket.refund` for a charge outside of any reservation, for a bucket with open reservations.

    A reservation that was made after the charge can refund less by the amount refunded here. For one that was made
    before it, the hypothetical bucket got the charge, too, and loses it as well, except for what has drained since.
    """
    if not isinstance(held, ReservedBucket):
        raise TypeError(f"the state of a bucket: expected numbers, got {held!r}")
    known = _current(bucket, held, now, quota)
    state = bucket.refund(held.state, now, quota, cost, charged_at, reset)
    base = bucket.base(quota)
    back = _minus(bucket.level(held.state, now, quota), bucket.level(state, now, quota), base)
    drained = divmod(max(0, now - charged_at) * quota.limit, base)
    kept = max(NONE, _minus(divmod(cost * quota.window_us, base), drained, base))
    less = max(NONE, _minus(back, kept, base))
    lost = [less if one.is_before(charged_at, reset) else back for one in known]
    rest = [one._replace(low=max(NONE, _minus(one.low, by, base))) for one, by in zip(known, lost, strict=True)]
    return _state_with_open(state, rest)


def units(bucket: Bucket, level: Level, quota: Quota) -> int:
    """Return the largest cost that raises a level by at most `level`."""
    return (level[0] * bucket.base(quota) + level[1]) // quota.window_us


def refunded_cost(bucket: Bucket, before: Any, after: Any, now: int, quota: Quota) -> int:
    """Return the cost that a refund from state `before` to state `after` returned."""
    levels = bucket.level(plain(before), now, quota), bucket.level(plain(after), now, quota)
    return units(bucket, _minus(*levels, bucket.base(quota)), quota)


def _minus(level: Level, other: Level, base: int) -> Level:
    """Return the difference of two levels."""
    whole, part = level[0] - other[0], level[1] - other[1]
    return (whole, part) if part >= 0 else (whole - 1, part + base)


def _current(bucket: Bucket, held: ReservedBucket, now: int, quota: Quota) -> list[Open]:
    """Return all open reservations, oldest first, with what they can refund now."""
    newest, largest = held.lowest(bucket.level(held.state, now, quota)), bucket.base(quota) - 1
    low = (newest.low[0], min(newest.low[1], largest))
    known = [newest._replace(low=low)]
    for one in reversed(held.older):
        if one.low < low:
            low = (one.low[0], min(one.low[1], largest))
        known.append(one._replace(low=low))
    known.reverse()
    return known


def _state_with_open(state: Any, known: list[Open]) -> Any:
    """Return a state with those of its reservations that can refund anything."""
    known = [one for one in known if one.low != NONE]
    return ReservedBucket(state, known[-1], tuple(known[:-1])) if known else state
