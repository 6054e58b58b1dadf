"""Finds the format of a log by its first lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headgate.replay.errors import InvalidLog
from headgate.replay.fields import TIME, FactField
from headgate.replay.formats.access import AccessLog, access_parts, header_part, is_access_line, parts_of
from headgate.replay.formats.base import Format, Getter, Rows
from headgate.replay.formats.events import event_format
from headgate.replay.formats.json_lines import (
    DIALECTS,
    EVENTS,
    at_path,
    dialect_of,
    header_at,
    json_format,
    json_objects,
)
from headgate.replay.formats.table import cell_at, header_of, table_format

SAMPLE: Final = 200  # first lines to inspect
COMBINED: Final = ("common", "combined")
PARTS: Final = "parts"  # lines of any kind, with numbered parts
FORMATS: Final = (*COMBINED, *DIALECTS, "csv", PARTS)
_HOW: Final = f"name it with --format ({', '.join(FORMATS)}), and say with --fields where things are"


def find_format(
    sample: Sequence[str],
    name: str | None,
    fields: Sequence[FactField],
    wanted: Iterable[str],
    units: Mapping[str, str],
) -> Format:
    """Return the format of a log: the one with this name, or the one of its first lines.

    `fields` name the places of some facts; `wanted` are the facts that rules need; `units` are the units, by rule, of
    rules that do not count requests. Raises `InvalidLog`.
    """
    if name is not None and name not in FORMATS:
        raise InvalidLog(f"--format: must be one of {', '.join(FORMATS)}, got {name!r}")
    lines = [line for line in sample if line.strip()]
    if not lines:
        raise InvalidLog("the file is empty")
    wanted = sorted(wanted)
    if name in COMBINED or (name is None and sum(map(is_access_line, lines)) * 2 > len(lines)):
        if not fields:
            return AccessLog(lines)
        return access_parts(lines, {field.name: _of_parts(field) for field in fields})
    if name in DIALECTS or (name is None and lines[0].lstrip().startswith("{")):
        return _find_json(lines, name, fields, wanted, units)
    if name == "csv" or name is None:
        header = header_of(lines[0])
        if header is not None:
            separator, names = header
            return table_format(
                separator, names, {field.name: _of_row(field, names) for field in fields}, wanted, units
            )
        if name == "csv":
            raise InvalidLog(f"the first line is not a header that names a time: {lines[0].strip()[:80]!r}; {_HOW}")
    if not any(field.name == TIME for field in fields):
        if name == PARTS:
            raise InvalidLog("--format parts needs the position of the time: --fields 'time=$1,…'")
        raise InvalidLog(f"unknown format: {lines[0].strip()[:80]!r}; {_HOW}")
    return Rows(PARTS, parts_of, {field.name: _of_parts(field) for field in fields})


def _find_json(
    lines: Sequence[str], name: str | None, fields: Sequence[FactField], wanted: Sequence[str], units: Mapping[str, str]
) -> Format:
    objects = json_objects(lines)
    dialect = name or (dialect_of(objects) if objects else None) or ("json" if fields else None)
    if dialect is None or not objects:
        raise InvalidLog(
            f"its lines of JSON have no time with an address, a path or a user, under names that are known; {_HOW}"
        )
    getters = {field.name: _of_object(field) for field in fields}
    if dialect == EVENTS:
        return event_format(objects, getters, wanted, units)
    return json_format(dialect, objects, getters, wanted)


def _of_parts(field: FactField) -> Getter:
    if field.kind == "position":
        return cell_at(int(field.where) - 1)
    found = header_part(field.where) if field.kind == "header" else None
    if found is None:
        raise InvalidLog(f"--fields: {field}: lines of this log have numbered parts: write {field.name}=$N")
    return found


def _of_object(field: FactField) -> Getter:
    if field.kind == "position":
        raise InvalidLog(f"--fields: {field}: this log's lines are JSON: write {field.name}=json:PATH")
    return header_at(field.where) if field.kind == "header" else at_path(field.where)


def _of_row(field: FactField, names: Sequence[str]) -> Getter:
    if field.kind == "position":
        index = int(field.where) - 1
    else:
        index = next((at for at, name in enumerate(names) if name.lower() == field.where.lower()), len(names))
    if field.kind == "json" or index >= len(names):
        raise InvalidLog(
            f"--fields: {field}: this log's columns are {', '.join(names)}: write {field.name}=column:NAME"
        )
    return cell_at(index)
