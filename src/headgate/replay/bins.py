"""Bins: counts over time in a bounded number of equal steps, for a log of any length."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MAX_BINS: Final = 168
# Each divides the next, so that bins can be joined.
WIDTHS: Final = tuple(
    seconds * 1_000_000 for seconds in (1, 5, 15, 60, 300, 900, 3_600, 10_800, 21_600, 86_400, 604_800, 31_449_600)
)


COUNTS: Final = ("requests", "refused", "delayed", "shadow", "newly_refused", "newly_allowed")  # of one bin


@dataclass(slots=True)
class Bin:
    """The counts of one step."""

    requests: int = 0
    refused: int = 0
    delayed: int = 0
    shadow: int = 0
    newly_refused: int = 0
    newly_allowed: int = 0
    rules: dict[str, int] = field(default_factory=dict)  # by rule: how many it refused, or would have as a shadow

    def join(self, other: Bin) -> None:
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for rule, count in other.rules.items():
            self.rules[rule] = self.rules.get(rule, 0) + count


class Bins:
    """All steps. `at` returns the step of a time; `end_us` its end."""

    def __init__(self) -> None:
        self.width_us = WIDTHS[0]
        self._bins: dict[int, Bin] = {}  # by the step's number since the epoch
        self._low = self._high = 0

    def at(self, at_us: int) -> Bin:
        """Return the bin of a time. It is valid only until the next call."""
        number = at_us // self.width_us
        found = self._bins.get(number)
        if found is None:
            if self._bins:
                self._low, self._high = min(self._low, number), max(self._high, number)
            else:
                self._low = self._high = number
            found = self._bins[number] = Bin()
            while self._high - self._low >= MAX_BINS and self.width_us < WIDTHS[-1]:
                self._widen()
                found = self._bins[at_us // self.width_us]
        return found

    def end_us(self, at_us: int) -> int:
        """Return the end of the bin that contains a time."""
        return (at_us // self.width_us + 1) * self.width_us

    def items(self) -> list[tuple[int, Bin]]:
        """Return all bins in order, each with its start, including empty ones."""
        if not self._bins:
            return []
        empty = Bin()
        return [(number * self.width_us, self._bins.get(number, empty)) for number in range(self._low, self._high + 1)]

    def _widen(self) -> None:
        width_us = WIDTHS[WIDTHS.index(self.width_us) + 1]
        times = width_us // self.width_us
        joined: dict[int, Bin] = {}
        for number, one in self._bins.items():
            found = joined.get(number // times)
            if found is None:
                joined[number // times] = one
            else:
                found.join(one)
        self._bins, self.width_us = joined, width_us
        self._low, self._high = self._low // times, self._high // times
