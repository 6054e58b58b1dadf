"""Slot ids: what they say comes back, and what a stranger makes up is refused."""

from __future__ import annotations

import json
import os
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import InvalidCheck, Quota
from headgate.core.check import Check
from headgate.core.key import key_template
from headgate.core.quota import MAX_INT
from headgate.core.slot import MAX_HELD, decode_slot, encode_slot, new_slot
from tests.forking import in_child

SLOT = "abcdefghijklmn_-"
SPACE = key_template("user", "r", "concurrency")


def encoded(data: Any) -> str:
    return "s1." + urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")


@given(st.text(), st.text(), st.text(min_size=1), st.text(), st.integers(1, MAX_INT), st.integers(1, 31_622_400_000))
def test_an_id_says_what_is_held(dimension: str, rule: str, limiter: str, subject: str, cost: int, ttl_ms: int) -> None:
    quota = Quota(cost, ttl_ms / 1_000, algorithm="concurrency")
    slot = new_slot()
    held = tuple(
        Check(rule, where, subject, quota, cost, enforced, slot=slot)
        for where, enforced in (
            (key_template(dimension, rule, "concurrency"), True),
            (key_template(dimension, rule, "concurrency", limiter=limiter), False),
        )
    )
    assert decode_slot(encode_slot(held)) == held


def test_slots_differ() -> None:
    assert len({new_slot() for _ in range(1_000)}) == 1_000


def test_a_forked_child_has_slots_of_its_own() -> None:
    new_slot()  # ids are made many at a time
    reader, writer = os.pipe()
    assert in_child(lambda: os.write(writer, new_slot().encode())) == 0
    child = os.read(reader, 100).decode()
    os.close(reader)
    os.close(writer)
    assert child not in {new_slot() for _ in range(1_000)}


ROW = ["r", SPACE, "alice", 1, 60_000_000]
BAD = [
    None,
    [SLOT, [[*ROW, 0]]],
    [SLOT, [[*ROW, False, False]]],
    5,
    "",
    "s1.",
    "s2." + encoded([SLOT, [ROW]])[3:],
    "s1.!!!!",
    "s1." + "A" * 70_000,
    "s1.é",
    "s1." + urlsafe_b64encode(b"\xff\xfe").decode(),
    encoded([]),
    encoded({}),
    encoded([SLOT, []]),
    encoded([SLOT, [ROW] * (MAX_HELD + 1)]),
    encoded([SLOT, [ROW], "more"]),
    encoded(["short", [ROW]]),
    encoded([SLOT + ":1", [ROW]]),
    encoded([7, [ROW]]),
    encoded([SLOT, [[*ROW, 1]]]),
    encoded([SLOT, [ROW[:-1]]]),
    encoded([SLOT, [[7, *ROW[1:]]]]),
    encoded([SLOT, [["r", SPACE.replace("concurrency", "gcra"), *ROW[2:]]]]),
    encoded([SLOT, [["r", "reservations}:open", *ROW[2:]]]]),
    encoded([SLOT, [["r", SPACE + ":x", *ROW[2:]]]]),
    encoded([SLOT, [["r", "x:" + SPACE, *ROW[2:]]]]),
    encoded([SLOT, [["r", SPACE.replace("*", "bob"), *ROW[2:]]]]),
    encoded([SLOT, [["r", SPACE + "\n", *ROW[2:]]]]),
    encoded([SLOT, [["r", SPACE, 7, *ROW[3:]]]]),
    *[encoded([SLOT, [["r", SPACE, "alice", cost, 60_000_000]]]) for cost in (0, -1, 2**53, 1.5, "1", True, None)],
    *[encoded([SLOT, [["r", SPACE, "alice", 1, ttl]]]) for ttl in (0, 999, 10**18, 1.5, "1", True, None)],
    encoded([SLOT, "x" * 5]),
    "s1." + urlsafe_b64encode(b"[" * 40_000).decode(),
]


@pytest.mark.parametrize("slot_id", BAD, ids=lambda value: str(value)[:20])
def test_what_is_no_id_is_refused(slot_id: Any) -> None:
    with pytest.raises(InvalidCheck, match="must be the id of a slot"):
        decode_slot(slot_id)


@given(st.text())
def test_no_text_does_worse_than_being_refused(text: str) -> None:
    with pytest.raises(InvalidCheck):
        decode_slot(text)
    with pytest.raises(InvalidCheck):
        decode_slot("s1." + text)


def test_the_row_of_these_tests_is_a_good_one() -> None:
    (check,) = decode_slot(encoded([SLOT, [ROW]]))
    assert (check.slot, check.key_template, check.subject, check.cost) == (SLOT, SPACE, "alice", 1)
