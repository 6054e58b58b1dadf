"""Headgate's own events, as `headgate events --json` prints them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headgate.replay.fields import COST, UNIT_COST
from headgate.replay.formats.base import Getter, Rows
from headgate.replay.formats.json_lines import EVENTS, at_path, json_getters, json_row


def event_format(
    objects: Sequence[dict[str, Any]], getters: Mapping[str, Getter], wanted: Iterable[str], units: Mapping[str, str]
) -> Rows:
    """Return the format of events. The cost of an event is in the unit of its rule, which `units` has by rule."""
    wanted = frozenset(wanted)
    found = json_getters(EVENTS, objects, wanted)
    found[COST] = lambda row: None if row.get("rule") in units else row.get(COST)
    for fact in wanted - found.keys():
        unit = fact.removeprefix(UNIT_COST)
        found[fact] = at_path(f"facts.{fact}") if unit == fact else _cost_in(unit, units)
    return Rows(EVENTS, json_row, {**found, **getters}, hashes_keys=False, weight=lambda row: row.get("weight"))


def _cost_in(unit: str, units: Mapping[str, str]) -> Getter:
    return lambda row: row.get(COST) if units.get(row.get("rule")) == unit else None
