"""The common and the combined log format of Apache and nginx, and the parts of lines like theirs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from headgate.replay.formats.base import Getter, Rows, Unreadable, path_of
from headgate.replay.record import ClientAddresses, LogRecord
from headgate.replay.times import clf_us

# A valid line, whatever the user's name contains. Anything may follow the request.
_LINE: Final = re.compile(
    r'(?:\S+:\d+ )?(\S+) \S+ (.*?) ?\[([^\]]+)\] "([A-Za-z]+) ((?:[^"\\ ]|\\.)+)(?: [^"]*)?"'
).match
_PART: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|\[([^\]]*)\]|(\S+)')
_BEHIND_REQUEST: Final = 2  # parts of a line in the common format: status and size
_HEADERS: Final = {"referer": 8, "user-agent": 9}  # the header fields among the parts of a combined line


class AccessLog:
    """Lines in the common or combined format, possibly with more after it, or the virtual host before it."""

    def __init__(self, sample: Sequence[str]) -> None:
        self.name = access_format_of(sample)
        facts = {"ip", "endpoint", "method"}
        if any(found is not None and found[2] not in ("-", "") for found in map(_LINE, sample)):
            facts.add("user")
        self.facts = frozenset(facts)

    def read(self, lines: Iterable[str], unreadable: Unreadable) -> Iterator[LogRecord]:
        addresses = ClientAddresses()
        known = addresses.get
        new = tuple.__new__
        for line in lines:
            # Nearly all lines have spaces in the usual places, and splitting is three times as fast as matching.
            parts = line.split(" ", 7)
            try:
                if len(parts) == 8 and parts[3][0] == "[" and parts[5][0] == '"' and parts[4][-1] == "]":
                    address, _, user, time, zone, method, target, _ = parts
                    at_us = clf_us(f"{time[1:]} {zone[:-1]}")
                    method = method[1:]
                    readable = method.isalpha() and '"' not in target
                else:
                    found = _LINE(line)
                    readable = found is not None
                    if found is not None:
                        address, user, time, method, target = found.groups()
                        at_us = clf_us(time)
            except (ValueError, IndexError, OverflowError):
                readable = False
            if not readable:
                if line.strip():
                    unreadable(line)
                continue
            facts = (known(address) or addresses.facts(address)).copy()
            facts["endpoint"] = target if target[0] == "/" and "?" not in target else path_of(target)
            facts["method"] = method
            if user != "-" and user:
                facts["user"] = user
            yield new(LogRecord, (at_us, facts, 1))


def is_access_line(line: str) -> bool:
    """Return whether a line is, or begins, in the common format."""
    found = _LINE(line)
    try:
        return found is not None and clf_us(found[3]) >= 0
    except ValueError:
        return False


def access_format_of(sample: Sequence[str]) -> str:
    """Return `common` if nothing but status and size follows the request in most lines, else `combined`."""
    found = [(line, match) for line, match in zip(sample, map(_LINE, sample), strict=True) if match is not None]
    short = sum(len(parts_of(line[match.end() :])) <= _BEHIND_REQUEST for line, match in found)
    return "common" if short * 2 > len(found) else "combined"


def parts_of(line: str) -> list[str]:
    """Return the parts of a line. `"…"` and `[…]` are one part each, without the delimiters."""
    return [quoted or bracketed or plain for quoted, bracketed, plain in _PART.findall(line)]


def access_parts(sample: Sequence[str], getters: dict[str, Getter]) -> Rows:
    """Return the common format with some facts in other places, found by `getters`."""
    own: dict[str, Getter] = {
        "time": lambda parts: parts[3],
        "ip": lambda parts: parts[0],
        "user": lambda parts: parts[2],
        "endpoint": lambda parts: parts[4].split(" ")[1],
        "method": lambda parts: parts[4].split(" ")[0],
    }
    return Rows(access_format_of(sample), parts_of, {**own, **getters})


def header_part(name: str) -> Getter | None:
    """Return a getter for a header field in a combined line; None if such lines do not have it."""
    at = _HEADERS.get(name.lower())
    return None if at is None else lambda parts: parts[at - 1]
