"""CSV with a header, separated by commas, semicolons or tabs."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from headgate.replay.fields import COST, TIME, UNIT_COST
from headgate.replay.formats.base import Getter, Rows
from headgate.replay.formats.events import event_costs
from headgate.replay.formats.json_lines import DIALECTS, EVENT_KEYS, GENERIC

SEPARATORS: Final = (",", ";", "\t")


def header_of(line: str) -> tuple[str, list[str]] | None:
    """Return the separator and the names of a header; None if the line names no time."""
    line = line.lstrip("\N{BYTE ORDER MARK}").rstrip("\r\n")
    for separator in SEPARATORS:
        names = [name.strip() for name in next(csv.reader([line], delimiter=separator), [])]
        if len(names) > 1 and any(name.lower() in DIALECTS[GENERIC][TIME] for name in names):
            return separator, names
    return None


def table_format(
    separator: str, names: Sequence[str], getters: Mapping[str, Getter], wanted: Iterable[str], units: Mapping[str, str]
) -> Rows:
    """Return the format of CSV with these columns. Facts that rules want are also found under their own names."""
    indexes = {name.lower(): index for index, name in reversed(list(enumerate(names)))}
    columns = dict(DIALECTS[GENERIC])
    for fact in (*wanted, "cost"):
        columns.setdefault(fact, (fact.removeprefix(UNIT_COST).lower(),))
    found: dict[str, Getter] = {}
    for column, candidates in columns.items():
        index = next((indexes[name] for name in candidates if name in indexes and name != "request"), None)
        if index is not None:
            found[column] = cell_at(index)
    is_events = indexes.keys() >= EVENT_KEYS
    weight = cell_at(indexes["weight"]) if is_events else None
    if is_events:
        found.update(event_costs(found[COST], cell_at(indexes["rule"]), units))
    found.update(getters)
    return Rows("csv", _row_parser(separator, len(names)), found, hashes_keys=not is_events, weight=weight, skips=1)


def cell_at(index: int) -> Getter:
    """Return a getter for a column's cell."""
    return lambda row: row[index]


def _row_parser(separator: str, width: int) -> Callable[[str], Any]:
    def parse(line: str) -> list[str]:
        line = line.rstrip("\r\n")
        row = next(csv.reader([line], delimiter=separator), []) if '"' in line else line.split(separator)
        if len(row) != width:
            raise ValueError(f"{len(row)} cells instead of {width}")
        return row

    return parse
