"""What a cluster says of its slots, read."""

from __future__ import annotations

import pytest

from headgate.stores.redis.finders import read_slots
from headgate.stores.redis.topology import SLOTS

ONE, TWO = [b"192.0.2.1", 7000, b"id-1"], [b"", 7001, b"id-2"]


def test_slots_are_told_in_order_whatever_the_order_of_the_answer() -> None:
    answer = [[8_192, SLOTS - 1, TWO, ONE], [0, 8_191, ONE, TWO]]
    assert read_slots(answer, "here") == [(8_192, ("192.0.2.1", 7000)), (8_192, ("here", 7001))]


def test_somebody_is_asked_for_slots_that_nobody_has() -> None:
    owners = read_slots([[100, 199, TWO], [300, 300, ONE]], "here")
    two, one = ("here", 7001), ("192.0.2.1", 7000)
    assert owners == [(100, two), (100, two), (100, two), (1, one), (SLOTS - 301, two)]
    assert sum(count for count, _ in owners) == SLOTS


def test_a_cluster_without_slots_is_none() -> None:
    with pytest.raises(ValueError, match="it reported no slots"):
        read_slots([], "here")
