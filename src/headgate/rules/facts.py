"""The names that requests may use: those of facts, and those of units.

Facts have well-known names and declared ones. A rule that counts by a fact that no request has never applies. A fact
that no rule knows has no effect. Both are nearly always typing mistakes, so both are errors.

An application may send a unit before any rule counts it, and rules change at run time. So an unknown unit is not an
error: its amount is not charged. If it resembles a unit that some rule counts, it is probably a typing mistake.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from headgate.core.cost import REQUESTS
from headgate.core.suggestion import did_you_mean
from headgate.errors import InvalidCheck

WELL_KNOWN: Final = (
    *("user", "ip", "api_key", "tenant"),  # the client
    *("endpoint", "route", "method"),  # the target
    *("tier", "address", "country"),
)
ENVOY: Final = (
    "domain",
    "descriptor_keys",
    "generic_key",
    "source_cluster",
    "destination_cluster",
    "query_match",
    "descriptor",
)
OWN: Final = ("headgate_token", "headgate_address")  # by which the service limits its own callers
MAX_UNITS: Final = 256  # units to log, each once
MAX_SHOWN: Final = 64  # characters of a name
_AGAIN: Final = re.compile(r"(.+)_[1-9][0-9]*")  # a fact that appears more than once in an Envoy descriptor

log = logging.getLogger("headgate")


class FactNames:
    """The names that facts may have: the well-known ones and those in `declared`."""

    __slots__ = ("_declared", "_names")

    def __init__(self, declared: Collection[str] = ()) -> None:
        self._declared = tuple(declared)
        self._names = frozenset((*WELL_KNOWN, *ENVOY, *OWN, *declared))

    def __contains__(self, name: str) -> bool:
        if name in self._names:
            return True
        again = _AGAIN.fullmatch(name)
        return again is not None and again[1] in self._names

    def require(self, facts: Iterable[str]) -> None:
        """Raise `InvalidCheck` if any fact of a request has an unknown name."""
        if self._names.issuperset(facts):
            return
        for name in facts:
            if name not in self:
                raise InvalidCheck(self.describe_unknown(name))

    def describe_unknown(self, name: str) -> str:
        """Return an error message for an unknown name that says what to do."""
        shown = name if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]}…"
        meant = did_you_mean(name, (*WELL_KNOWN, *self._declared))
        known = ", ".join((*WELL_KNOWN, *self._declared))
        declare = f'declare it with [headgate] facts = ["{shown}"] or Limiter(facts=["{shown}"])'
        return f"unknown fact {shown!r}{meant or f'; known facts: {known}.'} If it is a fact of your own, {declare}"


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
