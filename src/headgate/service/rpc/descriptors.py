"""Converts Envoy's descriptors to facts.

An entry with a well-known key becomes one of our facts; any other becomes a fact with its key as name, for rules to
`match` or count by. A repeated fact gets a number, so that nothing is lost: `generic_key`, `generic_key_2`. The fact
`descriptor_keys` lists the keys, so that a rule can match descriptors with exactly these entries.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from headgate.core.key import join_facts
from headgate.core.quota import Quota
from headgate.errors import InvalidCheck
from headgate.rules.facts import FactNames
from headgate.rules.plan import RulePlan, plan_of_rule
from headgate.rules.rule import Rule
from headgate.service.protos import rls_pb2 as messages
from headgate.service.rpc.fact_names import DOMAIN, KEYS, fact_names, form_of

MAX_ENTRIES: Final = 32  # of one descriptor: Envoy's have a few
REMEMBERED: Final = 1_024  # lists of keys
MAX_LOGGED: Final = 100  # ignored facts
DESCRIPTOR: Final = "descriptor"  # the fact by which a request's own limits count

log = logging.getLogger("headgate")

_UNITS: Final[dict[int, str]] = {
    messages.SECOND: "second",
    messages.MINUTE: "minute",
    messages.HOUR: "hour",
    messages.DAY: "day",
    messages.MONTH: "month",
    messages.YEAR: "year",
}


Entries = Sequence[messages.RateLimitDescriptor.Entry]


class _Form(NamedTuple):
    """The facts of all descriptors with the same keys."""

    names: tuple[str | None, ...]  # of the domain, of the keys, and of each entry; None: it is left out
    keys: str  # the fact `descriptor_keys`
    is_whole: bool  # whether no entry is left out


class DescriptorFacts:
    """Finds the facts of descriptors. The names for a list of keys are computed once, until the rules' known facts
    change.

    Entries whose facts are not known are ignored, and logged once. For other callers they are an error, but Envoy
    allows a request when it gets an error.
    """

    def __init__(self) -> None:
        self._known: FactNames | None = None  # the facts for which `_forms` is valid
        self._forms: dict[tuple[str, ...], _Form] = {}
        self._logged: set[str] = set()

    def facts(self, domain: str, entries: Entries, known: FactNames) -> dict[str, str]:
        """Return the known facts of one descriptor. Raises `InvalidCheck`."""
        if known is not self._known or len(self._forms) >= REMEMBERED:
            self._known = known
            self._forms.clear()
        keys, values = [], []
        for entry in entries:
            keys.append(entry.key)
            values.append(entry.value)
        form = self._forms.get(tuple(keys)) or self._make_form(tuple(keys), known)
        names, listed, is_whole = form
        facts: dict[Any, str] = dict(zip(names, (domain, listed, *values), strict=True))
        if not is_whole:
            del facts[None]
        return facts

    def _make_form(self, keys: tuple[str, ...], known: FactNames) -> _Form:
        if len(keys) > MAX_ENTRIES:
            raise InvalidCheck(f"entries: at most {MAX_ENTRIES}, got {len(keys):,}")
        if not all(keys):
            raise InvalidCheck("entries: a key must not be empty")
        names = tuple(fact_names(keys))
        for name in names:
            if name not in known and name not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add(name)
                log.warning("Envoy: ignoring an entry of a descriptor: %s", known.describe_unknown(name))
        kept = [name if name in known else None for name in names]
        form = self._forms[keys] = _Form((DOMAIN, KEYS, *kept), form_of(keys), None not in kept)
        return form


def text_of_descriptor(domain: str, entries: Entries) -> str:
    """Return a descriptor as one string, for a limit that counts by it."""
    return join_facts((domain, *(part for entry in entries for part in (entry.key, entry.value))))


def plan_of_limit(limit: messages.RateLimitDescriptor.RateLimitOverride) -> RulePlan:
    """Return the plan of a descriptor with its own limit. Raises `InvalidCheck`."""
    unit = _UNITS.get(limit.unit)
    if unit is None:
        raise InvalidCheck(f"limit.unit: {limit.unit} is not known")
    return _plan(limit.requests_per_unit, unit)


@lru_cache(maxsize=1_024)
def _plan(limit: int, unit: str) -> RulePlan:
    if limit == 0:  # no quota can be 0: use a quota of 1 and a cost of 2
        return plan_of_rule(Rule(id=f"envoy-none-per-{unit}", quota=Quota(1, unit), dimension=DESCRIPTOR, cost=2))
    # The limit is not part of the id, so that counts survive a change of it.
    return plan_of_rule(Rule(id=f"envoy-per-{unit}", quota=Quota(limit, unit), dimension=DESCRIPTOR))
