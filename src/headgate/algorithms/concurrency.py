"""Concurrency: a limit on requests in progress. Each takes a slot until it is released or expires.

State: the held slots by id, each with its expiry, cost and time to live. Allowed while `cost` and the costs of all
unexpired slots add up to at most `limit`. A quota's `window` is the time to live of the slots that it admits; a slot
keeps its own time to live when the quota changes.

Unlike the other states, this one is changed in place: `admit` checks for room, `take` takes a slot, and `release` and
`renew` find a slot by its id. A store must read the state's figures before it changes the state again.

If a slot expires later than its own time to live from now, the clock went back since it was taken or renewed. Its
expiry is then moved to its time to live from now.

Requests that wait for a slot stand in a queue, which the state also keeps. A refused request that waits leaves a
ticket: its cost, and when it came, which orders the queue. The tickets ahead of a request count as if they held their
slots already; for a request without a ticket, those are all tickets. A ticket that is not renewed for `TICKET_US` is
dead and counts no more. So is a ticket whose expiry is further away than that, because the clock went back.

The release of a request that was given up may overtake its check. If it finds neither slot nor ticket, the queue
remembers the slot's id for `TICKET_US`, and refuses it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

from headgate.core.check import NEVER, NOT_WAITING, TICKET_US
from headgate.core.quota import Quota

MAX_TICKETS: Final = 1_000  # per queue; requests beyond wait without a ticket

# Expiry, id, cost and time to live; the garbage collector soon skips plain tuples.
HeldSlot = tuple[int, str, int, int]


class TicketQueue:
    """The tickets of requests that wait for slots of one subject, and the ids of requests that were given up."""

    __slots__ = ("given_up", "order", "tickets")

    def __init__(self) -> None:
        self.order: list[tuple[int, str]] = []  # time of arrival and slot's id of each ticket
        self.tickets: dict[str, tuple[int, int, int]] = {}  # by slot's id: time of arrival, cost and expiry
        self.given_up: dict[str, int] = {}  # by slot's id: until when it is refused

    def __len__(self) -> int:
        return len(self.tickets) + len(self.given_up)

    def cost_ahead(self, now: int, room: int, slot: str = "", arrived: int = NOT_WAITING) -> int:
        """Return the cost of the live tickets ahead of a request, counted until it exceeds `room`."""
        total = 0
        for at, other in self.order:
            if arrived > 0 and (at > arrived or other == slot):
                break
            _, cost, expires = self.tickets[other]
            if _is_live(expires, now):
                total += cost
                if total > room:
                    break
        return total

    def put(self, slot: str, arrived: int, now: int, cost: int) -> None:
        """Add or renew a ticket. Does nothing if the queue is full, or the request was given up."""
        if self.is_given_up(slot, now):
            return
        if slot not in self.tickets:
            self.drop_dead(now)
            if len(self.order) >= MAX_TICKETS:
                return
        self.remove(slot)
        insort(self.order, (arrived, slot))
        self.tickets[slot] = (arrived, cost, now + TICKET_US)

    def is_held(self, slot: str, now: int) -> bool:
        """Return whether a request has a live ticket."""
        return slot in self.tickets and _is_live(self.tickets[slot][2], now)

    def is_given_up(self, slot: str, now: int) -> bool:
        return slot in self.given_up and _is_live(self.given_up[slot], now)

    def remove(self, slot: str) -> bool:
        """Remove a ticket. Return whether there was one."""
        known = self.tickets.pop(slot, None)
        if known is not None:
            del self.order[bisect_left(self.order, (known[0], slot))]
        return known is not None

    def drop_dead(self, now: int) -> None:
        """Drop dead tickets, and ids that may be used again."""
        for slot in [slot for slot in self.tickets if not self.is_held(slot, now)]:
            self.remove(slot)
        for slot in [slot for slot in self.given_up if not self.is_given_up(slot, now)]:
            del self.given_up[slot]


def _is_live(expires: int, now: int) -> bool:
    return now < expires <= now + TICKET_US


class SlotSet:
    """The slots of one subject, and the queue for them."""

    __slots__ = ("by_id", "order", "queue", "total")

    def __init__(self) -> None:
        self.by_id: dict[str, HeldSlot] = {}
        self.order: list[HeldSlot] = []  # the same, by expiry
        self.total = 0  # the sum of their costs
        self.queue: TicketQueue | None = None  # None: no request has waited yet

    def put(self, slot: str, since: int, cost: int, ttl: int) -> int:
        """Add a slot that is not held yet. Return the latest expiry of all slots."""
        order = self.order
        self.by_id[slot] = held = (since + ttl, slot, cost, ttl)
        self.total += cost
        if order and held < order[-1]:
            insort(order, held)
        else:
            order.append(held)
        return order[-1][0]

    def pop(self, slot: str) -> HeldSlot | None:
        """Remove a slot and return it; None if it is not held."""
        held = self.by_id.pop(slot, None)
        if held is not None:
            self.total -= held[2]
            del self.order[bisect_left(self.order, held)]
        return held

    def current(self, now: int) -> SlotSet:
        """Return the slots without expired ones, those from the future moved to now: a copy if that changes any."""
        order = self.order
        if not order:
            return self
        last, _, _, ttl = order[-1]
        if order[0][0] > now >= last - ttl:
            return self
        slots = SlotSet()
        slots.queue = self.queue
        for expires, slot, cost, ttl in order:
            if expires > now:
                slots.put(slot, min(expires - ttl, now), cost, ttl)
        return slots

    def free_at(self, needed: int) -> int:
        """Return the time at which `needed` is free at the latest, as the earliest slots expire."""
        for expires, _, cost, _ in self.order:
            needed -= cost
            if needed <= 0:
                return expires
        raise AssertionError("less is held than is needed")


def admit(
    state: SlotSet | None, now: int, quota: Quota, cost: int, slot: str = "", arrived: int = NOT_WAITING
) -> tuple[int, SlotSet | None]:
    """Check whether there is room for a request. `arrived` is when it came, if it waits and has been refused before."""
    limit = quota.limit
    if state is not None:
        live = state.current(now)
        if live.order or live.queue:
            if cost == 0:
                return 0, live
            if cost > limit:
                return NEVER, live
            total = live.total + cost
            wait = 0 if total <= limit else live.free_at(total - limit) - now
            if live.queue is not None:
                if live.queue.is_given_up(slot, now):
                    return max(wait, TICKET_US), live
                ahead = live.queue.cost_ahead(now, limit - total, slot, arrived)
                if ahead > 0 and total + ahead > limit:
                    wait = max(wait, TICKET_US)
            return wait, live
    if cost > limit:
        return NEVER, state
    return 0, SlotSet() if cost else state  # no slot is left; the old state may stay unless a slot is taken


def take(state: SlotSet, now: int, quota: Quota, cost: int, slot: str, arrived: int = NOT_WAITING) -> tuple[int, int]:
    """Hold a slot that `admit` just admitted, and return the figures then."""
    latest = state.put(slot, now, cost, quota.window_us)
    if state.queue is None:
        return quota.limit - state.total, latest - now
    state.queue.drop_dead(now)
    if arrived > 0:
        state.queue.remove(slot)
    return figures(state, now, quota)


def figures(state: SlotSet | None, now: int, quota: Quota) -> tuple[int, int]:
    if state is None:
        return quota.limit, 0
    live = state.current(now)
    remaining = max(0, quota.limit - live.total)  # the limit may have been lowered
    reset = live.order[-1][0] - now if live.order else 0
    queued = 0 if live.queue is None else live.queue.cost_ahead(now, remaining)
    if queued:
        return max(0, remaining - queued), max(reset, TICKET_US)
    return remaining, reset


def line_up(state: SlotSet, now: int, cost: int, slot: str, arrived: int) -> None:
    """Put a ticket into the queue, or renew it. An `arrived` of 0 is now."""
    if state.queue is None:
        state.queue = TicketQueue()
    state.queue.put(slot, arrived or now, now, cost)


def leave(state: SlotSet | None, slot: str) -> None:
    """Take a ticket out of the queue, if there is one."""
    if state is not None and state.queue is not None:
        state.queue.remove(slot)


def release(state: SlotSet | None, now: int, slot: str, arrived: int = NOT_WAITING) -> bool:
    """Release a slot. Return whether it was held; an expired slot is not held.

    For a request that has `arrived`, this also takes its ticket out of the queue. If it has neither slot nor ticket,
    its check may be on its way, and will be refused.
    """
    held = None if state is None else state.pop(slot)
    if state is not None and arrived != NOT_WAITING:
        if state.queue is None:
            state.queue = TicketQueue()
        if not state.queue.remove(slot) and held is None:
            state.queue.drop_dead(now)
            if len(state.queue.given_up) < MAX_TICKETS:
                state.queue.given_up[slot] = now + TICKET_US
    return held is not None and held[0] > now


def renew(state: SlotSet | None, now: int, slot: str, arrived: int = NOT_WAITING) -> bool:
    """Extend a slot to its time to live from now. Return whether it was held; an expired slot is not held.

    For a request that has `arrived` and holds no slot yet, this renews its ticket. Return whether it was live.
    """
    if state is None:
        return False
    held = state.by_id.get(slot)
    if held is None:
        queue = state.queue
        if arrived == NOT_WAITING or queue is None or not queue.is_held(slot, now):
            return False
        since, cost, _ = queue.tickets[slot]
        queue.put(slot, since, now, cost)
        return True
    if held[0] <= now:
        return False
    state.pop(slot)
    state.put(slot, now, *held[2:])
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
