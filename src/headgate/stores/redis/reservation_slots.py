"""The cluster slots that hold records of reservations, and what a store knows about them. No I/O.

On a cluster, a reservation's record is in the slot of the first limit that it charges, so that one script call writes
both. Its id ends with the number of that slot. Records without a number in their id are in the slot of
`{reservations}`, as all records on a single server are.

A register in the slot of `{reservations}` names the other slots that hold records: see reservation_slots.lua. A store
registers a slot before its first reservation there, and remembers that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import product
from threading import Lock
from typing import Any, Final

from headgate.core.fork import renew_in_children
from headgate.core.quota import MICROSECONDS
from headgate.stores.redis import script
from headgate.stores.redis.topology import RESERVATIONS, SLOTS, slot_of_tag

KNOWN_US: Final = 86_400 * MICROSECONDS  # how long a store relies on a registration, besides a reservation's ttl
SPARE_US: Final = 3_600 * MICROSECONDS  # how much longer the register keeps it
LOOK_US: Final = 30 * MICROSECONDS  # how often a registered slot is searched for expired reservations
SOON_US: Final = MICROSECONDS
MAX_SLOTS: Final = 256  # to search in one call

KEYS: Final = ("{reservations}:looks", "{reservations}:ends")

_HALF_BYTES: Final = "@ABCDEFGHIJKLMNO"  # all characters that share the upper four bits, so that tags reach all slots


def tag_of_slot(slot: int) -> str:
    """Return the hash tag of the records in a slot."""
    return _tags()[slot]


@cache
def _tags() -> dict[int, str]:
    endings = product(_HALF_BYTES[:4], _HALF_BYTES, _HALF_BYTES, _HALF_BYTES)
    tags = [f"reservations-{''.join(ending)}" for ending in endings]
    return {slot_of_tag(tag): tag for tag in tags} | {RESERVATIONS: "reservations"}


def ending_of(slot: int) -> str:
    """Return the end of the ids of reservations whose record is in a slot."""
    return "" if slot == RESERVATIONS else f".{slot:x}"


def slot_of_id(reservation_id: str) -> int:
    """Return the slot of a reservation's record. An id that names no slot belongs to the slot of `{reservations}`."""
    _, dot, number = reservation_id.rpartition(".")
    try:
        slot = int(number, 16) if dot else RESERVATIONS
    except ValueError:
        return RESERVATIONS
    return slot if 0 <= slot < SLOTS else RESERVATIONS


def encode_register(slot: int, ttl_us: int, now_us: int | None, prefix: str) -> script.Command:
    """Return the command that registers a slot for a reservation of this time to live, and for later ones."""
    return _command(prefix, now_us, "register", slot, min(ttl_us, LOOK_US), KNOWN_US + ttl_us + SPARE_US)


def encode_due(now_us: int | None, prefix: str) -> script.Command:
    """Return the command that hands out slots to search now. It hands out each of them once in `LOOK_US`."""
    return _command(prefix, now_us, "due", LOOK_US)


def _command(prefix: str, now_us: int | None, verb: str, *arguments: script.Argument) -> script.Command:
    keys = [f"{prefix}:{key}" for key in KEYS]
    return script.command_of(script.digest_of("reservation_slots"), keys, now_us, verb, *arguments)


class ReservationSlots:
    """What one store knows: registered slots, and when its own open reservations expire. By the store's own clock.

    Safe to share between threads.
    """

    def __init__(self) -> None:
        self._epoch = b""  # of the register: it changes if the register is lost
        self._registered: dict[int, int] = {}  # by slot: how long we rely on it
        self._open: dict[str, int] = {}  # by id: the time of expiry
        self._order: list[tuple[int, str]] = []  # a heap of the same; may still contain settled reservations
        self.reset_after_fork()
        renew_in_children(self)

    def reset_after_fork(self) -> None:
        """Create a lock that no thread of the parent holds."""
        self._lock = Lock()

    def is_registered(self, slot: int, now_us: int, ttl_us: int) -> bool:
        """Return whether other processes will find a reservation in this slot if this one dies."""
        return slot == RESERVATIONS or self._registered.get(slot, 0) >= now_us + ttl_us

    def note_registered(self, slot: int, now_us: int, ttl_us: int, reply: Sequence[Any]) -> None:
        """Record that a slot was registered by a call made at `now_us`."""
        self.read_due(reply)
        self._registered[slot] = now_us + KNOWN_US + ttl_us

    def read_due(self, reply: Sequence[Any]) -> list[int]:
        """Return the slots of a reply of the register. Forgets all registrations if the register was lost."""
        epoch, *slots = reply
        if epoch != self._epoch:
            self._registered.clear()
            self._epoch = epoch
        return [int(slot) for slot in slots]

    def forget_register(self) -> None:
        """Forget all registrations, because the register was deleted."""
        self._registered.clear()

    def watch(self, reservation_id: str, at_us: int) -> None:
        """Record that an open reservation expires at this time."""
        with self._lock:
            self._open[reservation_id] = at_us
            if len(self._order) > 2 * len(self._open) + 64:
                self._order = [(at, name) for name, at in self._open.items()]
                heapify(self._order)
            else:
                heappush(self._order, (at_us, reservation_id))

    def watch_slot(self, slot: int, at_us: int) -> None:
        """Have a slot searched at this time."""
        self.watch(ending_of(slot), at_us)

    def forget(self, reservation_id: str) -> None:
        """Record that a reservation is no longer open."""
        with self._lock:
            self._open.pop(reservation_id, None)

    def take_due(self, now_us: int) -> list[int]:
        """Return slots in which a known reservation has expired, and forget those reservations."""
        slots: dict[int, None] = {}
        with self._lock:
            while self._order and self._order[0][0] <= now_us and len(slots) < MAX_SLOTS:
                at_us, name = heappop(self._order)
                if self._open.get(name) == at_us:
                    del self._open[name]
                    slots[slot_of_id(name)] = None
        return list(slots)

    def next_us(self, now_us: int) -> int | None:
        """Return the time until the next known reservation expires; None if none is open."""
        with self._lock:
            while self._order and self._open.get(self._order[0][1]) != self._order[0][0]:
                heappop(self._order)
            return max(0, self._order[0][0] - now_us) if self._order else None
