"""What Envoy's descriptors say, in facts.

An entry of a well-known key is one of our facts; any other is a fact of its own name, for rules to `match` on or to
count by. A fact that is said again gets a number, so that nothing is lost: `generic_key`, `generic_key_2`. The fact
`descriptor_keys` lists the keys, so that a rule can ask for descriptors that have these entries and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from headgate.core.key import joined
from headgate.core.quota import Quota
from headgate.errors import InvalidCheck
from headgate.rules.plan import RulePlan, plan_of_rule
from headgate.rules.rule import Rule
from headgate.service.protos import rls_pb2 as messages
from headgate.service.rpc.fact_names import DOMAIN, KEYS, fact_names, form_of

MAX_ENTRIES: Final = 32  # of one descriptor: Envoy's have a few
DESCRIPTOR: Final = "descriptor"  # the fact by which limits of the request's own count

_UNITS: Final[dict[int, str]] = {
    messages.SECOND: "second",
    messages.MINUTE: "minute",
    messages.HOUR: "hour",
    messages.DAY: "day",
    messages.MONTH: "month",
    messages.YEAR: "year",
}


def facts_of(domain: str, entries: Sequence[messages.RateLimitDescriptor.Entry]) -> dict[str, str]:
    """The facts of one descriptor. Raises `InvalidCheck`."""
    if len(entries) > MAX_ENTRIES:
        raise InvalidCheck(f"entries: at most {MAX_ENTRIES}, got {len(entries):,}")
    keys = [entry.key for entry in entries]
    if not all(keys):
        raise InvalidCheck("entries: a key must not be empty")
    facts = {DOMAIN: domain, KEYS: form_of(keys)}
    for name, entry in zip(fact_names(keys), entries, strict=True):
        facts[name] = entry.value
    return facts


def itself(domain: str, entries: Iterable[messages.RateLimitDescriptor.Entry]) -> str:
    """A descriptor as one text, for a limit that counts by it."""
    return joined((domain, *(part for entry in entries for part in (entry.key, entry.value))))


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
