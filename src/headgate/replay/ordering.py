"""Sorts the records of one log by time.

Servers write a line when a request ends, so lines are late by the duration of their requests. Records are held until
they are `hold_us` behind the newest, and sorted. A log with more disorder raises `TooSmall`, and is read again with a
larger hold. So memory depends on the actual disorder, not on the largest that is allowed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Final

from headgate.replay.record import LogRecord

MIN_SORTED: Final = 4_096  # the fewest records to sort at a time
FIRST_HOLD_US: Final = 60_000_000
_at: Final = itemgetter(0)


class TooSmall(Exception):
    """A record was later than the hold, but within the sort window."""

    def __init__(self, late_us: int) -> None:
        super().__init__(late_us)
        self.late_us = late_us

    def next_hold_us(self, window_us: int) -> int:
        """Return the hold to try next."""
        return min(window_us, max(4 * self.late_us, FIRST_HOLD_US))


def in_order(
    records: Iterable[LogRecord], hold_us: int, window_us: int, too_late: Callable[[LogRecord, int], None]
) -> Iterator[LogRecord]:
    """Yield records by time; those of one time in their order. Raises `TooSmall`.

    Skips records that are more than `window_us` behind the newest before them, and calls `too_late` with the record and
    its delay.
    """
    held: list[LogRecord] = []
    newest, passed = -1, -1  # the newest time so far; the time up to which records were yielded
    enough = MIN_SORTED
    for record in records:
        at_us = record[0]
        if at_us >= newest:
            newest = at_us
        elif newest - at_us > window_us:
            too_late(record, newest - at_us)
            continue
        elif at_us < passed:
            raise TooSmall(newest - at_us)
        held.append(record)
        if len(held) >= enough:
            held.sort(key=_at)
            end = bisect_right(held, newest - hold_us, key=_at)
            if end:
                passed = held[end - 1][0]
                yield from held[:end]
                del held[:end]
            enough = max(MIN_SORTED, 2 * len(held))
    held.sort(key=_at)
    yield from held
