"""Log: several files, each with its own format, as one stream of records in order of time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from types import MappingProxyType
from typing import BinaryIO, Final

from headgate.replay.errors import InvalidLog
from headgate.replay.fields import FactField
from headgate.replay.files import STDIN, LogFile
from headgate.replay.formats import Format, find_format
from headgate.replay.formats.detection import SAMPLE
from headgate.replay.ordering import FIRST_HOLD_US, in_order
from headgate.replay.record import LogRecord

SHOWN: Final = 5  # unreadable lines, and late ones, whose text is kept
MAX_SHOWN: Final = 200  # characters of such a line
DEFAULT_SORT_WINDOW_US: Final = 3_600_000_000

OnProgress = Callable[[int, float | None], None]  # called with the number of requests so far, and the log's share


@dataclass(slots=True)
class Remarks:
    """The problems found while reading a log."""

    unreadable: int = 0
    unreadable_lines: list[str] = field(default_factory=list)  # the first ones, each with its file
    late: int = 0
    late_lines: list[str] = field(default_factory=list)


class Log:
    """Reads files. `records` starts over each time it is called, except on standard input.

    `format_name` and `fields` are for logs that are not recognised; `wanted` are the facts that rules need, and `units`
    the units, by rule, of rules that do not count requests. Raises `InvalidLog` for files that cannot be read or
    recognised.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        format_name: str | None = None,
        fields: Sequence[FactField] = (),
        wanted: Iterable[str] = (),
        units: Mapping[str, str] = MappingProxyType({}),
        sort_window_us: int = DEFAULT_SORT_WINDOW_US,
        stdin: BinaryIO | None = None,
    ) -> None:
        if list(paths).count(STDIN) > 1:
            raise InvalidLog("standard input can be read only once: use - only once")
        self.files = [LogFile(path, stdin) for path in paths]
        self.sort_window_us = sort_window_us
        self.remarks = Remarks()
        self._hold_us = min(FIRST_HOLD_US, sort_window_us)
        self._fields, self._format_name, self._wanted = tuple(fields), format_name, frozenset(wanted)
        self._units = units
        self._stack = ExitStack()
        try:
            self._opened = [self._open(file) for file in self.files]
        except BaseException:
            self._stack.close()
            raise
        self.formats: list[Format] = [found for found, _ in self._opened]

    @property
    def facts(self) -> frozenset[str]:
        """The facts that all files have."""
        return frozenset.intersection(*(one.facts for one in self.formats))

    @property
    def progress(self) -> float | None:
        """The share that has been read, from 0 to 1; None if the total is unknown."""
        sizes = [file.size for file in self.files]
        if None in sizes:
            return None
        total = sum(size for size in sizes if size is not None)
        return sum(file.position for file in self.files) / total if total else 1.0

    def records(self, hold_us: int | None = None) -> Iterator[LogRecord]:
        """Yield all records by time. Raises `TooSmall` if the hold is too short, and `InvalidLog`."""
        self._hold_us = min(self.sort_window_us, self._hold_us if hold_us is None else hold_us)
        self.remarks = Remarks()
        opened, self._opened = self._opened or [self._open(file) for file in self.files], []
        with self._stack:
            streams = [self._sorted_records(file, *one) for file, one in zip(self.files, opened, strict=True)]
            yield from streams[0] if len(streams) == 1 else merge(*streams, key=itemgetter(0))

    def close(self) -> None:
        """Close the files."""
        self._stack.close()

    def _open(self, file: LogFile) -> tuple[Format, Iterator[str]]:
        lines = self._stack.enter_context(file.lines())
        sample = list(islice(lines, SAMPLE))
        try:
            found = find_format(sample, self._format_name, self._fields, self._wanted, self._units)
        except InvalidLog as error:
            raise InvalidLog(f"{file.name}: {error}") from None
        return found, chain(sample, lines)

    def _sorted_records(self, file: LogFile, found: Format, lines: Iterator[str]) -> Iterator[LogRecord]:
        remarks = self.remarks

        def unreadable(line: str) -> None:
            remarks.unreadable += 1
            if len(remarks.unreadable_lines) < SHOWN:
                remarks.unreadable_lines.append(f"{file.name}: {line.strip()[:MAX_SHOWN]}")

        def too_late(record: LogRecord, late_us: int) -> None:
            remarks.late += 1
            if len(remarks.late_lines) < SHOWN:
                facts = " ".join(f"{name}={value}" for name, value in record.facts.items())
                remarks.late_lines.append(f"{file.name}: {late_us // 1_000_000:,} s late: {facts[:MAX_SHOWN]}")

        # Standard input cannot be read again with a larger hold.
        hold_us = self.sort_window_us if file.is_stdin or file.size is None else self._hold_us
        return in_order(found.read(lines, unreadable), hold_us, self.sort_window_us, too_late)
