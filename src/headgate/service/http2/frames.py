"""HTTP/2 frames: their numbers and their wire format. All names are those of RFC 9113."""

from __future__ import annotations

from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # the first bytes that a client sends

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20  # HEADERS with a priority

NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
FLOW_CONTROL_ERROR: Final = 0x3
STREAM_CLOSED: Final = 0x5
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
COMPRESSION_ERROR: Final = 0x9
ENHANCE_YOUR_CALM: Final = 0xB

ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME: Final = 16_384  # the largest payload unless settings change it; ours do not
LARGEST_FRAME: Final = 2**24 - 1
LARGEST_WINDOW: Final = 2**31 - 1
LARGEST_STREAM: Final = 2**31 - 1
HEAD_SIZE: Final = 9

HEAD: Final = Struct(">HBBBL")  # length (upper 16 bits, lower 8 bits), kind, flags, stream
NUMBER: Final = Struct(">L")
SETTING: Final = Struct(">HL")
_GOAWAY: Final = Struct(">LL")


class ProtocolError(Exception):
    """The client broke the protocol in a way that ends the connection."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(what)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    size = len(payload)
    return HEAD.pack(size >> 8, size & 255, kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    """Return a frame of settings."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(name, value) for name, value in values.items()))


def window_update(stream: int, more: int) -> bytes:
    """Return a frame that lets the peer send `more` bytes."""
    return frame(WINDOW_UPDATE, 0, stream, NUMBER.pack(more))


def rst_stream(stream: int, code: int) -> bytes:
    """Return a frame that ends a stream."""
    return frame(RST_STREAM, 0, stream, NUMBER.pack(code))


def goaway(last: int, code: int, what: str = "") -> bytes:
    """Return a GOAWAY frame: streams above `last` were not and will not be processed."""
    return frame(GOAWAY, 0, 0, _GOAWAY.pack(last, code) + what.encode("ascii", "replace"))


def strip_padding(flags: int, payload: bytes) -> bytes:
    """Return the payload of a frame without its padding. Raises `ProtocolError`."""
    if not flags & PADDED:
        return payload
    if not payload:
        raise ProtocolError(FRAME_SIZE_ERROR, "a padded frame without a length of padding")
    padding = payload[0]
    if padding >= len(payload):
        raise ProtocolError(PROTOCOL_ERROR, "padding as long as its frame")
    return payload[1 : len(payload) - padding]


def block(flags: int, stream: int, payload: bytes) -> bytes:
    """Return the header block of a HEADERS frame, without padding and priority. Raises `ProtocolError`."""
    payload = strip_padding(flags, payload)
    if not flags & PRIORITISED:
        return payload
    if len(payload) < 5:  # a stream, and a weight
        raise ProtocolError(FRAME_SIZE_ERROR, "HEADERS that are too short for their priority")
    if NUMBER.unpack_from(payload)[0] & LARGEST_STREAM == stream:
        raise ProtocolError(PROTOCOL_ERROR, "a stream that depends on itself")
    return payload[5:]


def read_settings(payload: bytes) -> dict[int, int]:
    """Return the values of a SETTINGS frame; if a setting comes twice, the last value. Raises `ProtocolError`."""
    if len(payload) % SETTING.size:
        raise ProtocolError(FRAME_SIZE_ERROR, "SETTINGS of the wrong size")
    values = dict(SETTING.iter_unpack(payload))
    if values.get(INITIAL_WINDOW_SIZE, 0) > LARGEST_WINDOW:
        raise ProtocolError(FLOW_CONTROL_ERROR, "a window that is too large")
    if not DEFAULT_FRAME <= values.get(MAX_FRAME_SIZE, DEFAULT_FRAME) <= LARGEST_FRAME:
        raise ProtocolError(PROTOCOL_ERROR, "a frame size that is not allowed")
    if values.get(ENABLE_PUSH, 0) > 1:
        raise ProtocolError(PROTOCOL_ERROR, "a push setting that is not allowed")
    return values


def increment(payload: bytes) -> int:
    """Return the number of bytes that a WINDOW_UPDATE adds. Raises `ProtocolError`."""
    if len(payload) != NUMBER.size:
        raise ProtocolError(FRAME_SIZE_ERROR, "WINDOW_UPDATE of the wrong size")
    more: int = NUMBER.unpack(payload)[0] & LARGEST_WINDOW
    return more
