"""How a Redis store keeps reservations, as steps: charge and record, renew, claim and settle. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headgate.core.check import Answer, Check, Group, Result
from headgate.core.cost import Cost
from headgate.core.reservation import (
    PENDING_US,
    Claim,
    ClaimedAdjustments,
    ExpiredClaims,
    Record,
    ReservationAnswer,
    new_id,
)
from headgate.errors import StoreError
from headgate.stores.redis import reservation_slots, reservations, script
from headgate.stores.redis.encoding import Encoder
from headgate.stores.redis.reservation_slots import SOON_US, ReservationSlots, ending_of, slot_of_id, tag_of_slot
from headgate.stores.redis.slot_parts import SlotPart, is_refused, read_answer
from headgate.stores.redis.slot_planner import SlotPlanner
from headgate.stores.redis.steps import SlotStep, Steps, take_one, unwrap
from headgate.stores.redis.topology import RESERVATIONS, slot_of_check


class SettlementPart(NamedTuple):
    """The changes of one settlement in one slot."""

    number: int  # of the settlement
    slot: int
    section: reservations.Section
    indexes: Sequence[int]  # of its refunds, among those of the settlement
    is_last: bool  # in the slot of the record


class ReservationSteps:
    """The steps of one store. `own_us` is the time by this process, to know when reservations expire."""

    def __init__(
        self,
        encoder: Encoder,
        planner: SlotPlanner,
        now_us: Callable[[], int | None],
        own_us: Callable[[], int],
        *,
        slotted: bool,
    ) -> None:
        self.slots = ReservationSlots()
        self._encoder = encoder
        self._prefix = encoder.prefix
        self._planner = planner
        self._now_us = now_us
        self._own_us = own_us
        self._slotted = slotted

    def new_id(self, charge: Group) -> str:
        """Return the id of a new reservation. On a cluster, it ends with the slot of the first part that is charged."""
        return new_id() + ending_of(self._planner.parts(charge)[0].slot) if self._slotted else new_id()

    def reserve(self, name: str, pending: Record, ttl_us: int) -> Steps[ReservationAnswer]:
        """Charge a reservation. The call that charges its first part stores the record.

        A request in one slot is charged and recorded in one step. Of any other, the pending record is stored, and each
        part keeps a receipt, until the caller renews the record.
        """
        slot = slot_of_id(name)
        yield from self._register(slot, ttl_us)
        parts = self._planner.parts(pending.charge)
        is_whole, is_stored = len(parts) == 1, False
        lives_us = ttl_us if is_whole else PENDING_US

        def charge_first(part: SlotPart) -> Steps[Answer]:
            nonlocal is_stored
            now_us, (template, request) = self._now_us(), self._encoder.group(part.group)
            hold = reservations.encode_hold(name, pending.encode(), lives_us, now_us, self._prefix, self._tag(slot))
            check = template.command((request,), now_us)
            command = reservations.encode_reserve(check, part.group, hold, is_whole=is_whole)
            (reply,) = yield [SlotStep(part.slot, command=command)]
            if isinstance(reply, StoreError):
                return reply
            answer = read_answer(part.group, template, (reply[0], reply[1:]))
            is_stored = isinstance(answer, Result) and not (answer.block or is_refused(part, answer))
            return answer

        if is_whole:
            answer = yield from charge_first(parts[0])
        else:
            answer = yield from self._planner.reserve(pending.group, charge_first)
        if isinstance(answer, StoreError):
            raise answer
        if is_stored:
            self._watch(name, lives_us)
        return ReservationAnswer(answer, is_stored and not is_whole)

    def save(self, name: str, record: str, ttl_us: int) -> Steps[None]:
        slot, now_us = slot_of_id(name), self._now_us()
        yield from self._register(slot, ttl_us)
        command = reservations.encode_hold(name, record, ttl_us, now_us, self._prefix, self._tag(slot))
        yield from take_one(self._step(slot, command))
        self._watch(name, ttl_us)

    def renew(self, name: str, record: str, ttl_us: int) -> Steps[bool]:
        slot, now_us = slot_of_id(name), self._now_us()
        command = reservations.encode_renew(name, record, ttl_us, now_us, self._prefix, self._tag(slot))
        (renewed,) = yield from take_one(self._step(slot, command))
        if renewed:
            self._watch(name, ttl_us)
        return bool(renewed)

    def claim(self, name: str, cost: Cost) -> Steps[Claim | None]:
        slot = slot_of_id(name)
        command = reservations.encode_claim(name, cost, self._now_us(), self._prefix, self._tag(slot))
        self._watch(name, PENDING_US)
        return reservations.decode_claim(name, (yield from take_one(self._step(slot, command))))

    def claim_expired(self) -> Steps[ExpiredClaims]:
        """Claim expired reservations, wherever the search finds them."""
        expired = yield from self._search()
        for claim in expired.claims:
            self._watch(claim.reservation_id, PENDING_US)
        return expired

    def settle(self, settled: Sequence[ClaimedAdjustments]) -> Steps[list[Sequence[int]]]:
        """Apply the changes of claimed reservations, each once. Raises the first `StoreError` after all are done.

        The changes in the slot of the record come last, and take out the reservation in the same step: until then,
        the others can be repeated, because they leave receipts.
        """
        fault: StoreError | None = None
        failed: set[int] = set()
        refunded = [[0] * len(adjustments.refunds) for _, adjustments in settled]
        parts = [part for index, one in enumerate(settled) for part in self._settlement_parts(index, one)]
        for is_last in (False, True):
            by_slot: dict[int, list[SettlementPart]] = {}
            for part in parts:
                if part.is_last == is_last and part.number not in failed:
                    by_slot.setdefault(part.slot, []).append(part)
            now_us = self._now_us()
            steps = [
                self._step(slot, reservations.encode_sections([one.section for one in some], now_us, self._prefix))
                for slot, some in by_slot.items()
            ]
            for some, answer in zip(by_slot.values(), (yield steps) if steps else (), strict=True):
                if isinstance(answer, StoreError):
                    fault = fault or answer
                    failed.update(part.number for part in some)
                    continue
                units = iter(answer)
                for part in some:
                    for at in part.indexes:
                        refunded[part.number][at] = next(units)
        for index, (claim, _) in enumerate(settled):
            if index not in failed:
                self.slots.forget(claim.reservation_id)
        if fault is not None:
            raise fault
        return list(refunded)

    def _settlement_parts(self, index: int, settled: ClaimedAdjustments) -> list[SettlementPart]:
        """Divide the changes of a settlement by slots."""
        claim, (refunds, surcharges) = settled
        home = slot_of_id(claim.reservation_id) if self._slotted else RESERVATIONS
        by_slot: dict[int, tuple[list[int], list[Check]]] = {home: ([], [])}
        for at, charge in enumerate(refunds):
            by_slot.setdefault(slot_of_check(charge.check) if self._slotted else home, ([], []))[0].append(at)
        for check in surcharges:
            by_slot.setdefault(slot_of_check(check) if self._slotted else home, ([], []))[1].append(check)
        parts = []
        for slot, (indexes, more) in by_slot.items():
            back = [refunds[at] for at in indexes]
            if slot == home:
                section = reservations.guarded_by_claim(claim, self._tag(home), back, more)
            else:
                section = reservations.guarded_by_receipt(claim, back, more)
            parts.append(SettlementPart(index, slot, section, indexes, slot == home))
        return parts

    def _search(self) -> Steps[ExpiredClaims]:
        """Search for expired reservations: in the slot `{reservations}`, and on a cluster, in two kinds of slots.

        These are slots in which this process knows of an expired reservation, and slots that the register hands out,
        because other processes may have left reservations there.
        """
        now_us, own_us = self._now_us(), self._own_us()

        def search(slot: int) -> SlotStep:
            return self._step(slot, reservations.encode_claim_expired(now_us, self._prefix, self._tag(slot)))

        if not self._slotted:
            return reservations.decode_claim_expired((yield from take_one(search(RESERVATIONS))))
        slots = [RESERVATIONS, *self.slots.take_due(own_us)]
        due = SlotStep(RESERVATIONS, command=reservation_slots.encode_due(now_us, self._prefix))
        handed_out, *answers = yield [due, *map(search, slots)]
        if not isinstance(handed_out, StoreError):
            others = [slot for slot in self.slots.read_due(handed_out) if slot not in slots]
            if others:
                answers += yield list(map(search, others))
                slots += others
        return self._gather(slots, answers, own_us)

    def _gather(self, slots: Sequence[int], answers: Sequence[Any], own_us: int) -> ExpiredClaims:
        """Gather what several slots handed out. The slot of `{reservations}` is the first.

        Any other slot that could not be searched, or in which a reservation expires soon, is searched again soon.
        Raises the fault of the first slot if the others handed out nothing.
        """
        found: list[Claim] = []
        nexts: list[int] = []
        for slot, answer in zip(slots, answers, strict=True):
            again_us: int | None = SOON_US
            if not isinstance(answer, StoreError):
                some, again_us = reservations.decode_claim_expired(answer)
                found += some
            if slot == RESERVATIONS:
                nexts += [] if again_us is None else [again_us]
            elif again_us is not None and again_us <= SOON_US:
                self.slots.watch_slot(slot, own_us + again_us)
        if not found:
            unwrap(answers[0])
        known_us = self.slots.next_us(own_us)
        nexts += [] if known_us is None else [known_us]
        return ExpiredClaims(found, min(nexts, default=None))

    def _register(self, slot: int, ttl_us: int) -> Steps[None]:
        """Register a slot, unless this process has done so lately."""
        own_us = self._own_us()
        if self._slotted and not self.slots.is_registered(slot, own_us, ttl_us):
            command = reservation_slots.encode_register(slot, ttl_us, self._now_us(), self._prefix)
            reply = yield from take_one(SlotStep(RESERVATIONS, command=command))
            self.slots.note_registered(slot, own_us, ttl_us, reply)

    def _step(self, slot: int, command: script.Command) -> SlotStep:
        return SlotStep(slot if self._slotted else 0, command=command)

    def _tag(self, slot: int) -> str:
        return tag_of_slot(slot if self._slotted else RESERVATIONS)

    def _watch(self, name: str, ttl_us: int) -> None:
        """Remember when a reservation expires. Every search covers the slot of `{reservations}`, so not for that."""
        if self._slotted and slot_of_id(name) != RESERVATIONS:
            self.slots.watch(name, self._own_us() + ttl_us)
