"""Operations of a Redis store other than deciding requests, as steps. No I/O.

The stores for threads and for asyncio inherit it: `_run` takes the steps, and returns their result or an awaitable of
it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from headgate.core.check import Charge, Check, Client, Group
from headgate.core.cost import Cost
from headgate.core.reservation import ClaimedAdjustments, Record
from headgate.core.share import Standing
from headgate.stores.protocol import Counted, LedgerPage, Swap
from headgate.stores.redis import commands, reservations, script
from headgate.stores.redis.denial_cache import DenialCache
from headgate.stores.redis.encoding import Encoder
from headgate.stores.redis.reservation_steps import ReservationSteps
from headgate.stores.redis.slot_planner import SlotPlanner
from headgate.stores.redis.steps import SlotStep, Steps, step_of, take_all, take_one, unwrap
from headgate.stores.redis.topology import slot_of, slot_of_check, slot_of_client, slot_of_key, slot_of_tag

T = TypeVar("T")
U = TypeVar("U")


SCANNED: Final = 1_000  # keys that a server scans in one call


class ScanCursor(NamedTuple):
    """The position of a scan through a store's keys, one server after the other."""

    slot: int  # a slot of the current server
    at: bytes  # that server's own cursor


class RedisOperations:
    """Refunds, resets, reservations, heartbeats and pages. `slotted`: slots matter, as on a cluster."""

    def __init__(
        self,
        encoder: Encoder,
        planner: SlotPlanner,
        denials: DenialCache,
        now_us: Callable[[], int | None],
        *,
        slotted: bool,
    ) -> None:
        self.denials = denials
        self._planner = planner
        self._reservations = ReservationSteps(encoder, planner, now_us, denials.now_us, slotted=slotted)
        self._encoder = encoder
        self._prefix = encoder.prefix
        self._now_us = now_us
        self._slotted = slotted

    def _run(self, steps: Steps[Any]) -> Any:
        """Take steps, and return their result, or an awaitable of it."""
        raise NotImplementedError

    def _slot_elsewhere(self, slot: int) -> int | None:
        """Return the first later slot whose server serves no earlier slot; None if there is none."""
        raise NotImplementedError

    def refund(self, charges: Sequence[Charge]) -> Any:
        """Undo charges of earlier checks."""
        return self._run(self._refund(charges))

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> Any:
        """Delete the state of checks' keys, and the violations and blocks of clients."""
        return self._run(self._reset(checks, clients))

    def clear_some(self, cursor: ScanCursor | None = None) -> Any:
        """Delete some of the keys under the store's prefix, on all servers. Return the next cursor; None at the end."""
        return self._run(self._clear_some(cursor or ScanCursor(0, b"0")))

    def save_reservation(self, reservation_id: str, record: str, ttl_us: int) -> Any:
        """Store the record of a reservation."""
        return self._run(self._reservations.save(reservation_id, record, ttl_us))

    def new_reservation_id(self, charge: Group) -> str:
        """Return the id of a new reservation. On a cluster, it tells the slot of the record."""
        return self._reservations.new_id(charge)

    def reserve(self, reservation_id: str, pending: Record, ttl_us: int) -> Any:
        """Charge a reservation. The call that charges its first limit stores the record. A `ReservationAnswer`."""
        return self._run(self._reservations.reserve(reservation_id, pending, ttl_us))

    def renew(self, reservation_id: str, record: str, ttl_us: int) -> Any:
        """Replace the record of a reservation, and let it live for `ttl_us` from now."""
        return self._run(self._reservations.renew(reservation_id, record, ttl_us))

    def claim_reservation(self, reservation_id: str, cost: Cost) -> Any:
        """Claim a reservation, to settle it at `cost`: a `Claim`, or None."""
        return self._run(self._reservations.claim(reservation_id, cost))

    def claim_expired(self) -> Any:
        """Claim expired reservations, and claims that were not settled in time."""
        return self._run(self._reservations.claim_expired())

    def settle(self, settled: Sequence[ClaimedAdjustments]) -> Any:
        """Apply the changes of claimed reservations, each once. Returns how much of each refund was given back."""
        return self._run(self._settle_claims(settled))

    def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> Any:
        """Undo charges, and charge checks even if they do not fit. Returns how much of each refund was given back."""
        return self._run(self._adjust(refunds, surcharges))

    def release_slots(self, held: Sequence[Check]) -> Any:
        """Release the slot of each check. Return whether it was held."""
        return self._run(self._each_slot(commands.RELEASE, held))

    def renew_slots(self, held: Sequence[Check]) -> Any:
        """Extend the slot of each check to its time to live from now. Return whether it was held."""
        return self._run(self._each_slot(commands.RENEW, held))

    def record_heartbeat(self, name: str, node: str, ttl_us: int) -> Any:
        """Record the heartbeat of a node."""
        return self._run(self._record_heartbeat(name, node, ttl_us))

    def counts(self, checks: Sequence[Check]) -> Any:
        """Return the counts of checks' keys."""
        encode: Callable[[Sequence[Check]], script.Command] = lambda some: commands.encode_counts(some, self._prefix)  # noqa: E731
        steps: Steps[list[Counted | None]] = self._each(checks, slot_of_check, encode, commands.decode_counts)
        return self._run(steps)

    def read(self, names: Sequence[str]) -> Any:
        """Return pages of the ledger."""
        return self._run(self._read(names))

    def swap(self, swaps: Sequence[Swap]) -> Any:
        """Write each page that has not changed since it was read. Return whether it was written."""
        return self._run(self._swap(swaps))

    def _refund(self, charges: Sequence[Charge]) -> Steps[None]:
        undone_together: dict[tuple[int, int, str], list[Charge]] = {}  # by hash slot, reservation and concurrency slot
        for slot, some in self._by_slot(charges, lambda charge: slot_of_check(charge.check)):
            for charge in some:
                undone_together.setdefault((slot, charge.check.reservation, charge.check.slot), []).append(charge)
        steps = []
        for (slot, *_), some in undone_together.items():
            checks = tuple([charge.check for charge in some])
            undone = self._encoder.undo(checks, [(charge.at_us, charge.reset_us) for charge in some])
            steps.append(step_of(slot, undone))
        try:
            yield from take_all(steps)
        finally:  # a call that failed may have been executed
            self.denials.drop([charge.check for charge in charges])

    def _reset(self, checks: Sequence[Check], clients: Sequence[Client]) -> Steps[None]:
        steps = [
            SlotStep(slot, command=self._encoder.reset(some, () if self._slotted else clients))
            for slot, some in self._by_slot(checks, slot_of_check)
        ]
        if clients and (self._slotted or not steps):
            by_slot = self._by_slot(clients, slot_of_client)
            steps += (SlotStep(slot, command=self._encoder.reset((), some)) for slot, some in by_slot)
        try:
            yield from take_all(steps)
        finally:
            self.denials.drop(checks)

    def _clear_some(self, cursor: ScanCursor) -> Steps[ScanCursor | None]:
        scan = ("SCAN", cursor.at, "MATCH", f"{self._prefix}:*", "COUNT", SCANNED)  # a prefix has no wildcards
        at, keys = yield from take_one(SlotStep(cursor.slot, command=scan))
        try:
            by_slot = self._by_slot(keys, _slot_of_found)
            yield from take_all(SlotStep(slot, command=("UNLINK", *some)) for slot, some in by_slot)
        finally:
            self.denials.clear()
            self._reservations.slots.forget_register()
        if at != b"0":
            return ScanCursor(cursor.slot, at)
        following = self._slot_elsewhere(cursor.slot) if self._slotted else None
        return None if following is None else ScanCursor(following, b"0")

    def _adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check]) -> Steps[list[int]]:
        now_us = self._now_us()
        changes: list[tuple[int, Charge | Check]] = list(enumerate((*refunds, *surcharges)))
        steps, indexes = [], []
        for slot, some in self._by_slot(changes, lambda change: slot_of_check(_check_of(change[1]))):
            back = [one for _, one in some if isinstance(one, Charge)]
            more = [one for _, one in some if isinstance(one, Check)]
            steps.append(SlotStep(slot, command=reservations.encode_adjust(back, more, now_us, self._prefix)))
            indexes.append([index for index, one in some if isinstance(one, Charge)])
        refunded = [0] * len(refunds)
        try:
            for replied, positions in zip((yield steps) if steps else (), indexes, strict=True):
                for index, units in zip(positions, unwrap(replied), strict=True):
                    refunded[index] = units
        finally:
            self.denials.drop([*(charge.check for charge in refunds), *surcharges])
        return refunded

    def _settle_claims(self, settled: Sequence[ClaimedAdjustments]) -> Steps[list[Sequence[int]]]:
        try:
            return (yield from self._reservations.settle(settled))
        finally:
            for _, (refunds, surcharges) in settled:
                self.denials.drop([*(charge.check for charge in refunds), *surcharges])

    def _each_slot(self, verb: str, held: Sequence[Check]) -> Steps[list[bool]]:
        now_us = self._now_us()
        return self._each(
            held,
            slot_of_check,
            lambda some: commands.encode_slots(verb, some, now_us, self._prefix),
            lambda _, reply: commands.decode_slots(reply),
        )

    def _record_heartbeat(self, name: str, node: str, ttl_us: int) -> Steps[Standing]:
        command = commands.encode_heartbeat(name, node, ttl_us, self._now_us(), self._prefix)
        (answer,) = yield [SlotStep(slot_of(name) if self._slotted else 0, command=command)]
        return commands.decode_heartbeat(unwrap(answer))

    def _read(self, names: Sequence[str]) -> Steps[list[LedgerPage]]:
        now_us = self._now_us()
        return self._each(
            names,
            slot_of_key,
            lambda some: commands.encode_read(some, now_us, self._prefix),
            lambda _, reply: commands.decode_read(reply),
        )

    def _swap(self, swaps: Sequence[Swap]) -> Steps[list[bool]]:
        now_us = self._now_us()
        return self._each(
            swaps,
            lambda swap: slot_of_key(swap.name),
            lambda some: commands.encode_swap(some, now_us, self._prefix),
            lambda _, reply: commands.decode_swap(reply),
        )

    def _each(
        self,
        things: Sequence[T],
        slot_of_thing: Callable[[T], int],
        encode: Callable[[Sequence[T]], script.Command],
        decode: Callable[[Sequence[T], Any], list[U]],
    ) -> Steps[list[U]]:
        """Return an answer for each item, in order. Raises the first `StoreError`."""
        indexes = range(len(things))
        by_slot = list(self._by_slot(indexes, lambda index: slot_of_thing(things[index])))
        some = [[things[index] for index in those] for _, those in by_slot]
        steps = [SlotStep(slot, command=encode(those)) for (slot, _), those in zip(by_slot, some, strict=True)]
        replies = (yield steps) if steps else []
        found: dict[int, U] = {}
        for (_, those), own, reply in zip(by_slot, some, replies, strict=True):
            found.update(zip(those, decode(own, unwrap(reply)), strict=True))
        return [found[index] for index in indexes]

    def _by_slot(self, things: Sequence[T], slot_of_thing: Callable[[T], int]) -> Iterator[tuple[int, Sequence[T]]]:
        """Yield items in order, those of one slot together."""
        if not self._slotted:
            if things:
                yield 0, things
            return
        by_slot: dict[int, list[T]] = {}
        for thing in things:
            by_slot.setdefault(slot_of_thing(thing), []).append(thing)
        yield from by_slot.items()


def _slot_of_found(key: bytes) -> int:
    """Return the slot of a key from a server. The whole key counts if it has no tag, as another program's may."""
    text = key.decode("utf-8", "surrogateescape")
    return slot_of_key(text) if re.search(r"\{[^}]+\}", text) else slot_of_tag(text)


def _check_of(change: Charge | Check) -> Check:
    return change.check if isinstance(change, Charge) else change
