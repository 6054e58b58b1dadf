"""What Envoy's descriptors say, in facts.

An entry of a well-known key is one of our facts; any other is a fact of its own name, for rules to `match` on or to
count by. A fact that is said again gets a number, so that nothing is lost: `generic_key`, `generic_key_2`. The fact
`descriptor_keys` lists the keys, so that a rule can ask for descriptors that have these entries and no others.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

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
MAX_LOGGED: Final = 100  # facts that are left out
DESCRIPTOR: Final = "descriptor"  # the fact by which limits of the request's own count

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


class DescriptorFacts:
    """Finds the facts of descriptors. What their keys mean is worked out once, for as long as the rules know the same
    facts.

    Entries whose keys no rule can name are left out, and logged once. They are no error, as they are to other callers:
    Envoy lets pass what it gets an error for.
    """

    def __init__(self) -> None:
        self._known: FactNames | None = None  # that `_forms` is of
        self._forms: dict[tuple[str, ...], tuple[str, tuple[str | None, ...]]] = {}
        self._logged: set[str] = set()

    def facts(self, domain: str, entries: Entries, known: FactNames) -> dict[str, str]:
        """The facts of one descriptor, of those that are known. Raises `InvalidCheck`."""
        if known is not self._known or len(self._forms) >= REMEMBERED:
            self._known = known
            self._forms.clear()
        keys = tuple([entry.key for entry in entries])
        form = self._forms.get(keys)
        if form is None:
            form = self._forms[keys] = self._form(keys, known)
        facts = {DOMAIN: domain, KEYS: form[0]}
        for name, entry in zip(form[1], entries, strict=True):
            if name is not None:
                facts[name] = entry.value
        return facts

    def _form(self, keys: tuple[str, ...], known: FactNames) -> tuple[str, tuple[str | None, ...]]:
        """The fact `descriptor_keys`, and the fact that each entry is; None: it is left out."""
        if len(keys) > MAX_ENTRIES:
            raise InvalidCheck(f"entries: at most {MAX_ENTRIES}, got {len(keys):,}")
        if not all(keys):
            raise InvalidCheck("entries: a key must not be empty")
        names = tuple(fact_names(keys))
        for name in names:
            if name not in known and name not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add(name)
                log.warning("Envoy: ignoring an entry of a descriptor: %s", known.describe_unknown(name))
        return form_of(keys), tuple([name if name in known else None for name in names])


def itself(domain: str, entries: Entries) -> str:
    """A descriptor as one text, for a limit that counts by it."""
    return join_facts((domain, *(part for entry in entries for part in (entry.key, entry.value))))


def plan_of_limit(limit: messages.RateLimitDescriptor.RateLimitOverride) -> RulePlan:
    """The plan of a descriptor that brings its own limit. Raises `InvalidCheck`."""
    unit = _UNITS.get(limit.unit)
    if unit is None:
        raise InvalidCheck(f"limit.unit: {limit.unit} is not known")
    return _plan(limit.requests_per_unit, unit)


@lru_cache(maxsize=1_024)
def _plan(limit: int, unit: str) -> RulePlan:
    if limit == 0:  # which no quota can be: of one that holds 1, everything costs more than that
        return plan_of_rule(Rule(id=f"envoy-none-per-{unit}", quota=Quota(1, unit), dimension=DESCRIPTOR, cost=2))
    # The figure is not part of the id: when it changes, what was counted still counts.
    return plan_of_rule(Rule(id=f"envoy-per-{unit}", quota=Quota(limit, unit), dimension=DESCRIPTOR))
