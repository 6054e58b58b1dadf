"""The local memory of blocks."""

from __future__ import annotations

from headgate.core.check import Block, Client
from headgate.limiter.blocks import Blocks

ALICE = Client("user", "alice")


def test_a_block_is_remembered_to_its_end_counted_from_when_it_was_asked_for() -> None:
    blocks = Blocks()
    assert blocks.get(ALICE, 0) is None
    blocks.put(ALICE, Block(100, "r"), 1_000)
    assert blocks.get(ALICE, 1_000) == Block(100, "r")
    assert blocks.get(ALICE, 1_099) == Block(1, "r")
    assert blocks.get(ALICE, 1_100) is None
    assert blocks.get(ALICE, 1_000) is None  # once over, it is forgotten
    assert blocks.get(Client("ip", "alice"), 1_000) is None


def test_a_clock_that_goes_back_leaves_it_to_the_store() -> None:
    blocks = Blocks()
    blocks.put(ALICE, Block(100, "r"), 1_000)
    assert blocks.get(ALICE, 999) is None
    assert blocks.get(ALICE, 1_000) is None


def test_it_is_bounded() -> None:
    blocks = Blocks(size=10)
    for number in range(1_000):
        blocks.put(Client("user", str(number)), Block(100, "r"), 0)
    known = sum(blocks.get(Client("user", str(number)), 1) is not None for number in range(1_000))
    assert 10 <= known <= 20


def test_drop() -> None:
    blocks = Blocks()
    blocks.put(ALICE, Block(100, "r"), 0)
    blocks.drop(ALICE)
    blocks.drop(ALICE)
    assert blocks.get(ALICE, 1) is None
