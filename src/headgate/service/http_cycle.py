"""HttpCycle: one HTTP/1.1 request and its response. It is uvicorn's, but for how it writes a response's head."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

# Header fields as ASGI wants them: names in lower case, and no control characters.
_FIELDS: Final = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9a-z]+: [^\x00-\x08\x0a-\x1f\x7f]*\r\n)*")


class HttpCycle(RequestResponseCycle):
    """A request and its response. Checks all header fields of a response at once, not one by one."""

    async def send(self, message: Any) -> None:
        if self.response_started or self.disconnected or self.flow.write_paused:
            await super().send(message)
            return
        if message["type"] != "http.response.start":
            raise RuntimeError(f"a response must begin with 'http.response.start', got {message['type']!r}")
        self.response_started = True
        self.waiting_for_100_continue = False
        self.transport.write(self._head(message["status"], message.get("headers", ())))

    def _head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the status line and header fields. Raises `RuntimeError` if a field is not valid."""
        fields = [*self.default_headers, *headers]
        lines = b"".join([b"%b: %b\r\n" % (name, value) for name, value in fields])
        if lines.count(b"\n") != len(fields) or _FIELDS.fullmatch(lines) is None:
            raise RuntimeError("the response has an invalid header field")
        found = dict(fields)
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
