"""Allowance: how much unproductive work a client may cause. Pure: knows neither frames nor clocks.

Work is counted in units of a microsecond or two, by its cause, so that the same bytes cost the same on every machine. A
client gets an allowance every second, and earns more with each call that it has the right to make. So clients that make
calls never run out, and clients that only cause work soon do.
"""

from __future__ import annotations

from typing import Final

PER_SECOND: Final = 80_000  # units that each client has: enough to begin as many calls at a time as it may have
MOST: Final = 4 * PER_SECOND  # units that a client can have earned
PER_SECOND_OF_STRANGERS: Final = 250_000  # units that all strangers have together: some of a core
LITTLE: Final = 2_000  # units in a second for which strangers do not wait before twice that is used up
LEAST: Final = 200  # … for which they never wait: a health check, on a new connection

FRAME: Final = 32  # units for a frame that asks for nothing: more than it costs, since no client needs many
REQUEST: Final = 20  # … for a request
FIELD: Final = 3  # … for reading a header field
ADMITTED: Final = 10 * FRAME  # units that a call earns, besides what it cost, if its caller may make it
_BYTES_OF_BLOCK: Final = 5  # that are read for one unit
_BYTES_DECOMPRESSED: Final = 512
_BYTES_SENT: Final = 512  # for which a client earns a unit: it has to make room for them


class Allowance:
    """The units that one client has left."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = PER_SECOND

    def spend(self, units: int) -> bool:
        """Take off `units`. Returns whether there were as many."""
        self.left -= units
        return self.left >= 0

    def earn(self, units: int) -> None:
        left = self.left + units
        self.left = left if left < MOST else MOST

    def refill(self) -> None:
        """Once a second."""
        self.left = max(self.left, PER_SECOND)


class CommonAllowance:
    """The units that all strangers have left together: a flood by many of them must leave time for other clients.

    When it is used up, the strangers who have used most of it wait for the next second.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = PER_SECOND_OF_STRANGERS

    def refill(self) -> None:
        """Once a second."""
        self.left = PER_SECOND_OF_STRANGERS

    def must_wait(self, one: Allowance) -> bool:
        """Whether one of them has to wait."""
        if self.left >= 0:
            return False
        return PER_SECOND - one.left > (LITTLE if self.left > -PER_SECOND_OF_STRANGERS else LEAST)


def units_of_block(size: int, fields: int) -> int:
    """Return what it costs to read a header block of `size` bytes."""
    return fields * FIELD + size // _BYTES_OF_BLOCK


def units_of_decompressed(size: int) -> int:
    """Return what it costs to decompress a message to `size` bytes."""
    return size // _BYTES_DECOMPRESSED


def units_of_sent(size: int) -> int:
    """Return what a client earns for taking `size` bytes of an answer."""
    return size // _BYTES_SENT
