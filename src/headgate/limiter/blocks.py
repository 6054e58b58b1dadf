"""Cache of the blocks that the store reported: a blocked client needs no round trip until its block ends."""

from __future__ import annotations

from typing import Final

from headgate.core.check import Block, Client
from headgate.rules.recent import Recent

REMEMBERED: Final = 16_384  # blocks, at least; at most twice as many


class Blocks:
    """Blocks by client, on the limiter's clock. A block that is evicted early only costs a round trip.

    A block's time counts from when the store was called, not from when it answered. So a block never lasts longer here
    than in the store, and a client that returns after the announced wait is not blocked.
    """

    __slots__ = ("_known",)

    def __init__(self, size: int = REMEMBERED) -> None:
        self._known: Recent[Client, tuple[int, int, str]] = Recent(size)  # end, time left when reported, rule

    def get(self, client: Client, now_us: int) -> Block | None:
        known = self._known.get(client)
        if known is None:
            return None
        ends_us, length_us, rule = known
        left_us = ends_us - now_us
        if 0 < left_us <= length_us:
            return Block(left_us, rule)
        self._known.drop(client)  # it is over; or the clock went back, and the store has to decide
        return None

    def put(self, client: Client, block: Block, asked_us: int) -> None:
        self._known.put(client, (asked_us + block.left_us, block.left_us, block.rule))

    def clear(self) -> None:
        """Drop all blocks."""
        self._known.clear()

    def drop(self, client: Client) -> None:
        self._known.drop(client)
