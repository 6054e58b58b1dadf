"""The penalty record of a client: its violations and its block. Twin of redis/penalty.lua.

Times are in whole microseconds. If the clock went back, times in the future are moved to now: a block never lasts
longer than its own length from now, and a violation counts for no longer than the detection window.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

from headgate.core.check import MAX_VIOLATIONS, Block, Terms
from headgate.core.quota import Quota

SCALE = Quota(1_000, 1)  # the scale of `figures`


class PenaltyRecord:
    """One client's violations and block. It changes in place: callers hold the store's lock."""

    __slots__ = ("ends", "length", "rule", "terms", "violations")

    def __init__(self, terms: Terms) -> None:
        self.terms = terms  # the most recent ones
        self.violations = array("q")  # times, oldest first
        self.ends = 0  # end of the block; in the past if there is none
        self.length = 0
        self.rule = ""

    def block(self, now: int, *, peek: bool) -> Block | None:
        """Return the client's block, if it is active. A peek changes nothing."""
        left = self.ends - now
        if left <= 0:
            return None
        if left > self.length:
            left = self.length
            if not peek:
                self.ends = now + left
        return Block(left, self.rule)

    def violate(self, now: int, terms: Terms, window: int, rule: str) -> Block | None:
        """Record a refusal by `rule` with this window. Return the block that it starts, if any."""
        self.terms = terms
        times = self.violations
        future = bisect_right(times, now)
        times[future:] = array("q", [now] * (len(times) - future))
        del times[: bisect_right(times, now - terms.detection_us)]
        times.append(now)
        del times[:-MAX_VIOLATIONS]
        length = terms.block_us(len(times), window)
        if length == 0:
            return None
        self.ends, self.length, self.rule = now + length, length, rule
        return Block(length, rule)


def figures(record: PenaltyRecord | None, now: int, quota: Quota) -> tuple[int, int]:  # noqa: ARG001 - that of an algorithm
    """Return figures for eviction: how far the client is from a block, in 1/1,000, and the time until expiry."""
    if record is None:
        return SCALE.limit, 0
    block = record.block(now, peek=True)
    times, terms = record.violations, record.terms
    moot = min(times[-1] + terms.detection_us - now, terms.detection_us) if times else 0
    if block is not None:
        return 0, max(block.left_us, moot)
    if moot <= 0:
        return SCALE.limit, 0
    return max(1, SCALE.limit - SCALE.limit * len(times) // terms.threshold), moot
