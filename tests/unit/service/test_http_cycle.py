"""The head of an HTTP/1.1 response, and what is refused in one."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from headgate.service.http_cycle import HttpCycle


class Written:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    @property
    def data(self) -> bytes:
        return b"".join(self.writes)

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True


def respond(*messages: dict[str, Any], method: str = "GET", keep_alive: bool = True) -> Written:
    async def story() -> Written:
        written = Written()
        transport: Any = written
        log = logging.getLogger("test")
        scope: Any = {"method": method, "headers": []}
        cycle = HttpCycle(
            *(scope, transport, FlowControl(transport), log, log, False, [(b"date", b"now")], asyncio.Event()),
            expect_100_continue=False,
            keep_alive=keep_alive,
            on_response=lambda: None,
        )
        for message in messages:
            await cycle.send(message)
        return written

    return asyncio.run(story())


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": headers}


def body(text: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text, "more_body": more}


def test_a_body_of_known_length() -> None:
    written = respond(start((b"content-length", b"2"), (b"set-cookie", b"a"), (b"set-cookie", b"b")), body(b"hi"))
    assert written.data == (
        b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-length: 2\r\nset-cookie: a\r\nset-cookie: b\r\n\r\nhi"
    )
    assert not written.closed


def test_a_body_of_unknown_length_comes_in_chunks() -> None:
    written = respond(start(), body(b"hi", more=True), body(b""))
    assert written.data.endswith(b"\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n")


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
def test_a_response_that_has_no_body_has_no_chunks(method: str, status: int) -> None:
    written = respond(start(status=status), body(b""), method=method)
    assert written.data.startswith(b"HTTP/1.1 %d " % status)
    assert b"chunked" not in written.data


@pytest.mark.parametrize(
    ("keep_alive", "headers"), [(False, ()), (True, ((b"connection", b"close"),)), (True, ((b"connection", b"Close"),))]
)
def test_the_last_response_says_so_once_and_closes(keep_alive: bool, headers: Any) -> None:
    written = respond(start(*headers, (b"content-length", b"0")), body(b""), keep_alive=keep_alive)
    assert written.data.lower().count(b"connection: close\r\n") == 1
    assert written.closed


@pytest.mark.parametrize(
    "field",
    [
        (b"x", b"1\r\ny: 2"),
        (b"x", b"1\r\n"),
        (b"x", b"1\ny"),
        (b"x", b"\r"),
        (b"x", b"\0"),
        (b"x", b"\x7f"),
        (b"x\r\ny", b"1"),
        (b"x y", b"1"),
        (b"x:y", b"1"),
        (b"", b"1"),
    ],
)
def test_a_field_that_would_be_read_as_something_else_is_an_error(field: tuple[bytes, bytes]) -> None:
    with pytest.raises(RuntimeError, match="invalid header field"):
        respond(start(field))
    with pytest.raises(RuntimeError, match="invalid header field"):
        respond(start((b"a", b"b"), field, (b"c", b"d")))


def test_a_response_begins_with_its_start() -> None:
    with pytest.raises(RuntimeError, match="must begin"):
        respond(body(b"hi"))


def test_head_and_body_are_written_at_once() -> None:
    whole = respond(start((b"content-length", b"2")), body(b"hi"))
    assert len(whole.writes) == 1
    assert respond(start((b"content-length", b"2"))).writes == []  # ASGI: nothing before the body's first part
    parts = respond(start((b"content-length", b"4")), body(b"hi", more=True), body(b"ho"))
    assert parts.data.endswith(b"content-length: 4\r\n\r\nhiho")


def test_a_body_of_another_length_than_the_head_says_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="shorter"):
        respond(start((b"content-length", b"3")), body(b"hi"))
    with pytest.raises(RuntimeError, match="longer"):
        respond(start((b"content-length", b"1")), body(b"hi"))
