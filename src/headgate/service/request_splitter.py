"""RequestSplitter: finds where HTTP/1.1 requests begin and end in what a client sends. Pure: knows no sockets.

Clients may send requests one behind the other, without waiting for answers. The parser would take all of them at once;
this gives it one at a time, so that each is answered before the next is looked at, and a mistake in one is not taken
for a mistake in those before it.

The parser also gives up on a request that offers to go on in another protocol (`Upgrade`), as Java's and curl's do with
HTTP/2: it would take the request's body for that protocol. We speak no other, so that header field gets another name.
"""

from __future__ import annotations

import re
from typing import Final

MAX_HEAD: Final = 64 * 1024  # bytes
MAX_FIELDS: Final = 256  # header fields of a request

_END: Final = b"\r\n\r\n"  # of a head, and of a body in chunks
_UPGRADE: Final = re.compile(rb"\r\nupgrade(?=[ \t]*:)", re.IGNORECASE)
_BEGINNING: Final = re.compile(rb"[A-Z-]{0,20}(?: [^\r\n]*(?:\r|$)|$)")  # as far as it is here


class HeadTooLarge(Exception):
    """The head of a request is too large."""


class RequestSplitter:
    """Belongs to one connection. `feed` takes what comes; `take` gives the parser its next piece.

    The parser reports what a piece was: the end of a head (`begin_body`), or of a request (`end`).
    """

    __slots__ = ("_at", "_last", "_left", "_rest", "_searched", "ends_with_empty_lines")

    def __init__(self) -> None:
        self._rest = b""
        self._at = 0  # where in `_rest` what was not given away begins
        self._searched = 0  # up to where in `_rest` there is no end of a head
        self._left: int | None = 0  # bytes of a body that are to come; None: it comes in chunks; 0: there is none
        self._last = b""  # of a body in chunks: the last bytes that were given away
        self.ends_with_empty_lines = False  # before a request: it has begun, though there is nothing of it

    def __len__(self) -> int:
        """How many bytes wait."""
        return len(self._rest) - self._at

    @property
    def in_head(self) -> bool:
        return self._left == 0

    def feed(self, data: bytes) -> None:
        self.ends_with_empty_lines = False
        self._searched = max(0, self._searched - self._at)
        self._rest = self._rest[self._at :] + data if len(self) else data
        self._at = 0

    def begin_body(self, length: int | None) -> None:
        """The head was read: a body follows, of so many bytes, or in chunks."""
        self._left = length
        self._last = b""

    def end(self) -> None:
        """The request is over."""
        self._left = 0

    def clear(self) -> None:
        """Forget what waits."""
        self._rest, self._at, self._searched, self._left = b"", 0, 0, 0

    def take(self) -> bytes:
        """Return the next piece: never more than what belongs to one request; empty if more has to come first.

        Raises `HeadTooLarge`.
        """
        if not len(self):
            return b""
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
        return piece

    def _take_head(self) -> bytes:
        rest = self._rest
        while rest[self._at : self._at + 1] in (b"\r", b"\n"):  # empty lines before a request mean nothing
            self._at += 1
            self.ends_with_empty_lines = self._at == len(rest)
        end = rest.find(_END, max(self._at, self._searched))
        if end < 0:
            if len(self) > MAX_HEAD:
                raise HeadTooLarge
            if _BEGINNING.match(rest, self._at) is None:
                return self._give(len(rest))  # for the parser to say what is wrong with it
            self._searched = len(rest) - len(_END) + 1
            return b""
        head = self._give(end + len(_END))
        if len(head) > MAX_HEAD or head.count(b"\r\n") > MAX_FIELDS + 2:
            raise HeadTooLarge
        return _UPGRADE.sub(b"\r\nx-upgrade", head) if b"\nupgrade" in head.lower() else head

    def _take_chunks(self) -> bytes:
        """Up to what may be the end of the body: so nothing behind the end is given away with it."""
        rest, at = self._rest, self._at
        across = (self._last + rest[at : at + len(_END) - 1]).find(_END)  # an end of which some was given away
        end = at + across - len(self._last) if across >= 0 else rest.find(_END, at)
        piece = self._give(len(rest) if across < 0 and end < 0 else end + len(_END))
        self._last = (self._last + piece[-len(_END) + 1 :])[-len(_END) + 1 :]
        return piece
