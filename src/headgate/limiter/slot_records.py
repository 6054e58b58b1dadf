"""Slots that a limiter holds: its records of them, and its waits for one. No I/O."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from headgate.core.check import NEVER, REFUSAL, Check
from headgate.core.clock import Clock
from headgate.core.decision import Decision
from headgate.core.fork import renew_in_children
from headgate.core.plan import Plan
from headgate.core.quota import CONCURRENCY, MICROSECONDS
from headgate.core.slot import encode_slot
from headgate.errors import InvalidCheck, StoreError

if TYPE_CHECKING:
    from headgate.rules.plan import RulePlan

SlotUse = Literal["refuse", "take", "lend", "skip"]
"""How to check rules that limit concurrency.

`refuse`: raise an error. `take`: take a slot, and renew it until it is released. `lend`: take a slot for a remote
caller, who renews it. `skip`: leave those rules out.
"""

POLL_SECONDS: Final = 0.002  # between two attempts to get a slot, at first; doubles each time
MAX_POLL_SECONDS: Final = 0.01  # the upper bound: otherwise the callers that waited longest would retry least
MIN_ENTRIES: Final = 1_000  # a limiter with fewer slots does not look for expired ones

_new: Final[Any] = tuple.__new__  # makes a named tuple in half the time of calling its class

log = logging.getLogger("headgate")


def needs_acquire(plan: Plan) -> InvalidCheck:
    """Return the error for a check to which a concurrency rule applies."""
    rule = plan.limits[plan.slots[0]].rule
    return InvalidCheck(
        f"rule {rule!r} limits concurrency: a check cannot say when the request is over; "
        "use acquire, which holds a slot until it is released"
    )


def no_slots(store: object) -> InvalidCheck:
    """Return the error for a store that cannot limit concurrency."""
    return InvalidCheck(
        f"{type(store).__name__} cannot limit concurrency: it lacks release_slots or renew_slots "
        "(see headgate.stores.protocol.SlotStore)"
    )


def slot_checks(plan: Plan, subjects: tuple[str, ...], costs: tuple[int, ...], entry: str) -> tuple[Check, ...]:
    """Return the checks of a request that hold its slot if it is allowed.

    They include shadow limits that were full, which hold nothing: releasing those changes nothing.
    """
    held = []
    for at in plan.slots:
        cost = costs[at]
        if cost:
            rule, key_template, _, quota, *_ = plan.limits[at]
            held.append(_new(Check, (rule, key_template, subjects[at], quota, cost, True, REFUSAL, False, 0, entry)))
    return tuple(held)


def keys_of(facts: Mapping[str, str], plan: RulePlan) -> tuple[tuple[str, str], ...]:
    """Return the key of the queue for a request's slots: key template and subject of each limit."""
    subjects = plan.subjects(facts)
    return tuple([(plan.limits[at].key_template, subjects[at]) for at in plan.slots])


class SlotStatus(NamedTuple):
    """Figures about the slots that a limiter took itself, by rule."""

    in_use: Mapping[str, int] = {}
    longest_held: Mapping[str, float] = {}  # seconds
    acquired: Mapping[str, int] = {}
    released: Mapping[str, int] = {}
    expired: Mapping[str, int] = {}  # not released or renewed in time


class SlotBook:
    """Slots that a limiter has taken and not yet released. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._released: Counter[str] = Counter()
        self._foreign: Counter[str] = Counter()  # slots among them that other limiters took
        self._expired: Counter[str] = Counter()
        self.reset_after_fork()
        renew_in_children(self)

    def reset_after_fork(self) -> None:
        """Reset in a forked child: the slots are the parent's."""
        self._lock = Lock()
        self._entries: dict[str, SlotState] = {}
        self._next_look = MIN_ENTRIES  # the number of entries at which to look for expired ones

    def add(self, slot: SlotState) -> None:
        """Record that a slot was taken."""
        entries = self._entries
        entries[slot.entry] = slot  # one step of the interpreter: no lock is needed
        if len(entries) >= self._next_look:
            with self._lock:
                self._forget(monotonic())
                self._next_look = max(MIN_ENTRIES, 2 * len(entries))

    def note_renewed(self, held: Sequence[Check], were_held: Sequence[bool]) -> bool:
        """Record that a slot was renewed, if it was held. Returns whether it was."""
        if not all(were_held):
            return False
        slot = self._entries.get(held[0].slot)
        if slot is not None:
            slot.renewed = monotonic()
        return True

    def note_gone(self, held: Sequence[Check], were_held: Sequence[bool]) -> None:
        """Record that a slot was released, or was found to have expired."""
        with self._lock:
            known = self._entries.pop(held[0].slot, None)
            for check, was_held in zip(held, were_held, strict=True):
                if was_held:
                    self._released[check.rule] += 1
                    if known is None:
                        self._foreign[check.rule] += 1
                elif known is not None:
                    self._expired[check.rule] += 1

    def status(self) -> SlotStatus:
        """Return the current figures."""
        now = monotonic()
        in_use: Counter[str] = Counter()
        longest: dict[str, float] = {}
        with self._lock:
            self._forget(now)
            acquired = self._released + self._expired
            acquired.subtract(self._foreign)
            for slot in list(self._entries.values()):
                for check in slot.held:
                    acquired[check.rule] += 1
                    in_use[check.rule] += check.cost
                    longest[check.rule] = max(longest.get(check.rule, 0.0), now - slot.since)
            return SlotStatus(in_use, longest, dict(acquired), dict(self._released), dict(self._expired))

    def _forget(self, now: float) -> None:
        """Drop expired slots."""
        for entry, slot in list(self._entries.items()):
            if slot.renewed + (slot.ttl or 0.0) <= now:
                del self._entries[entry]
                self._expired.update([check.rule for check in slot.held])


