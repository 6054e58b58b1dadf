"""Requests of one limiter that wait for slots. The store keeps the queue; this module says who of them asks it.

Requests that wait for the same slots form a line, in the order of the store's queue. Only the first of them asks the
store again, and it also renews the tickets of the others. No I/O.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence
from threading import Lock
from typing import Any, Final
from weakref import WeakValueDictionary

from headgate.core.check import TICKET_US, Check
from headgate.core.decision import Decision
from headgate.core.fork import renew_in_children
from headgate.core.plan import Plan
from headgate.core.slot import new_slot
from headgate.limiter.slot_records import slot_checks

RENEW_US: Final = TICKET_US // 4  # between two renewals of a line's tickets

WOKEN: Final = 2  # requests that ask the store when one ahead of them is admitted: more slots may be free


class SlotWaiter:
    """A request that waits for a slot. The slot's id is also the id of its ticket."""

    __slots__ = ("arrived_us", "decision", "entry", "place", "request", "turn")

    def __init__(self, turn: Any) -> None:
        self.entry = new_slot()
        self.turn = turn  # an Event of threading or of asyncio: set when the request should ask the store
        self.place: Place | None = None  # in its line
        self.arrived_us = 0  # when the store gave it a ticket; 0: it has none
        self.decision: Decision | None = None  # the last refusal
        self.request: tuple[Plan, tuple[str, ...], tuple[int, ...]] | None = None  # its plan, subjects and costs

    def note_refusal(self, decision: Decision, is_for_slot: bool) -> None:
        """Record a refusal by the store. Only a request that lacks nothing but slots has a ticket then.

        A ticket keeps its time of arrival, unless the store's clock went back.
        """
        self.decision, at_us = decision, decision.at_us
        if not is_for_slot:
            self.arrived_us = 0
        elif not self.arrived_us or self.arrived_us > at_us + TICKET_US:
            self.arrived_us = at_us

    @property
    def checks(self) -> tuple[Check, ...]:
        """The checks in whose queues it stands. Shadow limits have no queue."""
        if self.request is None:
            return ()
        return tuple([check for check in slot_checks(*self.request, self.entry, self.arrived_us) if check.enforced])


Place = tuple[int, str, SlotWaiter]  # time of arrival and ticket's id, which order a line


class Line:
    """The requests that wait for the same slots, in order of arrival by the store's clock."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._order: list[Place] = []
        self._renewed_us = 0

    def enter(self, waiter: SlotWaiter) -> bool:
        """Let a request wait that has a ticket. Return whether it is first; if not, its turn comes."""
        with self._lock:
            if waiter.place is None or waiter.place[0] != waiter.arrived_us:
                self._remove(waiter)
                waiter.place = (waiter.arrived_us, waiter.entry, waiter)
                insort(self._order, waiter.place)
            waiter.turn.clear()
            return self._order[0][2] is waiter

    def leave(self, waiter: SlotWaiter) -> None:
        """End the wait of a request, if it waits here. The next ones ask the store at once."""
        with self._lock:
            self._remove(waiter)
            for _, _, following in self._order[:WOKEN]:
                following.turn.set()

    def wake(self) -> None:
        """Let the first request ask the store now: this process has released a slot."""
        with self._lock:
            if self._order:
                self._order[0][2].turn.set()

    def due(self, now_us: int) -> list[SlotWaiter]:
        """Return the requests whose tickets should be renewed now: all but the first, which asks anyway."""
        with self._lock:
            if 0 <= now_us - self._renewed_us < RENEW_US:
                return []
            self._renewed_us = now_us
            return [waiter for _, _, waiter in self._order[1:]]

    def _remove(self, waiter: SlotWaiter) -> None:
        if waiter.place is not None:
            del self._order[bisect_left(self._order, waiter.place)]
            waiter.place = None


class Lines:
    """The lines of one limiter, by the slots that requests wait for. A line exists while a request is in it."""

    def __init__(self) -> None:
        self.reset_after_fork()
        renew_in_children(self)

    def reset_after_fork(self) -> None:
        """Reset in a forked child: the waiting requests are the parent's."""
        self._lock = Lock()
        self._known: WeakValueDictionary[Hashable, Line] = WeakValueDictionary()

    def of(self, keys: Hashable) -> Line:
        """Return the line for these keys."""
        with self._lock:
            return self._known.setdefault(keys, Line())

    def wake(self, released: Sequence[Check]) -> None:
        """Let the first request that waits for these slots ask the store now."""
        if self._known:
            line = self._known.get(tuple([(check.key_template, check.subject) for check in released if check.enforced]))
            if line is not None:
                line.wake()
