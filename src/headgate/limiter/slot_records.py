"""Slots that a limiter holds: its records of them, and its waits for one. No I/O."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from headgate.core.check import NEVER, NOT_WAITING, REFUSAL, Check
from headgate.core.clock import Clock
from headgate.core.decision import Decision
from headgate.core.fork import renew_in_children
from headgate.core.plan import Plan
from headgate.core.quota import CONCURRENCY, MICROSECONDS
from headgate.core.slot import encode_slot
from headgate.errors import InvalidCheck, StoreError

if TYPE_CHECKING:
    from headgate.rules.plan import RulePlan
    from headgate.rules.snapshot import Snapshot

SlotUse = Literal["refuse", "take", "lend", "skip"]
"""How to check rules that limit concurrency.

`refuse`: raise an error. `take`: take a slot, and renew it until it is released. `lend`: take a slot for a remote
caller, who renews it. `skip`: leave those rules out.
"""

POLL_SECONDS: Final = 0.002  # between two attempts to get a slot, at first; doubles each time
MAX_POLL_SECONDS: Final = 0.01  # the upper bound: otherwise the callers that waited longest would retry least
MIN_ENTRIES: Final = 1_000  # a limiter with fewer slots does not look for expired ones
OTHER: Final = "other"  # counts the slots of other limiters under rules that this limiter does not have

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


def slot_checks(
    plan: Plan,
    subjects: tuple[str, ...],
    costs: tuple[int, ...],
    entry: str,
    arrived_us: int = NOT_WAITING,
    figures: Sequence[tuple[int, int, int]] | None = None,
) -> tuple[Check, ...]:
    """Return the checks of a request that hold its slot if it is allowed.

    A shadow limit that was full allows the request, and holds nothing. The decision's `figures` tell; without them,
    all shadow limits are included.
    """
    held = []
    for at in plan.slots:
        cost = costs[at]
        if cost:
            rule, key_template, _, quota, _, enforced, _, _, _, _, _ = plan.limits[at]
            if enforced or figures is None or figures[at][0] == 0:
                values = (rule, key_template, subjects[at], quota, cost, enforced, REFUSAL, False, 0, entry, arrived_us)
                held.append(_new(Check, values))
    return tuple(held)


def is_held_by(held: Sequence[Check], were_held: Sequence[bool]) -> bool:
    """Return whether a slot is held, given the store's answer for each of its checks.

    Shadow limits count only if there are no others.
    """
    if all(were_held):
        return True
    enforced = [was_held for check, was_held in zip(held, were_held, strict=True) if check.enforced]
    return bool(enforced) and all(enforced)


def keys_of(facts: Mapping[str, str], plan: RulePlan) -> tuple[tuple[str, str], ...]:
    """Return the keys of the slots that a request needs: key template and subject of each limit that can refuse it."""
    subjects = plan.subjects(facts)
    return tuple([(plan.limits[at].key_template, subjects[at]) for at in plan.slots if plan.limits[at].enforced])


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
        """Record the renewal of a slot. Returns whether it was held."""
        slot = self._entries.get(held[0].slot)
        if slot is not None:
            if any(were_held):
                slot.renewed = monotonic()
            if not all(were_held):
                gone = {_key(check) for check, was_held in zip(held, were_held, strict=True) if not was_held}
                with self._lock:
                    if self._entries.get(slot.entry) is slot:  # otherwise it was released meanwhile
                        self._note_expired(slot, [check for check in slot.live if _key(check) in gone])
        return is_held_by(held, were_held)

    def note_gone(self, held: Sequence[Check], were_held: Sequence[bool], snapshot: Snapshot) -> None:
        """Record that a slot was released, or was found to have expired.

        The checks may come from an id, which a caller may have edited. So rules are counted by name only if the slot
        was taken here, or if they are in the current `snapshot`.
        """
        with self._lock:
            known = self._entries.pop(held[0].slot, None)
            if known is not None and known.held is held:  # not from an id
                for check, was_held in zip(held, were_held, strict=True):
                    if check not in known.expired:
                        (self._released if was_held else self._expired)[check.rule] += 1
                return
            live = {} if known is None else {_key(check): check.rule for check in known.live}
            for check, was_held in zip(held, were_held, strict=True):
                rule = live.pop(_key(check), None)
                if rule is not None:
                    (self._released if was_held else self._expired)[rule] += 1
                elif was_held:
                    rule = OTHER if snapshot.template(check.rule) is None else check.rule
                    self._released[rule] += 1
                    self._foreign[rule] += 1
            self._expired.update(live.values())  # an edited id leaves them to expire

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
                for check in slot.live:
                    acquired[check.rule] += 1
                    in_use[check.rule] += check.cost
                    longest[check.rule] = max(longest.get(check.rule, 0.0), now - slot.since)
            return SlotStatus(in_use, longest, dict(acquired), dict(self._released), dict(self._expired))

    def _forget(self, now: float) -> None:
        """Drop expired slots. Each limit that holds one has its own time to live."""
        for entry, slot in list(self._entries.items()):
            if slot.renewed + (slot.ttl or 0.0) <= now:
                age_us = (now - slot.renewed) * MICROSECONDS
                self._note_expired(slot, [check for check in slot.live if check.quota.window_us <= age_us])
                if not slot.live:
                    del self._entries[entry]

    def _note_expired(self, slot: SlotState, checks: Sequence[Check]) -> None:
        slot.expired += tuple(checks)
        self._expired.update([check.rule for check in checks])


def _key(check: Check) -> tuple[str, str]:
    return check.key_template, check.subject


class SlotState:
    """Everything that `Slot` and `AsyncSlot` share, which is all but the I/O."""

    __slots__ = (
        "_held",
        "_slots",
        "decision",
        "entry",
        "expired",
        "is_lost",
        "is_released",
        "renewed",
        "renews",
        "since",
    )

    _slots: Any  # of the limiter that took it
    _held: tuple[Check, ...] | None  # None: not read from the decision yet
    decision: Decision
    entry: str  # its random id in the store; empty: no concurrency rule applied
    is_lost: bool  # whether it was found to have expired
    is_released: bool  # whether there is nothing to release: a lost slot may still hold other limits
    expired: tuple[Check, ...]  # those of `held` that were found to have expired
    renews: bool  # in the background, until it is released
    since: float  # when it was taken, in monotonic seconds
    renewed: float  # when it was last renewed

    @property
    def held(self) -> tuple[Check, ...]:
        """The checks that hold it; empty if no concurrency rule applied."""
        if self._held is None:
            decision = self.decision
            plan = decision.plan
            figures = decision.figures if plan.shadows else None
            costs, entry = decision.costs, self.entry
            self._held = slot_checks(plan, decision.subjects, costs, entry, figures=figures) if entry else ()
        return self._held

    @property
    def is_held(self) -> bool:
        """Whether it is held, as far as this process knows."""
        return not (self.is_released or self.is_lost)

    @property
    def is_without_store(self) -> bool:
        """Whether it was granted because the store could not decide."""
        return self.decision.reading.reason in ("fail_open", "local_fallback")

    @property
    def live(self) -> list[Check]:
        """The checks that still hold it, as far as this process knows."""
        return [check for check in self.held if check not in self.expired]

    def _note_renewal(self, still_held: bool) -> bool:
        """Record the result of a renewal. Returns whether the slot is held."""
        if self.is_held and not still_held:
            self.is_lost = True
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
        self.is_for_slot = False  # whether the last refusal was for lack of a slot only

    @property
    def left(self) -> float | None:
        """Seconds until it gives up; None: it never does."""
        return None if self._until_us is None else max(0.0, (self._until_us - self._clock.now_us()) / MICROSECONDS)

    def seconds(self, decision: Decision) -> float | None:
        """Return the time until the next attempt; None to give up: waiting does not help, or there is not enough time.

        A slot may be released at any moment; the wait that a rate limit announces is exact.
        """
        rate_us, is_full, self.is_for_slot = 0, False, False
        for limit, outcome in decision.enforced:
            if outcome.wait_us == NEVER:
                return None
            if limit.quota.algorithm != CONCURRENCY:
                rate_us = max(rate_us, outcome.wait_us)
            elif outcome.wait_us:
                is_full = True
        self.is_for_slot = is_full and not rate_us
        if not is_full and not rate_us:
            return None  # another reason for the refusal: the store is down, or the client is blocked
        seconds, left = rate_us / MICROSECONDS, self.left
        if left is not None and (left <= 0 or seconds > left):
            return None
        if is_full:
            seconds, self._poll = max(seconds, self._poll), min(2 * self._poll, MAX_POLL_SECONDS)
        return seconds if left is None else min(seconds, left)
