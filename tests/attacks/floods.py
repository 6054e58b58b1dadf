"""A megabyte of each kind of frame, in each state of a stream. Nobody who sends them has a token."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

from tests.attacks import frames
from tests.attacks.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    GREETING,
    HEADERS,
    HEALTH,
    INITIAL_WINDOW_SIZE,
    LIST,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    block,
    call,
    frame,
    literal,
    number,
    setting,
)

MEGABYTE: Final = 1_000_000
STREAMS: Final = 990  # calls at a time: a few less than a connection may have
NO_ROOM: Final = frame(SETTINGS, 0, 0, setting(INITIAL_WINDOW_SIZE, 0))
_RESET: Final = number(8)  # CANCEL

# How the attacker's connection is when the flood begins. The stream that the flood names is 1.
STATES: Final[dict[str, bytes]] = {
    "unsettled": PREFACE,
    "idle": GREETING,
    "open": GREETING + frame(HEADERS, END_HEADERS, 1, block(HEALTH)),
    "within a header block": GREETING + frame(HEADERS, 0, 1, b""),
    "answered": GREETING + call(1),
    "reset": GREETING + frame(HEADERS, END_HEADERS, 1, block(HEALTH)) + frame(RST_STREAM, 0, 1, _RESET),
    "refused": GREETING + frame(HEADERS, END_HEADERS, 1, block("/there/is/none")),
    "blocked by itself": PREFACE + NO_ROOM + b"".join(call(1 + 2 * one) for one in range(STREAMS)),
    "blocked by the connection": GREETING + b"".join(call(1 + 2 * one, LIST) for one in range(STREAMS)),
}

# Frames that are sent again and again, as they are.
REPEATED: Final[dict[str, bytes]] = {
    "DATA, empty": frame(DATA, 0, 1),
    "DATA, a byte": frame(DATA, 0, 1, b"\0"),
    "DATA, the end": frame(DATA, END_STREAM, 1),
    "DATA, padding": frame(DATA, PADDED, 1, b"\0"),
    "DATA, more padding": frame(DATA, PADDED, 1, b"\xff" + b"\0" * 255),
    "DATA, full": frame(DATA, 0, 1, b"\0" * 16_384),
    "HEADERS, the same stream": frame(HEADERS, END_HEADERS, 1, b"\x82"),
    "HEADERS, trailers": frame(HEADERS, END_HEADERS | END_STREAM, 1, b""),
    "PRIORITY": frame(PRIORITY, 0, 1, b"\0\0\0\3\0"),
    "PRIORITY, of another": frame(PRIORITY, 0, 2_001, b"\0\0\0\3\0"),
    "RST_STREAM": frame(RST_STREAM, 0, 1, _RESET),
    "SETTINGS, empty": frame(SETTINGS, 0, 0),
    "SETTINGS, a window": frame(SETTINGS, 0, 0, setting(INITIAL_WINDOW_SIZE, 0)),
    "SETTINGS, changing windows": frame(SETTINGS, 0, 0, setting(INITIAL_WINDOW_SIZE, 1))
    + frame(SETTINGS, 0, 0, setting(INITIAL_WINDOW_SIZE, 0)),
    "SETTINGS, full": frame(SETTINGS, 0, 0, setting(INITIAL_WINDOW_SIZE, 0) * 2_730),
    "SETTINGS, acknowledged": frame(SETTINGS, ACK, 0),
    "PUSH_PROMISE": frame(PUSH_PROMISE, END_HEADERS, 1, number(2)),
    "PING": frame(PING, 0, 0, b"12345678"),
    "PING, answered": frame(PING, ACK, 0, b"12345678"),
    "GOAWAY": frame(GOAWAY, 0, 0, number(0) * 2),
    "WINDOW_UPDATE, the connection": frame(WINDOW_UPDATE, 0, 0, number(1)),
    "WINDOW_UPDATE, the stream": frame(WINDOW_UPDATE, 0, 1, number(1)),
    "WINDOW_UPDATE, all streams": b"".join(frame(WINDOW_UPDATE, 0, 1 + 2 * one, number(1)) for one in range(STREAMS)),
    "CONTINUATION, empty": frame(CONTINUATION, 0, 1),
    "CONTINUATION, a byte": frame(CONTINUATION, 0, 1, b"\x82"),
    "unknown": frame(0x42, 0, 1),
    "unknown, full": frame(0x42, 0, 0, b"\0" * 16_384),
}


def repeated(unit: bytes, size: int = MEGABYTE) -> bytes:
    return unit * max(1, size // len(unit))


# Requests, each on a stream of its own. They begin a connection, and are a megabyte in all.


def _requests(make: Callable[[int], bytes], first: bytes = b"", begin: int = 1) -> Iterator[bytes]:
    yield GREETING + first
    sent = 0
    for stream in count(begin, 2):
        if sent > MEGABYTE:
            return
        unit = make(stream)
        sent += len(unit)
        yield unit


def _health_calls() -> Iterator[bytes]:
    first, again = frames.indexed(HEALTH)
    return _requests(
        lambda stream: frame(HEADERS, END_HEADERS, stream, again) + frame(DATA, END_STREAM, stream, b"\0" * 5),
        frame(HEADERS, END_HEADERS, 1, first) + frame(DATA, END_STREAM, 1, b"\0" * 5),
        3,
    )


def _opened(flags: int, path: str = HEALTH, *more: tuple[str, str], then: bytes = b"") -> Iterator[bytes]:
    first, again = frames.indexed(path, *more)

    def request(stream: int) -> bytes:
        opened = frame(HEADERS, END_HEADERS | flags, stream, again)
        return opened + then[:5] + number(stream) + then[9:] if then else opened

    return _requests(request, frame(HEADERS, END_HEADERS | flags, 1, first), 3)


def _table_changes() -> Iterator[bytes]:
    """Each block puts fields into the table, so that none means what it meant before."""
    more = b"".join(b"\x40\x01%c\x01x" % one for one in b"abcdefgh")
    return _requests(lambda stream: frame(HEADERS, END_HEADERS | END_STREAM, stream, block(HEALTH) + more))


def _varied(fields: bytes) -> Callable[[int], bytes]:
    """Requests whose header blocks differ, so that none is remembered."""
    return lambda stream: frame(HEADERS, END_HEADERS | END_STREAM, stream, fields + literal("n", str(stream)))


def _many_fields() -> Iterator[bytes]:
    """Each byte is a field of its own, from the table."""
    return _requests(_varied(b"\x83\x86\x84" + b"\x90" * 1_050))


def _as_many_fields_as_fit() -> Iterator[bytes]:
    return _requests(_varied(b"\x83\x86\x84" + b"\x90" * 240))


def _bomb() -> Iterator[bytes]:
    """Each byte is a field of four kilobytes."""
    first = b"\x40\x01x" + _length(4_000) + b"y" * 4_000
    return _requests(
        _varied(block(HEALTH) + b"\xbe" * 15),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, block(HEALTH) + first),
        3,
    )


def _huffman() -> Iterator[bytes]:
    """Text that takes long to read."""
    text = b"\x18\xc6\x31\x8c\x63" * 3_200  # each character is five bits
    fields = block(HEALTH) + b"\0\x01x" + _length(len(text), 0x80) + text
    return _requests(_varied(fields))


def _length(value: int, mark: int = 0) -> bytes:
    """A length from 127 to 16,510, as header blocks have it."""
    value -= 127
    return bytes((mark | 127, value & 127 | 128, value >> 7))


def _table_sizes() -> Iterator[bytes]:
    return _requests(_varied(b"\x20\x3f\xe1\x1f" * 100))


def _compressed() -> Iterator[bytes]:
    """Messages that are a thousand times as large as they look."""
    message = gzip.compress(b"\0" * 4_000_000, mtime=0)
    body = b"\1" + number(len(message)) + message
    opened = block(HEALTH, ("grpc-encoding", "gzip"))
    return _requests(lambda stream: frame(HEADERS, END_HEADERS, stream, opened) + frame(DATA, END_STREAM, stream, body))


def _parts() -> Iterator[bytes]:
    """Header blocks in many parts."""
    whole = block(HEALTH)
    return _requests(
        lambda stream: (
            frame(HEADERS, END_STREAM, stream, whole)
            + frame(CONTINUATION, 0, stream) * 60
            + frame(CONTINUATION, END_HEADERS, stream)
        )
    )


REQUESTS: Final[dict[str, Callable[[], Iterator[bytes]]]] = {
    "health calls": _health_calls,
    "calls without a token": lambda: _opened(0, frames.CHECK, then=frame(DATA, END_STREAM, 1, b"\0" * 5)),
    "calls with bad tokens": lambda: _opened(
        0, frames.CHECK, ("authorization", "Bearer no"), then=frame(DATA, END_STREAM, 1, b"\0" * 5)
    ),
    "calls without a message": lambda: _opened(END_STREAM),
    "calls that are never finished": lambda: _opened(0),
    "calls taken back at once": lambda: _opened(0, then=frame(RST_STREAM, 0, 1, _RESET)),
    "calls ended by a bad window": lambda: _opened(0, then=frame(WINDOW_UPDATE, 0, 1, number(0))),
    "methods that there are not": lambda: _opened(0, "/there/is/none"),
    "what is no call": lambda: _requests(lambda stream: frame(HEADERS, 5, stream, b"\x82\x86\x84\x41\x01x")),
    "what makes no sense": lambda: _requests(lambda stream: frame(HEADERS, 5, stream, b"\x84")),
    "blocks that change the table": _table_changes,
    "many fields": _many_fields,
    "as many fields as fit": _as_many_fields_as_fit,
    "compressed messages": _compressed,
    "large fields": _bomb,
    "text that takes long to read": _huffman,
    "table sizes": _table_sizes,
    "blocks in many parts": _parts,
}
