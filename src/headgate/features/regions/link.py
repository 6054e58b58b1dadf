"""Calls to the regions' stores, as the parts that do no I/O yield them, and whether another region can be reached."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from headgate.errors import StoreError
from headgate.features.regions.region import PeerStatus

T = TypeVar("T")

HERE: Final = ""  # our own region
PATIENCE: Final = 3  # intervals without an answer after which a region counts as cut off

log = logging.getLogger("headgate")


class StoreCall(NamedTuple):
    """A call to a region's store. The answer is its result, or its `StoreError`."""

    region: str
    method: str
    arguments: tuple[Any, ...]


# Yields calls that can be made at the same time, and receives their answers.
Steps = Generator[list[StoreCall], list[Any], T]


class Duty(Protocol):
    """Periodic work in the background."""

    name: str

    def due_us(self) -> int | None:
        """Return the time until the next `work`; None: there is nothing to do until `notify` is called."""
        ...

    def work(self) -> Steps[None]:
        """Yield the calls of one round of work."""
        ...


class Link:
    """The link to one region. It logs when the link breaks, and when it is back.

    `now_us` is a clock that only goes forward.
    """

    def __init__(self, name: str, interval_us: int, now_us: Callable[[], int]) -> None:
        self.name = name
        self.heard_us: int | None = None  # when its counts were last read
        self._patience_us = PATIENCE * interval_us
        self._now_us = now_us
        self._calls = self._failures = 0
        self._failing_us: int | None = None  # since when calls fail
        self._has_logged = False

    @property
    def cut(self) -> bool:
        """Whether it has not answered for so long that its last counts are out of date."""
        return self._failing_us is not None and self._now_us() - self._failing_us >= self._patience_us

    @property
    def failing(self) -> bool:
        return self._failing_us is not None

    def note_answer(self) -> None:
        self._calls += 1
        if self._failing_us is not None:
            self._failing_us = None
            if self._has_logged:
                log.warning("region %s: reached again", self.name)
            self._has_logged = False

    def note_failure(self, error: StoreError, asked_us: int) -> None:
        """Record the failure of a call made at `asked_us`."""
        self._failures += 1
        if self._failing_us is None:
            self._failing_us = asked_us
        if self.cut and not self._has_logged:
            self._has_logged = True
            log.error(
                "region %s: cannot be reached: this region keeps to its own share of shared limits (%s)",
                self.name,
                error,
            )

    def status(self) -> PeerStatus:
        age = None if self.heard_us is None else max(0, self._now_us() - self.heard_us) / 1_000_000
        return PeerStatus(self._calls, self._failures, age, self.cut)
