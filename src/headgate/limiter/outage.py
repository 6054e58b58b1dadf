"""Track whether the store can decide, and log the beginning and the end of an outage."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

from headgate.errors import StoreError

TURNS: Final = 3  # outages in quick succession; the last one ends only after a second without failures
SOON: Final = 1.0  # seconds

log = logging.getLogger("headgate")


class Outage:
    """The outage of a store, while it lasts.

    When one of a store's servers is down, some checks fail and others do not. So a recurring outage ends only when
    nothing has failed for a second.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self.lasts = False
        self._now = now
        self._failed = float("-inf")  # time of the last failure
        self._ended = float("-inf")
        self._turns = 0  # outages in quick succession so far

    def note_failure(self, error: StoreError) -> None:
        """Record that the store could not decide."""
        self._failed = self._now()
        if not self.lasts:
            self.lasts = True
            self._turns = self._turns + 1 if self._failed - self._ended < SOON else 1
            log.error("the store cannot decide: failure modes apply until it recovers (%s)", error)

    def note_probe(self) -> bool:
        """Record that the store answered a probe. Returns whether this ends the outage: not while checks fail."""
        return self._now() - self._failed >= SOON and self.note_answer()

    def note_answer(self) -> bool:
        """Record that the store decided a check. Returns whether this ends the outage."""
        if self.lasts:
            now = self._now()
            if self._turns < TURNS or now - self._failed >= SOON:
                self.lasts = False
                self._ended = now
                log.warning("the store answers again and enforces limits")
                return True
        return False