class SlotState:
    """Everything that `Slot` and `AsyncSlot` share, which is all but the I/O."""

    __slots__ = ("_held", "_slots", "decision", "entry", "is_held", "is_lost", "renewed", "renews", "since")

    def __init__(
        self, slots: Any, decision: Decision, renews: bool, entry: str = "", held: tuple[Check, ...] | None = None
    ) -> None:
        self._slots = slots  # of the limiter that took it
        self._held = held  # None: not read from the decision yet
        self.decision = decision
        self.entry = entry  # its random id in the store; empty: no concurrency rule applied
        self.is_held = entry != ""  # as far as this process knows
        self.is_lost = False  # whether it was found to have expired
        self.renews = renews  # in the background, until it is released
        self.since = self.renewed = monotonic()  # when it was taken, and when it was last renewed

    @property
    def held(self) -> tuple[Check, ...]:
        """The checks that hold it; empty if no concurrency rule applied."""
        if self._held is None:
            decision = self.decision
            held = slot_checks(decision.plan, decision.subjects, decision.costs, self.entry) if self.entry else ()
            self._held = held
        return self._held

    def _note_renewal(self, still_held: bool) -> bool:
        """Record the result of a renewal. Returns whether the slot is held."""
        if self.is_held and not still_held:
            self.is_held, self.is_lost = False, True
        return self.is_held

    @property
    def id(self) -> str:
        """The id by which any process on the same store can release or renew it; empty if nothing is held."""
        return encode_slot(self.held) if self.held else ""

    @property
    def ttl(self) -> float | None:
        """Seconds after which it expires unless it is renewed; None if nothing is held."""
        return min([check.quota.window_us for check in self.held]) / MICROSECONDS if self.held else None

    def __repr__(self) -> str:
        rules = ", ".join(check.rule for check in self.held)
        return f"<{type(self).__name__} of {rules or 'no rule'}, {'held' if self.is_held else 'not held'}>"


def log_unreleased(error: StoreError) -> bool:
    """Log that the store could not be reached, so that a slot is held until it expires."""
    log.warning("could not release a slot; it stays taken until it expires (%s)", error)
    return False


class SlotWait:
    """The waits between attempts to get a slot. Pure."""

    def __init__(self, clock: Clock, wait: float) -> None:
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not wait >= 0:
            raise InvalidCheck(f"wait: must be 0 or more seconds, got {wait!r}")
        self._clock = clock
        self._until_us = None if wait == float("inf") else clock.now_us() + round(wait * MICROSECONDS)
        self._poll = POLL_SECONDS

    @property
    def left(self) -> float | None:
        """Seconds until it gives up; None: it never does."""
        return None if self._until_us is None else max(0.0, (self._until_us - self._clock.now_us()) / MICROSECONDS)

    def seconds(self, decision: Decision) -> float | None:
        """Return the time until the next attempt; None to give up: waiting does not help, or there is not enough time.

        A slot may be released at any moment; the wait that a rate limit announces is exact.
        """
        rate_us, is_full = 0, False
        for limit, outcome in decision.enforced:
            if outcome.wait_us == NEVER:
                return None
            if limit.quota.algorithm != CONCURRENCY:
                rate_us = max(rate_us, outcome.wait_us)
            elif outcome.wait_us:
                is_full = True
        if not is_full and not rate_us:
            return None  # another reason for the refusal: the store is down, or the client is blocked
        seconds, left = rate_us / MICROSECONDS, self.left
        if left is not None and (left <= 0 or seconds > left):
            return None
        if is_full:
            seconds, self._poll = max(seconds, self._poll), min(2 * self._poll, MAX_POLL_SECONDS)
        return seconds if left is None else min(seconds, left)
