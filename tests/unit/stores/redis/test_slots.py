"""Slots are those that Redis puts keys in."""

from __future__ import annotations

import pytest
from redis.crc import key_slot

from headgate.core.check import Check, Idempotency
from headgate.core.key import key, key_template, penalty_keys, shard_key_template
from headgate.core.plan import Plan
from headgate.core.quota import Quota
from headgate.stores.redis.denial_cache import DenialCache
from headgate.stores.redis.encoding import Encoder
from headgate.stores.redis.program import PlanProgram
from headgate.stores.redis.reservation_slots import KEYS, ending_of, slot_of_id, tag_of_slot
from headgate.stores.redis.reservations import keys_of
from headgate.stores.redis.topology import RESERVATIONS, SLOTS, slot_of, slot_of_key
from headgate.testing.contract import HOSTILE


def test_slots_are_redis_own() -> None:
    for subject in HOSTILE:
        name = key(key_template("user", "rule", "gcra"), subject)
        slot = key_slot(name.encode())
        assert slot_of(subject) == slot_of_key(name) == slot
        receipt = Idempotency(subject, "print")
        assert key_slot(Encoder("rl").receipt_key(receipt).encode()) == slot_of(receipt.name)
        assert {key_slot(one.encode()) for one in penalty_keys("user", subject)} == {slot}


@pytest.mark.parametrize("shard", [0, 3])
def test_programs_find_the_same_key_and_slot(shard: int) -> None:
    own = shard_key_template(key_template("user", "rule", "gcra"), shard)
    plan = Plan((Check("rule", own, "", Quota(1, 1, algorithm="gcra")),))
    program = PlanProgram(plan, Encoder("rl"), DenialCache(0, None), None, plan)
    for subject in HOSTILE:
        (name,) = program.keys((subject,))
        assert name == f"rl:{key(own, subject)}"
        assert slot_of_key(name) == key_slot(name.encode())


def test_a_penalty_is_in_the_slot_of_its_clients_limits() -> None:
    limits = key(key_template("user", "rule", "gcra"), "alice")
    assert {slot_of_key(one) for one in penalty_keys("user", "alice")} == {slot_of_key(limits)}


def test_the_register_of_reservations_and_records_that_name_no_slot_have_one_slot() -> None:
    assert {key_slot(name.encode()) for name in (*KEYS, *keys_of("reservations"))} == {RESERVATIONS}
    assert tag_of_slot(RESERVATIONS) == "reservations"


def test_records_can_be_in_any_slot() -> None:
    for slot in range(SLOTS):
        assert {key_slot(name.encode()) for name in keys_of(tag_of_slot(slot))} == {slot}


def test_the_id_of_a_reservation_tells_the_slot_of_its_record() -> None:
    assert all(slot_of_id("a-Random_id" + ending_of(slot)) == slot for slot in range(SLOTS))
    for other in ("", "a-Random_id", "id.", "id.xyz", "id.4000", "id.-1", "id.1.", "..", "id.99999999999999999999"):
        assert slot_of_id(other) == RESERVATIONS
