"""The units that rules count, and a log of other units in the costs of requests.

An application may send a unit before any rule counts it, and rules change at run time. So an unknown unit is not an
error: its amount is not charged. If it resembles a unit that some rule counts, it is probably a typing mistake.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from headgate.core.cost import REQUESTS
from headgate.core.suggestion import did_you_mean

MAX_UNITS: Final = 256  # units to log, each once
MAX_SHOWN: Final = 64  # characters

log = logging.getLogger("headgate")


class UnitNames:
    """The units that rules count. Logs each other unit once, even if the rules change.

    `previous` belongs to the rules before, if there were any.
    """

    __slots__ = ("_counted", "_logged")

    def __init__(self, counted: Iterable[str], previous: UnitNames | None = None) -> None:
        self._counted = frozenset((REQUESTS, *counted))
        self._logged: set[str] = set() if previous is None else previous._logged

    def log_unknown(self, units: Sequence[str]) -> None:
        """Log the units of a cost that no rule counts: as a warning if they resemble one that the cost lacks."""
        for unit in units:
            if unit in self._counted or unit in self._logged or len(self._logged) >= MAX_UNITS:
                continue
            self._logged.add(unit)
            meant = did_you_mean(unit, self._counted.difference(units))
            level = logging.WARNING if meant else logging.INFO
            log.log(level, "no rule counts the unit %r, so it is not charged%s", unit[:MAX_SHOWN], meant)
