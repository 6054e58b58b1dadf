"""The names that facts may have: the well-known ones and the declared ones.

A rule that counts by a fact that no request has never applies. A fact that no rule knows has no effect. Both are nearly
always typing mistakes, so both are errors.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

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
_AGAIN: Final = re.compile(r"(.+)_[1-9][0-9]*")  # a fact that appears more than once in an Envoy descriptor


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
        shown = name if len(name) <= 64 else f"{name[:64]}…"
        meant = did_you_mean(name, (*WELL_KNOWN, *self._declared))
        known = ", ".join((*WELL_KNOWN, *self._declared))
        declare = f'declare it with [headgate] facts = ["{shown}"] or Limiter(facts=["{shown}"])'
        return f"unknown fact {shown!r}{meant or f'; known facts: {known}.'} If it is a fact of your own, {declare}"
