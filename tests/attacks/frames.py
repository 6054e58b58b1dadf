"""HTTP/2 frames and header blocks, written by hand: what no client library would send."""

from __future__ import annotations

import struct
from typing import Final

from hpack import Encoder

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
NO_ERROR, PROTOCOL_ERROR, _, FLOW_CONTROL_ERROR, _, STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL = range(9)
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11
INITIAL_WINDOW_SIZE: Final = 4

HEALTH: Final = "/grpc.health.v1.Health/Check"
LIST: Final = "/grpc.health.v1.Health/List"
CHECK: Final = "/headgate.v1.RateLimiter/CheckRateLimit"
EMPTY_MESSAGE: Final = b"\0\0\0\0\0"


def frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    return struct.pack(">L", len(payload))[1:] + struct.pack(">BBL", kind, flags, number) + payload


def fields(path: str = CHECK, *more: tuple[str, str]) -> list[tuple[str, str]]:
    """The header fields of a call."""
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "here"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *more,
    ]


def block(path: str = CHECK, *more: tuple[str, str]) -> bytes:
    """A header block that neither needs nor changes a table: it can be sent any number of times."""
    return b"".join(literal(name, value) for name, value in fields(path, *more))


def literal(name: str, value: str) -> bytes:
    """A header field that is in no table. Both are shorter than 127 bytes."""
    return b"\0%c%b%c%b" % (len(name), name.encode(), len(value), value.encode())


def indexed(path: str = CHECK, *more: tuple[str, str]) -> tuple[bytes, bytes]:
    """The header blocks of a first call, and of every one after it: a byte for each field."""
    encoder = Encoder()
    return encoder.encode(fields(path, *more)), encoder.encode(fields(path, *more))


def number(value: int) -> bytes:
    return struct.pack(">L", value)


def setting(name: int, value: int) -> bytes:
    return struct.pack(">HL", name, value)


def call(stream: int, path: str = HEALTH, message: bytes = EMPTY_MESSAGE) -> bytes:
    """A whole call."""
    return frame(HEADERS, END_HEADERS, stream, block(path)) + frame(DATA, END_STREAM, stream, message)


GREETING: Final = PREFACE + frame(SETTINGS, 0, 0)
