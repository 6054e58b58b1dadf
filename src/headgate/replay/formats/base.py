"""The interface of formats, and the reader for formats whose lines are rows of named values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from headgate.core.cost import REQUESTS, Cost
from headgate.http.identity import hashed_api_key
from headgate.replay.errors import InvalidLog
from headgate.replay.fields import COST, TIME, UNIT_COST
from headgate.replay.record import MAX_REMEMBERED, ClientAddresses, LogRecord, cost_of
from headgate.replay.times import time_us

Unreadable = Callable[[str], None]  # called with each unreadable line
Getter = Callable[[Any], Any]  # finds a value in a row; None if absent
ABSENT: Final = (None, "", "-")


class Format(Protocol):
    """Reads the lines of one log."""

    @property
    def name(self) -> str: ...

    @property
    def facts(self) -> frozenset[str]:
        """The facts in the log's first lines, and `cost.UNIT` for each unit with a cost."""
        ...

    def read(self, lines: Iterable[str], unreadable: Unreadable) -> Iterator[LogRecord]:
        """Yield the records of lines, in the order of the lines."""
        ...


class Rows:
    """A format whose lines `parse` turns into rows, in which `getters` find time, cost and facts by name.

    `hashes_keys` means that API keys in the log are not hashed yet; `weight` is the number of requests of a row.
    """

    def __init__(
        self,
        name: str,
        parse: Callable[[str], Any],
        getters: Mapping[str, Getter],
        *,
        hashes_keys: bool = True,
        weight: Getter | None = None,
        skips: int = 0,
    ) -> None:
        self.name = name
        self.facts = frozenset(getters) - {TIME, COST}
        self._parse = parse
        if TIME not in getters:
            raise InvalidLog(f"format {name}: no line has a time; name its position with --fields time=…")
        self._time = getters[TIME]
        self._cost = getters.get(COST)
        self._units = [
            (name.removeprefix(UNIT_COST), getters[name]) for name in sorted(getters) if name.startswith(UNIT_COST)
        ]
        self._getters = [(fact, getters[fact]) for fact in sorted(self.facts) if not fact.startswith(UNIT_COST)]
        self._addresses = ClientAddresses()
        # As the middleware does, so that reports never show a key.
        self._hash_key = lru_cache(MAX_REMEMBERED)(hashed_api_key) if hashes_keys else str
        self._weight = weight
        self._skips = skips  # lines of a header

    def read(self, lines: Iterable[str], unreadable: Unreadable) -> Iterator[LogRecord]:
        parse, time, weight = self._parse, self._time, self._weight
        for line in islice(lines, self._skips, None):
            try:
                row = parse(line)
                at_us = time_us(time(row))
                facts = self._facts(row)
                record = LogRecord(at_us, facts, self._cost_of(row))
                times = 1 if weight is None else int(weight(row) or 1)
            except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
                if line.strip():
                    unreadable(line)
                continue
            for _ in range(times):
                yield record

    def _cost_of(self, row: Any) -> Cost:
        stated = None if self._cost is None else self._cost(row)
        requests = 1 if stated in ABSENT else cost_of(stated)
        if not self._units:
            return requests
        amounts = {unit: amount for unit, get in self._units if (amount := get(row)) not in ABSENT}
        return {REQUESTS: requests, **{unit: cost_of(amount) for unit, amount in amounts.items()}}

    def _facts(self, row: Any) -> dict[str, str]:
        facts: dict[str, str] = {}
        for fact, get in self._getters:
            value = get(row)
            if value in ABSENT:
                continue
            text = value if value.__class__ is str else str(value)
            if fact == "ip":
                facts |= self._addresses.facts(text)
            elif fact == "endpoint":
                facts[fact] = path_of(text)
            elif fact == "api_key":
                facts[fact] = self._hash_key(text)
            else:
                facts[fact] = text
        return facts


def path_of(target: str) -> str:
    """Return the path of a request's target, without the query, which rules ignore."""
    if target[:1] != "/" and "://" in target:
        target = urlsplit(target).path or "/"
    return target.partition("?")[0] if "?" in target else target
