"""The hops in `X-Forwarded-For` and in `Forwarded` (RFC 7239), from the last to the first.

Both headers are read from the right. A client's own entries are left of those that proxies add, so nothing that a
client sends changes how a proxy's entry is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

MAX_ELEMENT: Final = 1_024  # characters of one element of Forwarded; real ones are shorter

_PAIR: Final = re.compile(r"""[ \t]*(?:([\w!#$%&'*+.^`|~-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;,"]*)))?[ \t]*""", re.ASCII)
_ESCAPED: Final = re.compile(r"\\(.)")

Hops = Callable[[str, int], Iterator[str]]


def x_forwarded_for(header: str, max_hops: int) -> Iterator[str]:
    """Yield at most `max_hops` hops of X-Forwarded-For, the last first."""
    for hop in reversed(header.rsplit(",", max_hops)[-max_hops:]):
        yield hop.strip(" \t")


def forwarded(header: str, max_hops: int) -> Iterator[str]:
    """Yield the `for` values of Forwarded, the last first, at most `max_hops`; "" for one with none, two or errors."""
    end = len(header)
    for _ in range(max_hops):
        start = _last_element(header, end)
        if start is None:
            yield ""
            return
        yield _for(header[start:end])
        end = start - 1
        if end < 0:
            return


def _last_element(header: str, end: int) -> int | None:
    """Return the start of the last element of `header[:end]`: after the last unquoted comma."""
    quoted = False
    for index in range(end - 1, max(-1, end - 1 - MAX_ELEMENT), -1):
        character = header[index]
        if character == '"':
            if not quoted:
                quoted = True
            elif not _is_escaped(header, index):
                quoted = False
        elif character == "," and not quoted:
            return index + 1
    return None if quoted or end > MAX_ELEMENT else 0


def _is_escaped(header: str, index: int) -> bool:
    before = header[max(0, index - MAX_ELEMENT) : index]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


def _for(element: str) -> str:
    found: str | None = None
    index = 0
    while True:
        pair = _PAIR.match(element, index)
        if pair is None:
            return ""
        if pair[1] is not None and pair[1].lower() == "for":
            if found is not None:
                return ""
            found = pair[3] if pair[2] is None else _ESCAPED.sub(r"\1", pair[2])
        index = pair.end()
        if index == len(element):
            return found or ""
        if element[index] != ";":
            return ""
        index += 1


HOPS: Final[dict[str, Hops]] = {"x-forwarded-for": x_forwarded_for, "forwarded": forwarded}
