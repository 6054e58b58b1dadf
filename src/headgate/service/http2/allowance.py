"""Allowance: how much unproductive work a client may cause. Pure: knows neither frames nor clocks.

Work is counted in units of a microsecond or two, by its cause, so that the same bytes cost the same on every machine. A
client gets an allowance every second, and earns more with each call that it has the right to make. So clients that make
calls never run out, and clients that only cause work soon do.
"""

from __future__ import annotations

from typing import Final

PER_SECOND: Final = 80_000  # units of each client: enough to begin all the calls that it may have at a time
MAX_SAVED: Final = 4 * PER_SECOND  # units that a client can save up
PER_SECOND_OF_STRANGERS: Final = 250_000  # units in a second of all strangers together: a part of a core
LITTLE: Final = 2_000  # … that a stranger may use without waiting, until twice the common units are used up
LEAST: Final = 200  # … that never make a stranger wait: a health check on a new connection

FRAME: Final = 32  # units for a frame without a request: more than it costs, since no client needs many
REQUEST: Final = 20  # … for a request
FIELD: Final = 3  # … for reading a header field
ADMITTED: Final = 10 * FRAME  # units that an authorized call earns, besides its cost
_BYTES_OF_BLOCK: Final = 5  # read for one unit
_BYTES_DECOMPRESSED: Final = 512
_BYTES_SENT: Final = 512  # for which a client earns a unit, as it had to open its window for them


class Allowance:
    """The units that one client has left."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = PER_SECOND

    def spend(self, units: int) -> bool:
        """Spend `units`. Returns whether there were enough."""
        self.left -= units
        return self.left >= 0

    def earn(self, units: int) -> None:
        left = self.left + units
        self.left = left if left < MAX_SAVED else MAX_SAVED

    def refill(self) -> None:
        """Once a second."""
        self.left = max(self.left, PER_SECOND)


class CommonAllowance:
    """The units that all strangers together have left, so that a flood from many of them leaves time for other clients.

    When they are used up, the strangers that used most of them wait for the next second.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = PER_SECOND_OF_STRANGERS

    def refill(self) -> None:
        """Once a second."""
        self.left = PER_SECOND_OF_STRANGERS

    def must_wait(self, one: Allowance) -> bool:
        """Return whether a stranger with this allowance has to wait."""
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
