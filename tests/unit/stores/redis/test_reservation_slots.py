"""What a store knows of slots with reservations, and how it searches them. No server is needed."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.core.reservation import Claim, ExpiredClaims, Status
from headgate.errors import StoreError, StoreUnavailable
from headgate.stores.redis.encoding import Encoder
from headgate.stores.redis.options import RedisOptions
from headgate.stores.redis.reservation_slots import KNOWN_US, MAX_SLOTS, SOON_US, ReservationSlots, ending_of
from headgate.stores.redis.reservation_steps import ReservationSteps
from headgate.stores.redis.slot_planner import SlotPlanner
from headgate.stores.redis.topology import RESERVATIONS

GONE = StoreUnavailable("the server is gone")


def test_a_registration_is_relied_on_for_a_day() -> None:
    slots = ReservationSlots()
    assert slots.is_registered(RESERVATIONS, 0, 5)  # it is always searched
    assert not slots.is_registered(7, 0, 5)
    slots.note_registered(7, 0, 5, [b"1"])
    assert slots.is_registered(7, KNOWN_US, 5)
    assert not slots.is_registered(7, KNOWN_US + 1, 5)
    assert not slots.is_registered(7, KNOWN_US, 6)  # the reservation might outlive it
    assert not slots.is_registered(8, 0, 5)


@pytest.mark.parametrize("epoch", [b"2", b""])
def test_if_the_register_is_lost_all_registrations_are_forgotten(epoch: bytes) -> None:
    slots = ReservationSlots()
    slots.note_registered(7, 0, 5, [b"1"])
    assert slots.read_due([b"1", b"3", b"4"]) == [3, 4]
    assert slots.is_registered(7, 0, 5)
    assert slots.read_due([epoch]) == []
    assert not slots.is_registered(7, 0, 5)


def test_slots_of_known_reservations_are_due_when_these_expire() -> None:
    slots = ReservationSlots()
    assert slots.next_us(0) is None
    for name, at_us in (("a.1", 30), ("b.1", 10), ("c.2", 10), ("d.3", 20), ("e.4", 5)):
        slots.watch(name, at_us)
    slots.forget("e.4")
    slots.watch("d.3", 50)  # it was renewed
    assert slots.next_us(4) == 6
    assert slots.take_due(9) == []
    assert sorted(slots.take_due(20)) == [1, 2]
    assert slots.next_us(20) == 10
    assert slots.take_due(30) == [1]
    assert slots.take_due(50) == [3]
    assert slots.next_us(50) is None


def test_a_search_has_a_bounded_number_of_slots() -> None:
    slots = ReservationSlots()
    for slot in range(MAX_SLOTS + 10):
        slots.watch_slot(slot, 1)
    assert (len(slots.take_due(1)), slots.next_us(1), len(slots.take_due(1))) == (MAX_SLOTS, 0, 10)


def test_settled_reservations_take_no_room() -> None:
    slots = ReservationSlots()
    for number in range(10_000):
        slots.watch(f"{number}.1", 10**9 + number)
        slots.forget(f"{number}.1")
    assert len(slots._order) < 100


@pytest.fixture
def steps() -> ReservationSteps:
    encoder, now = Encoder("rl"), lambda: 0
    planner = SlotPlanner(RedisOptions(), encoder, now, slotted=True)
    return ReservationSteps(encoder, planner, now, now, slotted=True)


def expired(name: str) -> list[bytes]:
    """What a slot hands out: the id, the record, and the claim."""
    return [name.encode(), b"record of " + name.encode(), b"3 7 0"]


def claims(*names: str) -> list[Claim]:
    return [Claim(f"record of {name}", Status.EXPIRING, name, 0, "3 7 0") for name in names]


def search(steps: ReservationSteps, *answers: list[Any]) -> ExpiredClaims:
    """Take the steps of a search with these answers."""
    plan = steps.claim_expired()
    asked = next(plan)
    try:
        for some in answers:
            assert len(asked) == len(some)
            asked = plan.send(some)
    except StopIteration as end:
        found: ExpiredClaims = end.value
        return found
    raise AssertionError(f"asked for more: {asked}")


def test_what_several_slots_hand_out_is_gathered(steps: ReservationSteps) -> None:
    steps.slots.watch("a.1", 0)
    steps.slots.watch("b.2", 90)
    replies = [[b"1", b"1", b"5"], [70, *expired("home")], [-1, *expired("own")]]
    found = search(steps, replies, [[20 * SOON_US, *expired("orphan.5")]])
    assert found == (claims("home", "own", "orphan.5"), 70)
    assert search(steps, [[b"1"], [-1]]) == ([], 90)


def test_a_slot_whose_server_is_away_is_searched_again(steps: ReservationSteps) -> None:
    steps.slots.watch("a.1", 0)
    steps.slots.watch("b.2", 0)
    assert search(steps, [[b"1"], [-1], GONE, [-1, *expired("b")]]) == (claims("b"), SOON_US)
    assert steps.slots.take_due(SOON_US) == [1]


def test_what_was_handed_out_is_not_lost_if_the_first_slot_is_away(steps: ReservationSteps) -> None:
    steps.slots.watch("a.1", 0)
    assert search(steps, [GONE, GONE, [-1, *expired("b")]]) == (claims("b"), SOON_US)
    with pytest.raises(StoreError, match="gone"):
        search(steps, [GONE, GONE])


def test_a_slot_whose_next_reservation_expires_soon_is_watched(steps: ReservationSteps) -> None:
    """The clocks of this process and of a server differ: it may have been searched a little early."""
    steps.slots.watch("a.1", 0)
    assert search(steps, [[b"1"], [-1], [3_000]]) == ([], 3_000)
    assert ending_of(1) == ".1"
    assert steps.slots.take_due(3_000) == [1]
