"""HttpCycle: one HTTP/1.1 request and its response. It is uvicorn's, but for how it writes a response."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

MAX_NAMES: Final = 1_024  # of header fields, to remember

_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")  # as ASGI wants it: in lower case
_PLAIN: Final = bytes(byte for byte in range(256) if byte == 9 or (byte > 31 and byte != 127))  # no control characters
_names: Final[set[bytes]] = set()  # that are valid


class HttpCycle(RequestResponseCycle):
    """A request and its response. Checks all header fields of a response at once, and sends them in one write with the
    first part of the body, before which ASGI servers should send nothing."""

    _unsent_head = b""  # waits for the first part of the body

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            if message["type"] != "http.response.start":
                raise RuntimeError(f"a response must begin with 'http.response.start', got {message['type']!r}")
            self.response_started = True
            self.waiting_for_100_continue = False
            self._unsent_head = self._head(message["status"], message.get("headers", ()))
            return
        head, self._unsent_head = self._unsent_head, b""
        if head and message["type"] == "http.response.body":
            body = message.get("body", b"")
            is_whole = not self.chunked_encoding and not message.get("more_body") and self.scope["method"] != "HEAD"
            if is_whole and len(body) == self.expected_content_length:
                self.transport.write(head + body)
                self._complete()
                return
            self.transport.write(head)
        await super().send(message)

    def _complete(self) -> None:
        """End the response."""
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the status line and header fields. Raises `RuntimeError` if a field is not valid."""
        fields = [*self.default_headers, *headers]
        lines = b"\r\n".join([*map(b": ".join, fields), b""])
        found = dict(fields)
        if lines.translate(None, _PLAIN) != b"\r\n" * len(fields) or not (found.keys() <= _names or _are_names(found)):
            raise RuntimeError("the response has an invalid header field")
        end = b"\r\n"
        if b"close" in found.get(b"connection", b"").lower():
            self.keep_alive = False
        elif not self.keep_alive:
            end = b"connection: close\r\n\r\n"
        length = found.get(b"content-length")
        if length is not None:
            self.expected_content_length = int(length)
            self.chunked_encoding = False
        elif b"transfer-encoding" in found:
            self.chunked_encoding = True
        elif self.scope["method"] != "HEAD" and status not in (204, 304):
            self.chunked_encoding = True
            end = b"transfer-encoding: chunked\r\n" + end
        return STATUS_LINE[status] + lines + end


def _are_names(names: Iterable[bytes]) -> bool:
    """Return whether these are valid names of header fields, and remember those that are."""
    for name in names:
        if _NAME.fullmatch(name) is None:
            return False
        if len(_names) < MAX_NAMES:
            _names.add(name)
    return True
