"""The rules of HTTP/2 (RFC 9113), by section, as h2spec tests them: those that apply where only gRPC is spoken.

docs/reference/grpc.md says which do not.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import pytest

from headgate import Rule
from tests.acceptance.apps.service_grpc import Serving, serving
from tests.attacks.frames import (
    ACK,
    CHECK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    GREETING,
    HEADERS,
    HEALTH,
    INITIAL_WINDOW_SIZE,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    block,
    call,
    frame,
    literal,
    number,
    setting,
)
from tests.attacks.victim import split

STUCK = 30.0
ANY = (PROTOCOL_ERROR, STREAM_CLOSED)
OPEN = frame(HEADERS, END_HEADERS, 1, block(HEALTH))
ENDED = frame(HEADERS, END_HEADERS | END_STREAM, 1, block(HEALTH))
REFUSED = frame(HEADERS, END_HEADERS, 1, block("/there/is/none"))
RESET = frame(RST_STREAM, 0, 1, number(8))
NO_ROOM = frame(SETTINGS, 0, 0, setting(INITIAL_WINDOW_SIZE, 0))
PONG = b"rules..."
ASK = frame(PING, 0, 0, PONG)


class Answer(NamedTuple):
    """What came back, until the server hung up or answered the ping."""

    goaway: int | None
    resets: dict[int, int]
    frames: list[tuple[int, int, int, bytes]]

    @property
    def ponged(self) -> bool:
        return (PING, ACK, 0, PONG) in self.frames


@pytest.fixture(scope="module")
def served() -> Iterator[Serving]:
    with serving([Rule(id="many", quota="1000000/day")]) as started:
        yield started


def answer_to(served: Serving, sent: bytes, *, greeting: bytes = GREETING) -> Answer:
    host, port = served.address.split(":")
    received = b""
    frames: list[tuple[int, int, int, bytes]] = []
    with socket.create_connection((host, int(port)), timeout=STUCK) as client, suppress(ConnectionError):
        client.sendall(greeting + sent + ASK)
        while (PING, ACK, 0, PONG) not in frames or GOAWAY in [kind for kind, *_ in frames]:
            more = client.recv(65_536)
            if not more:
                break
            received += more
            frames, _ = split(received)
    told = [struct.unpack_from(">L", payload, 4)[0] for kind, _, _, payload in frames if kind == GOAWAY]
    resets = {stream: int.from_bytes(payload, "big") for kind, _, stream, payload in frames if kind == RST_STREAM}
    return Answer(told[-1] if told else None, resets, frames)


CONNECTION_ERRORS = [
    ("3.4 preface", b"", PROTOCOL_ERROR),
    ("4.1 a frame on a stream that is not open", frame(DATA, 0, 3, b"x"), PROTOCOL_ERROR),
    ("4.2 a frame that is too large", OPEN + frame(DATA, 0, 1, b"\0" * 16_385), FRAME_SIZE_ERROR),
    ("4.2 headers that are too large", frame(HEADERS, 5, 1, b"\0" * 16_385), FRAME_SIZE_ERROR),
    ("4.3 a block that cannot be read", frame(HEADERS, 5, 1, b"\0\x85\xf2\xb2\x4a\x84\xff\x87"), COMPRESSION_ERROR),
    ("4.3 another frame within a block", frame(HEADERS, 1, 1, block()) + ASK, PROTOCOL_ERROR),
    ("4.3 another stream within a block", frame(HEADERS, 1, 1, block()) + frame(HEADERS, 5, 3), PROTOCOL_ERROR),
    ("5.1 idle: DATA", frame(DATA, 1, 1, b"x"), PROTOCOL_ERROR),
    ("5.1 idle: RST_STREAM", RESET, PROTOCOL_ERROR),
    ("5.1 idle: WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 1, number(1)), PROTOCOL_ERROR),
    ("5.1 idle: CONTINUATION", frame(CONTINUATION, 4, 1, block()), PROTOCOL_ERROR),
    ("5.1 half closed: DATA", NO_ROOM + call(1) + frame(DATA, 1, 1, b"x"), STREAM_CLOSED),
    ("5.1 half closed: HEADERS", NO_ROOM + call(1) + ENDED, STREAM_CLOSED),
    ("5.1 half closed: CONTINUATION", NO_ROOM + call(1) + frame(CONTINUATION, 4, 1, block()), ANY),
    ("5.1 reset: DATA", OPEN + RESET + frame(DATA, 1, 1, b"x"), STREAM_CLOSED),
    ("5.1 reset: HEADERS", OPEN + RESET + ENDED, STREAM_CLOSED),
    ("5.1 reset: CONTINUATION", OPEN + RESET + frame(CONTINUATION, 4, 1, block()), ANY),
    ("5.1 closed: DATA", ENDED + frame(DATA, 1, 1, b"x"), STREAM_CLOSED),
    ("5.1 closed: HEADERS", ENDED + ENDED, STREAM_CLOSED),
    ("5.1 closed: CONTINUATION", ENDED + frame(CONTINUATION, 4, 1, block()), ANY),
    ("5.1.1 an even number", frame(HEADERS, 5, 2, block()), PROTOCOL_ERROR),
    ("5.1.1 a lower number", frame(HEADERS, 5, 5, block()) + frame(HEADERS, 5, 3, block()), ANY),
    ("5.3.1 HEADERS depend on themselves", frame(HEADERS, 0x25, 1, number(1) + b"\xff" + block()), PROTOCOL_ERROR),
    ("5.3.1 PRIORITY depends on itself", frame(PRIORITY, 0, 1, number(1) + b"\xff"), PROTOCOL_ERROR),
    ("5.3.1 PRIORITY depends on itself, exclusively", frame(PRIORITY, 0, 1, number(2**31 + 1) + b"\0"), PROTOCOL_ERROR),
    ("5.5 an unknown frame within a block", frame(HEADERS, 1, 1, block()) + frame(0xFF, 0, 1), PROTOCOL_ERROR),
    ("6.1 DATA of no stream", frame(DATA, 1, 0, b"x"), PROTOCOL_ERROR),
    ("6.1 padding as long as its frame", OPEN + frame(DATA, PADDED | 1, 1, b"\x05abcd"), PROTOCOL_ERROR),
    ("6.1 bad padding on a closed stream", REFUSED + frame(DATA, PADDED | 1, 1, b"\x05abcd"), PROTOCOL_ERROR),
    ("6.1 padding without a length", REFUSED + frame(DATA, PADDED | 1, 1), FRAME_SIZE_ERROR),
    ("6.2 HEADERS of no stream", frame(HEADERS, 5, 0, block()), PROTOCOL_ERROR),
    ("6.2 padding as long as its frame", frame(HEADERS, PADDED | 5, 1, b"\xff" + block()), PROTOCOL_ERROR),
    ("6.3 PRIORITY of no stream", frame(PRIORITY, 0, 0, number(1) + b"\0"), PROTOCOL_ERROR),
    ("6.3 PRIORITY of another size", OPEN + frame(PRIORITY, 0, 1, b"\0\0\0\1"), FRAME_SIZE_ERROR),
    ("6.4 RST_STREAM of no stream", frame(RST_STREAM, 0, 0, number(8)), PROTOCOL_ERROR),
    ("6.4 RST_STREAM of another size", OPEN + frame(RST_STREAM, 0, 1, b"\0\0\0"), FRAME_SIZE_ERROR),
    ("6.5 an acknowledgement with settings", frame(SETTINGS, ACK, 0, setting(1, 1)), FRAME_SIZE_ERROR),
    ("6.5 SETTINGS of a stream", frame(SETTINGS, 0, 1, setting(3, 100)), PROTOCOL_ERROR),
    ("6.5 SETTINGS of another size", frame(SETTINGS, 0, 0, b"\0\3\0"), FRAME_SIZE_ERROR),
    ("6.5.2 ENABLE_PUSH", frame(SETTINGS, 0, 0, setting(2, 2)), PROTOCOL_ERROR),
    ("6.5.2 INITIAL_WINDOW_SIZE", frame(SETTINGS, 0, 0, setting(4, 2**31)), FLOW_CONTROL_ERROR),
    ("6.5.2 MAX_FRAME_SIZE, too small", frame(SETTINGS, 0, 0, setting(5, 16_383)), PROTOCOL_ERROR),
    ("6.5.2 MAX_FRAME_SIZE, too large", frame(SETTINGS, 0, 0, setting(5, 2**24)), PROTOCOL_ERROR),
    ("6.6 PUSH_PROMISE", frame(PUSH_PROMISE, 4, 1, number(2) + block()), PROTOCOL_ERROR),
    ("6.7 PING of a stream", frame(PING, 0, 1, PONG), PROTOCOL_ERROR),
    ("6.7 PING of another size", frame(PING, 0, 0, b"short"), FRAME_SIZE_ERROR),
    ("6.8 GOAWAY of a stream", frame(GOAWAY, 0, 1, number(0) * 2), PROTOCOL_ERROR),
    ("6.9 WINDOW_UPDATE by 0", frame(WINDOW_UPDATE, 0, 0, number(0)), PROTOCOL_ERROR),
    ("6.9 WINDOW_UPDATE of another size", frame(WINDOW_UPDATE, 0, 0, b"\0\0\1"), FRAME_SIZE_ERROR),
    ("6.9 WINDOW_UPDATE by 0, closed", ENDED + frame(WINDOW_UPDATE, 0, 1, number(0)), PROTOCOL_ERROR),
    ("6.9.1 a window beyond the largest", frame(WINDOW_UPDATE, 0, 0, number(2**31 - 1)) * 2, FLOW_CONTROL_ERROR),
    (
        "6.9.2 a setting that makes a window too large",
        OPEN + frame(WINDOW_UPDATE, 0, 1, number(1)) + frame(SETTINGS, 0, 0, setting(4, 2**31 - 1)),
        FLOW_CONTROL_ERROR,
    ),
    ("6.10 CONTINUATION of another stream", frame(HEADERS, 1, 1, b"") + frame(CONTINUATION, 4, 3), PROTOCOL_ERROR),
    ("6.10 CONTINUATION of no stream", frame(HEADERS, 1, 1, b"") + frame(CONTINUATION, 4, 0), PROTOCOL_ERROR),
    ("6.10 CONTINUATION behind the end", ENDED + frame(CONTINUATION, 4, 1), PROTOCOL_ERROR),
    ("6.10 CONTINUATION behind DATA", OPEN + frame(DATA, 0, 1, b"x") + frame(CONTINUATION, 4, 1), PROTOCOL_ERROR),
    ("8.1 second HEADERS that do not end", OPEN + frame(HEADERS, 4, 1, literal("x", "y")), PROTOCOL_ERROR),
    ("8.1 second HEADERS, refused", REFUSED + frame(HEADERS, 4, 1, literal("x", "y")), PROTOCOL_ERROR),
    (
        "8.1.1 a body that is too long, refused",
        frame(HEADERS, 4, 1, block("/no", ("content-length", "1"))) + frame(DATA, 1, 1, b"test"),
        PROTOCOL_ERROR,
    ),
    (
        "8.3 pseudo fields as trailers, refused",
        REFUSED + frame(HEADERS, 5, 1, literal(":method", "GET")),
        PROTOCOL_ERROR,
    ),
    ("HPACK 2.3.3 an index that there is not", frame(HEADERS, 5, 1, b"\xff\x00"), COMPRESSION_ERROR),
    ("HPACK 4.2 a table size behind a field", frame(HEADERS, 5, 1, b"\x82\x3f\xe1\x1f"), COMPRESSION_ERROR),
    (
        "HPACK 5.2 padding of more than seven bits",
        frame(HEADERS, 5, 1, b"\0\x85\xf2\xb2\x4a\x84\xff\xff\xff"),
        COMPRESSION_ERROR,
    ),
    ("HPACK 6.1 the index 0", frame(HEADERS, 5, 1, b"\x80"), COMPRESSION_ERROR),
    ("HPACK 6.3 a table that is too large", frame(HEADERS, 5, 1, b"\x3f\xe2\x1f"), COMPRESSION_ERROR),
]


@pytest.mark.parametrize(
    ("sent", "code"), [row[1:] for row in CONNECTION_ERRORS], ids=[row[0] for row in CONNECTION_ERRORS]
)
def test_what_ends_the_connection(served: Serving, sent: bytes, code: int | tuple[int, ...]) -> None:
    greeting = GREETING if sent else b"INVALID CONNECTION PREFACE\r\n\r\n"
    answer = answer_to(served, sent, greeting=greeting)
    assert answer.goaway in ((code,) if isinstance(code, int) else code)


def body(*parts: bytes) -> bytes:
    return b"".join(frame(DATA, END_STREAM if part is parts[-1] else 0, 1, part) for part in parts)


LONG = block(HEALTH, ("content-length", "1"))
STREAM_ERRORS = [
    ("6.9 WINDOW_UPDATE by 0", OPEN + frame(WINDOW_UPDATE, 0, 1, number(0)), PROTOCOL_ERROR),
    ("6.9.1 beyond the largest", OPEN + frame(WINDOW_UPDATE, 0, 1, number(2**31 - 1)), FLOW_CONTROL_ERROR),
    ("8.1.1 content-length, one frame", frame(HEADERS, 4, 1, LONG) + body(b"test"), PROTOCOL_ERROR),
    ("8.1.1 content-length, two frames", frame(HEADERS, 4, 1, LONG) + body(b"t", b"est"), PROTOCOL_ERROR),
    ("8.1.1 content-length, too short", frame(HEADERS, 4, 1, LONG) + frame(DATA, 1, 1), PROTOCOL_ERROR),
    ("8.1.1 content-length, no body", frame(HEADERS, 5, 1, LONG), PROTOCOL_ERROR),
    (
        "8.1.1 content-length, trailers",
        frame(HEADERS, 4, 1, LONG) + frame(HEADERS, 5, 1, literal("x", "y")),
        PROTOCOL_ERROR,
    ),
    ("8.1.1 content-length, no number", frame(HEADERS, 4, 1, block(HEALTH, ("content-length", "-1"))), PROTOCOL_ERROR),
    (
        "8.1.1 content-length, twice",
        frame(HEADERS, 4, 1, block(HEALTH, ("content-length", "5"), ("content-length", "6"))),
        PROTOCOL_ERROR,
    ),
    ("8.2.1 upper case", frame(HEADERS, 5, 1, block(HEALTH, ("X-TEST", "ok"))), PROTOCOL_ERROR),
    ("8.2.2 connection", frame(HEADERS, 5, 1, block(HEALTH, ("connection", "keep-alive"))), PROTOCOL_ERROR),
    ("8.2.2 te", frame(HEADERS, 5, 1, block(HEALTH, ("te", "gzip"))), PROTOCOL_ERROR),
    ("8.3 unknown pseudo field", frame(HEADERS, 5, 1, literal(":test", "ok") + block(HEALTH)), PROTOCOL_ERROR),
    ("8.3 a field of responses", frame(HEADERS, 5, 1, literal(":status", "200") + block(HEALTH)), PROTOCOL_ERROR),
    ("8.3 a pseudo field behind others", frame(HEADERS, 5, 1, block(HEALTH, (":path", "/"))), PROTOCOL_ERROR),
    ("8.3 pseudo fields as trailers", OPEN + frame(HEADERS, 5, 1, literal(":method", "GET")), PROTOCOL_ERROR),
    ("8.3.1 an empty path", frame(HEADERS, 5, 1, block("")), PROTOCOL_ERROR),
    ("8.3.1 no method", frame(HEADERS, 5, 1, block(HEALTH)[15:]), PROTOCOL_ERROR),
    ("8.3.1 two methods", frame(HEADERS, 5, 1, literal(":method", "POST") + block(HEALTH)), PROTOCOL_ERROR),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "code"), [row[1:] for row in STREAM_ERRORS], ids=[row[0] for row in STREAM_ERRORS])
def test_what_ends_a_stream(served: Serving, sent: bytes, code: int) -> None:
    answer = answer_to(served, sent)
    assert (answer.goaway, answer.resets, answer.ponged) == (None, {1: code}, True)


PASSED = [
    ("4.1 unknown flags", frame(PING, 0x16, 0, b"12345678")),
    ("4.1 the reserved bit", frame(PING, 0, 2**31, b"12345678")),
    ("5.1 closed: PRIORITY", ENDED + frame(PRIORITY, 0, 1, number(3) + b"\0")),
    ("5.1 closed: WINDOW_UPDATE, RST_STREAM", ENDED + frame(WINDOW_UPDATE, 0, 1, number(1)) + RESET),
    ("5.1 refused: DATA and trailers", REFUSED + frame(DATA, 0, 1, b"late") + frame(HEADERS, 5, 1, literal("x", "y"))),
    ("5.3 PRIORITY of an idle stream", frame(PRIORITY, 0, 7, number(3) + b"\0")),
    ("5.5 an unknown frame", frame(0xFF, 0xFF, 0, b"whatever")),
    ("6.5.2 an unknown setting", frame(SETTINGS, 0, 0, setting(0xFF, 1))),
    ("6.7 an answer to no ping", frame(PING, ACK, 0, b"12345678")),
    ("6.8 GOAWAY", frame(GOAWAY, 0, 0, number(0) * 2)),
    ("6.10 parts of a block", frame(HEADERS, 1, 1, block()[:9]) + frame(CONTINUATION, 0, 1, block()[9:20])
     + frame(CONTINUATION, 4, 1, block()[20:])),
]  # fmt: skip


@pytest.mark.parametrize("sent", [row[1] for row in PASSED], ids=[row[0] for row in PASSED])
def test_what_is_allowed(served: Serving, sent: bytes) -> None:
    answer = answer_to(served, sent)
    assert (answer.goaway, answer.ponged) == (None, True)
    assert set(answer.resets.values()) <= {0}  # a request that was answered before it ended


def test_5_1_2_more_streams_than_are_allowed(served: Serving) -> None:
    opened = b"".join(frame(HEADERS, END_HEADERS, 1 + 2 * one, block(CHECK)) for one in range(1_001))
    assert answer_to(served, opened).resets == {2_001: REFUSED_STREAM}


def test_6_9_2_a_window_may_become_negative(served: Serving) -> None:
    """What is no call is answered with a text, and its window counts."""
    get = frame(HEADERS, 5, 1, literal(":method", "GET") + literal(":scheme", "http") + literal(":path", "/"))
    room = [
        frame(SETTINGS, 0, 0, setting(INITIAL_WINDOW_SIZE, 3)) + get,
        frame(SETTINGS, 0, 0, setting(INITIAL_WINDOW_SIZE, 2)) + frame(WINDOW_UPDATE, 0, 1, number(2)),
    ]
    first = answer_to(served, room[0])
    assert [payload for kind, _, _, payload in first.frames if kind == DATA] == [b"Thi"]
    host, port = served.address.split(":")
    with socket.create_connection((host, int(port)), timeout=STUCK) as client:
        client.sendall(PREFACE + room[0] + ASK)
        received = b""
        for more in (room[1] + frame(PING, 0, 0, b"second.."), b""):
            while (b"rules..." if more else b"second..") not in received:
                received += client.recv(65_536)
            client.sendall(more)
        assert [payload for kind, _, _, payload in split(received)[0] if kind == DATA] == [b"Thi", b"s"]
