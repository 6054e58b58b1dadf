"""Concurrency: a limit on requests in progress. Each takes a slot until it is released or expires.

State: the held slots by id, each with its expiry, cost and time to live. Allowed while `cost` and the costs of all
unexpired slots add up to at most `limit`. A quota's `window` is the time to live of the slots that it admits; a slot
keeps its own time to live when the quota changes.

Unlike the other states, this one is changed in place: `admit` checks for room, `take` takes a slot, and `release` and
`renew` find a slot by its id. A store must read the state's figures before it changes the state again.

If a slot expires later than its own time to live from now, the clock went back since it was taken or renewed. Its
expiry is then moved to its time to live from now.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any, Final, NamedTuple

from headgate.core.check import NEVER
from headgate.core.quota import Quota

_new: Final[Any] = tuple.__new__  # makes a named tuple in half the time of calling its class


class HeldSlot(NamedTuple):
    """A held slot."""

    expires: int
    cost: int
    ttl: int


class SlotSet:
    """The slots of one subject."""

    __slots__ = ("by_id", "order", "total")

    def __init__(self) -> None:
        self.by_id: dict[str, HeldSlot] = {}
        self.order: list[tuple[int, str]] = []  # expiry and id of each slot, by expiry
        self.total = 0  # the sum of their costs

    def put(self, slot: str, held: HeldSlot) -> None:
        """Add a slot that is not held yet."""
        self.by_id[slot] = held
        self.total += held.cost
        entry = (held.expires, slot)
        if self.order and entry < self.order[-1]:
            insort(self.order, entry)
        else:
            self.order.append(entry)

    def pop(self, slot: str) -> HeldSlot | None:
        """Remove a slot and return it; None if it is not held."""
        held = self.by_id.pop(slot, None)
        if held is not None:
            self.total -= held.cost
            del self.order[bisect_left(self.order, (held.expires, slot))]
        return held

    def is_current(self, now: int) -> bool:
        """Return whether no slot has expired and none is from the future."""
        order = self.order
        if not order:
            return True
        last, slot = order[-1]
        return order[0][0] > now and last - self.by_id[slot].ttl <= now

    def current(self, now: int) -> SlotSet:
        """Return a copy without expired slots, with the slots from the future moved to now."""
        slots = SlotSet()
        for expires, slot in self.order:
            held = self.by_id[slot]
            if expires > now:
                slots.put(slot, held if expires - held.ttl <= now else held._replace(expires=now + held.ttl))
        return slots

    def frees(self, needed: int) -> int:
        """Return the time at which `needed` is free at the latest, as the earliest slots expire."""
        for expires, slot in self.order:
            needed -= self.by_id[slot].cost
            if needed <= 0:
                return expires
        raise AssertionError("less is held than is needed")


def admit(state: SlotSet | None, now: int, quota: Quota, cost: int) -> tuple[int, SlotSet | None]:
    limit = quota.limit
    live = state if state is None or state.is_current(now) else state.current(now)
    if live is None or not live.order:  # no slot is left; the old state may stay unless a slot is taken
        if cost > limit:
            return NEVER, state
        return 0, SlotSet() if cost else state
    if cost == 0 or live.total + cost <= limit:
        return 0, live
    return NEVER if cost > limit else live.frees(live.total + cost - limit) - now, live


def take(state: SlotSet, now: int, quota: Quota, cost: int, slot: str) -> None:
    """Hold a slot that `admit` just admitted."""
    ttl = quota.window_us
    state.put(slot, _new(HeldSlot, (now + ttl, cost, ttl)))


def figures(state: SlotSet | None, now: int, quota: Quota) -> tuple[int, int]:
    if state is None:
        return quota.limit, 0
    if not state.is_current(now):
        state = state.current(now)
    remaining = quota.limit - state.total  # below 0 when the limit was lowered
    return remaining if remaining > 0 else 0, state.order[-1][0] - now if state.order else 0


def release(state: SlotSet | None, now: int, slot: str) -> bool:
    """Release a slot. Return whether it was held; an expired slot is not held."""
    held = None if state is None else state.pop(slot)
    return held is not None and held.expires > now


def renew(state: SlotSet | None, now: int, slot: str) -> bool:
    """Extend a slot to its time to live from now. Return whether it was held; an expired slot is not held."""
    held = None if state is None else state.by_id.get(slot)
    if state is None or held is None or held.expires <= now:
        return False
    state.pop(slot)
    state.put(slot, held._replace(expires=now + held.ttl))
    return True


def refund(
    state: SlotSet | None,
    now: int,
    quota: Quota,
    cost: int,
    charged_at: int,
    reset: int,
) -> SlotSet | None:
    """Do nothing: a slot is released by its id."""
    return state
