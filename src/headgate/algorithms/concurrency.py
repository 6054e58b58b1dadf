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

from headgate.core.check import NEVER
from headgate.core.quota import Quota

HeldSlot = tuple[int, int, int]  # expiry, cost and time to live; the garbage collector soon skips plain tuples


class SlotSet:
    """The slots of one subject."""

    __slots__ = ("by_id", "order", "total")

    def __init__(self) -> None:
        self.by_id: dict[str, HeldSlot] = {}
        self.order: list[tuple[int, str]] = []  # expiry and id of each slot, by expiry
        self.total = 0  # the sum of their costs

    def put(self, slot: str, since: int, cost: int, ttl: int) -> None:
        """Add a slot that is not held yet."""
        expires, order = since + ttl, self.order
        self.by_id[slot] = (expires, cost, ttl)
        self.total += cost
        if order and expires <= order[-1][0]:
            insort(order, (expires, slot))
        else:
            order.append((expires, slot))

    def pop(self, slot: str) -> HeldSlot | None:
        """Remove a slot and return it; None if it is not held."""
        held = self.by_id.pop(slot, None)
        if held is not None:
            expires, cost, _ = held
            self.total -= cost
            del self.order[bisect_left(self.order, (expires, slot))]
        return held

    def current(self, now: int) -> SlotSet:
        """Return the slots without expired ones, those from the future moved to now: a copy if that changes any."""
        order = self.order
        if not order:
            return self
        last, slot = order[-1]
        if order[0][0] > now >= last - self.by_id[slot][2]:
            return self
        slots = SlotSet()
        for expires, slot in order:
            _, cost, ttl = self.by_id[slot]
            if expires > now:
                slots.put(slot, min(expires - ttl, now), cost, ttl)
        return slots

    def free_at(self, needed: int) -> int:
        """Return the time at which `needed` is free at the latest, as the earliest slots expire."""
        for expires, slot in self.order:
            needed -= self.by_id[slot][1]
            if needed <= 0:
                return expires
        raise AssertionError("less is held than is needed")


def admit(state: SlotSet | None, now: int, quota: Quota, cost: int) -> tuple[int, SlotSet | None]:
    limit = quota.limit
    if state is not None:
        live = state.current(now)
        if live.order:
            total = live.total + cost
            if total <= limit or cost == 0:
                return 0, live
            return NEVER if cost > limit else live.free_at(total - limit) - now, live
    if cost > limit:
        return NEVER, state
    return 0, SlotSet() if cost else state  # no slot is left; the old state may stay unless a slot is taken


def take(state: SlotSet, now: int, quota: Quota, cost: int, slot: str) -> tuple[int, int]:
    """Hold a slot that `admit` just admitted, and return the figures then."""
    state.put(slot, now, cost, quota.window_us)
    return quota.limit - state.total, state.order[-1][0] - now


def figures(state: SlotSet | None, now: int, quota: Quota) -> tuple[int, int]:
    if state is None:
        return quota.limit, 0
    live = state.current(now)
    remaining = quota.limit - live.total  # below 0 when the limit was lowered
    return remaining if remaining > 0 else 0, live.order[-1][0] - now if live.order else 0


def release(state: SlotSet | None, now: int, slot: str) -> bool:
    """Release a slot. Return whether it was held; an expired slot is not held."""
    held = None if state is None else state.pop(slot)
    return held is not None and held[0] > now


def renew(state: SlotSet | None, now: int, slot: str) -> bool:
    """Extend a slot to its time to live from now. Return whether it was held; an expired slot is not held."""
    held = None if state is None else state.by_id.get(slot)
    if state is None or held is None or held[0] <= now:
        return False
    _, cost, ttl = held
    state.pop(slot)
    state.put(slot, now, cost, ttl)
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
