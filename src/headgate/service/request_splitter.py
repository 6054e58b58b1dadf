"""RequestSplitter: finds where HTTP/1.1 requests begin and end in a client's input. It does no I/O.

Clients may pipeline requests without waiting for answers. The parser would read all of them at once. This gives it one
at a time, so that each is answered before the next is read, and an error in one is not blamed on those before it.

The parser also rejects a request that offers another protocol (`Upgrade`), as Java's and curl's clients do with HTTP/2:
it would take the body for that protocol. We speak no other, so this renames that header field.
"""

from __future__ import annotations

import re
from typing import Final

MAX_HEAD: Final = 64 * 1024  # bytes
MAX_FIELDS: Final = 256  # header fields of a request

_END: Final = b"\r\n\r\n"  # of a head, and of a chunked body
_LINE_ENDS: Final = (b"\r", b"\n")
_UPGRADE: Final = re.compile(rb"\r\nupgrade(?=[ \t]*:)", re.IGNORECASE)
_BEGINNING: Final = re.compile(rb"[A-Z-]{0,20}(?: [^\r\n]*(?:\r|$)|$)")  # a possibly incomplete request line


class HeadTooLarge(Exception):
    """The head of a request is too large."""


class RequestSplitter:
    """Splits the input of one connection. `feed` takes input; `take` returns the parser's next piece.

    The parser reports the end of a head (`begin_body`) and of a request (`end`).
    """

    __slots__ = ("_at", "_last", "_left", "_rest", "_searched", "ends_with_empty_lines", "size")

    def __init__(self) -> None:
        self._rest = b""
        self._at = 0  # start of the untaken input in `_rest`
        self._searched = 0  # the position in `_rest` before which there is no end of a head
        self._left: int | None = 0  # bytes of the body that are still to come; None: chunked; 0: no body
        self._last = b""  # of a chunked body: the last bytes taken
        self.size = 0  # of the untaken input, in bytes
        self.ends_with_empty_lines = False  # before a request: it has begun, but has no content yet

    @property
    def in_head(self) -> bool:
        return self._left == 0

    def feed(self, data: bytes) -> None:
        self.ends_with_empty_lines = False
        if self.size:
            self._searched = max(0, self._searched - self._at)
            self._rest = self._rest[self._at :] + data
        else:
            self._searched = 0
            self._rest = data
        self._at = 0
        self.size = len(self._rest)

    def begin_body(self, length: int | None) -> None:
        """Note the end of a head: a body of `length` bytes follows; None for a chunked one."""
        self._left = length
        self._last = b""

    def end(self) -> None:
        """Note the end of a request."""
        self._left = 0

    def clear(self) -> None:
        """Drop all untaken input."""
        self._rest, self._at, self._searched, self._left, self.size = b"", 0, 0, 0, 0

    def take(self) -> bytes:
        """Return the next piece, never of more than one request; empty if more input is needed.

        Raises `HeadTooLarge`.
        """
        if self._left == 0:
            return self._take_head()
        if self._left is None:
            return self._take_chunks()
        piece = self._give(self._at + self._left)
        self._left = max(self._left - len(piece), 1)  # the parser decides where it ends
        return piece

    def _give(self, end: int) -> bytes:
        piece = self._rest[self._at : end]
        self._at += len(piece)
        self.size -= len(piece)
        return piece

    def _take_head(self) -> bytes:
        rest = self._rest
        while rest[self._at : self._at + 1] in _LINE_ENDS:  # ignore empty lines before a request
            self._at += 1
            self.size -= 1
            self.ends_with_empty_lines = self.size == 0
        end = rest.find(_END, max(self._at, self._searched))
        if end < 0:
            if self.size > MAX_HEAD:
                raise HeadTooLarge
            if _BEGINNING.match(rest, self._at) is None:
                return self._give(len(rest))  # the parser will report the error
            self._searched = len(rest) - len(_END) + 1
            return b""
        head = self._give(end + len(_END))
        if len(head) > MAX_HEAD or head.count(b"\r\n") > MAX_FIELDS + 2:
            raise HeadTooLarge
        return _UPGRADE.sub(b"\r\nx-upgrade", head) if b"\nupgrade" in head.lower() else head

    def _take_chunks(self) -> bytes:
        """Return input up to a possible end of the body, so that nothing after the end goes with it."""
        rest, at = self._rest, self._at
        across = (self._last + rest[at : at + len(_END) - 1]).find(_END)  # an end whose start was already taken
        end = at + across - len(self._last) if across >= 0 else rest.find(_END, at)
        piece = self._give(len(rest) if across < 0 and end < 0 else end + len(_END))
        self._last = (self._last + piece[-len(_END) + 1 :])[-len(_END) + 1 :]
        return piece
