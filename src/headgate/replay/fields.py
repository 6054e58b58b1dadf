"""`--fields`: where a log holds the facts that rules need, for logs with their own layout.

    ip=$1                     the first part of the line; of CSV, the first column. "…" and […] are one part each
    user=json:jwt.sub         a path into a line of JSON
    tenant=header:X-Tenant    a request's header field, as far as the log has it
    tenant=column:Tenant      a column of CSV, by its name

`time` and `cost` are named in the same way, and `cost.tokens` is a request's cost in the unit `tokens`. All other names
are facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from headgate.replay.errors import InvalidLog

TIME: Final = "time"
COST: Final = "cost"
UNIT_COST: Final = "cost."  # followed by a unit's name
_POSITION: Final = re.compile(r"\$([1-9][0-9]{0,3})")
_KINDS: Final = ("json", "header", "column")


class FactField(NamedTuple):
    """The place of one fact in a line."""

    name: str
    kind: str  # position, json, header or column
    where: str  # a number from 1, a path with dots, a name

    def __str__(self) -> str:
        return f"{self.name}=${self.where}" if self.kind == "position" else f"{self.name}={self.kind}:{self.where}"


def parse_fields(texts: Iterable[str]) -> tuple[FactField, ...]:
    """Parse fields; one text may hold several, separated by commas. Raises `InvalidLog`."""
    fields: dict[str, FactField] = {}
    for text in (part.strip() for one in texts for part in one.split(",")):
        if not text:
            continue
        field = _parse_field(text)
        if field.name in fields:
            raise InvalidLog(f"--fields: {field.name!r} is given twice: {fields[field.name]} and {field}")
        fields[field.name] = field
    return tuple(fields.values())


def _parse_field(text: str) -> FactField:
    name, equals, spec = (part.strip() for part in text.partition("="))
    if not equals or not name or not spec or " " in name:
        raise InvalidLog(f"--fields: must be NAME=WHERE, as in ip=$1 or user=json:jwt.sub, got {text!r}")
    position = _POSITION.fullmatch(spec)
    if position is not None:
        return FactField(name, "position", position[1])
    kind, colon, where = spec.partition(":")
    if kind not in _KINDS or not colon or not where:
        raise InvalidLog(f"--fields: {name}: must be $N, json:PATH, header:NAME or column:NAME, got {spec!r}")
    return FactField(name, kind, where)
