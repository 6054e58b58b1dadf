"""Buckets with open reservations: how much of each reservation can still be given back. Twin of held.lua.

A bucket drains while it is not empty. Had a reservation cost less, the bucket might have been empty earlier, and what
would have drained from then on is lost: it must not be given back. So a refund takes a bucket no lower than a bucket
would be that was empty right after the reservation and was charged all that came later.

For each open reservation, `low` is the distance from the level of the bucket down to that of the other bucket: the most
that settling it gives back. It begins as the level right after the reservation. Charges raise both levels, and
draining lowers both, until the other bucket is empty: so `low` becomes the lowest level that the bucket has had since.
An older reservation has at most the `low` of a newer one. So a check updates one number, that of the newest one, and a
settlement applies it to the older ones.

A level is a whole number and a part of the next one, as in the states: in units and 1/window, or, of gcra, in
microseconds and 1/limit.
`docs/adr/0022-what-settling-gives-back.md` has the proof.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from headgate.core.quota import Quota

MAX_OPEN: Final = (
    1_024  # reservations of one bucket that are tracked separately; beyond that, the oldest refunds nothing
)


Level = tuple[int, int]
NONE: Final = (0, 0)


class Bucket(Protocol):
    """The Python twin of a bucket algorithm."""

    def admit(self, state: Any, now: int, quota: Quota, cost: int) -> tuple[int, Any]: ...

    def figures(self, state: Any, now: int, quota: Quota) -> tuple[int, int]: ...

    def refund(self, state: Any, now: int, quota: Quota, cost: int, charged_at: int, reset: int) -> Any: ...

    def base(self, quota: Quota) -> int:
        """Return how many parts are a whole of a level."""
        ...

    def level(self, state: Any, now: int, quota: Quota) -> Level:
        """Return what the bucket has taken and not yet drained."""
        ...

    def lowered(self, state: Any, now: int, quota: Quota, by: Level) -> Any:
        """Return the state with its level lowered, by no more than the level."""
        ...


class Open(NamedTuple):
    """An open reservation: the mark that identifies it in its buckets, and how much it can still give back."""

    mark: int
    low: Level


class ReservedBucket:
    """The state of a bucket with open reservations. Immutable.

    It does not unpack, as the other states do: by that, `admit` and `figures` find out, and others do not pay for it.
    """

    __slots__ = ("newest", "older", "state")

    def __init__(self, state: Any, newest: Open, older: tuple[Open, ...] = ()) -> None:
        self.state = state  # as it is without reservations
        self.newest = newest
        self.older = older  # the oldest first; each `low` as it was when the next one was made

    def lowest(self, level: Level) -> Open:
        """Return the newest reservation at this level of the bucket."""
        return self.newest if self.newest.low <= level else Open(self.newest.mark, level)


def plain(state: Any) -> Any:
    """Return a state as it is without reservations."""
    return state.state if isinstance(state, ReservedBucket) else state


def changed(held: ReservedBucket, state: Any, level: Level) -> Any:
    """Return the state to keep when `held` becomes `state` by a charge made at this level."""
    newest = held.lowest(level)
    return state if newest.low == NONE else ReservedBucket(state, newest, held.older)


def admit(bucket: Bucket, held: Any, now: int, quota: Quota, cost: int) -> tuple[int, Any]:
    """`Bucket.admit`, of a bucket with open reservations."""
    if not isinstance(held, ReservedBucket):
        raise TypeError(f"the state of a bucket: expected numbers, got {held!r}")
    wait, state = bucket.admit(held.state, now, quota, cost)
    if state is held.state:
        return wait, held
    return wait, changed(held, state, bucket.level(held.state, now, quota))


def figures(bucket: Bucket, held: Any, now: int, quota: Quota) -> tuple[int, int]:
    """`Bucket.figures`, of a bucket with open reservations."""
    if not isinstance(held, ReservedBucket):
        raise TypeError(f"the state of a bucket: expected numbers, got {held!r}")
    return bucket.figures(held.state, now, quota)


def opened(bucket: Bucket, state: Any, now: int, quota: Quota, mark: int) -> Any:
    """Return the state after a reservation was charged to it."""
    older: tuple[Open, ...] = ()
    if isinstance(state, ReservedBucket) and state.newest.low != NONE:
        older = (*state.older, state.newest)[-MAX_OPEN + 1 :]
    return ReservedBucket(plain(state), Open(mark, bucket.level(plain(state), now, quota)), older)


def settled(bucket: Bucket, state: Any, now: int, quota: Quota, cost: int, mark: int) -> tuple[Any, int]:
    """Close a reservation that cost less by `cost`: the state to keep, and how much was given back.

    Nothing is given back of a reservation that the bucket does not know: it has been empty or was reset since.
    """
    if not isinstance(state, ReservedBucket):
        return state, 0
    known = _current(bucket, state, now, quota)
    at = next((at for at, one in enumerate(known) if one.mark == mark), None)
    if at is None:
        return state, 0
    low, base = known[at].low, bucket.base(quota)
    back = min(divmod(cost * quota.window_us, base), low)
    left = _minus(low, back, base)
    rest = [Open(one.mark, min(one.low, left)) for one in known[:at]]
    rest += (Open(one.mark, _minus(one.low, back, base)) for one in known[at + 1 :])
    changed_state = state.state if back == NONE else bucket.lowered(state.state, now, quota, back)
    return _held(changed_state, rest), units(bucket, back, quota)


def refund(bucket: Bucket, held: Any, now: int, quota: Quota, cost: int, charged_at: int, reset: int) -> Any:
    """`Bucket.refund` of a charge that is no reservation's, of a bucket with open reservations.

    Which of them the charge came before is not known: what they can give back becomes less by as much as was refunded.
    """
    if not isinstance(held, ReservedBucket):
        raise TypeError(f"the state of a bucket: expected numbers, got {held!r}")
    known = _current(bucket, held, now, quota)
    state = bucket.refund(held.state, now, quota, cost, charged_at, reset)
    base = bucket.base(quota)
    back = _minus(bucket.level(held.state, now, quota), bucket.level(state, now, quota), base)
    return _held(state, [Open(one.mark, max(NONE, _minus(one.low, back, base))) for one in known])


def units(bucket: Bucket, level: Level, quota: Quota) -> int:
    """Return the largest cost that raises a level by no more than this."""
    return (level[0] * bucket.base(quota) + level[1]) // quota.window_us


def given(bucket: Bucket, before: Any, after: Any, now: int, quota: Quota) -> int:
    """Return what a refund gave back, that made one state of another."""
    levels = bucket.level(plain(before), now, quota), bucket.level(plain(after), now, quota)
    return units(bucket, _minus(*levels, bucket.base(quota)), quota)


def _minus(level: Level, other: Level, base: int) -> Level:
    """Return the difference of two levels."""
    whole, part = level[0] - other[0], level[1] - other[1]
    return (whole, part) if part >= 0 else (whole - 1, part + base)


def _current(bucket: Bucket, held: ReservedBucket, now: int, quota: Quota) -> list[Open]:
    """Return all open reservations, the oldest first, with what they can give back now."""
    newest, most = held.lowest(bucket.level(held.state, now, quota)), bucket.base(quota) - 1
    low = (newest.low[0], min(newest.low[1], most))
    known = [Open(newest.mark, low)]
    for one in reversed(held.older):
        if one.low < low:
            low = (one.low[0], min(one.low[1], most))
        known.append(Open(one.mark, low))
    known.reverse()
    return known


def _held(state: Any, known: list[Open]) -> Any:
    """Return a state with those of its reservations that can give back anything."""
    known = [one for one in known if one.low != NONE]
    return ReservedBucket(state, known[-1], tuple(known[:-1])) if known else state
