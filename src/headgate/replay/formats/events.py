"""Headgate's own events, as `headgate events` prints them with `--json` or `--csv`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headgate.core.cost import REQUESTS
from headgate.replay.fields import COST, UNIT_COST
from headgate.replay.formats.base import Getter, Rows
from headgate.replay.formats.json_lines import EVENTS, at_path, json_getters, json_row


def event_format(
    objects: Sequence[dict[str, Any]], getters: Mapping[str, Getter], wanted: Iterable[str], units: Mapping[str, str]
) -> Rows:
    """Return the format of events. An event's cost is in the unit of its rule, from `units`."""
    wanted = frozenset(wanted)
    found = json_getters(EVENTS, objects, wanted)
    for fact in wanted - found.keys():
        if not fact.startswith(UNIT_COST):
            found[fact] = at_path(f"facts.{fact}")
    found.update(event_costs(at_path(COST), at_path("rule"), units))
    return Rows(EVENTS, json_row, {**found, **getters}, hashes_keys=False, weight=lambda row: row.get("weight"))


def event_costs(cost: Getter, rule: Getter, units: Mapping[str, str]) -> dict[str, Getter]:
    """Return getters for an event's cost in requests, and in each of the rules' `units`."""

    def cost_in(unit: str) -> Getter:
        return lambda row: cost(row) if units.get(rule(row), REQUESTS) == unit else None

    return {COST: cost_in(REQUESTS), **{f"{UNIT_COST}{unit}": cost_in(unit) for unit in units.values()}}
