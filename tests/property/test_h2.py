"""Whatever a client sends, in whatever pieces: the server's side of HTTP/2 keeps to the protocol, and to itself."""

from __future__ import annotations

import asyncio
import struct
from functools import partial
from typing import Any

from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from headgate import AsyncLimiter, Rule
from headgate.service.access import Access
from headgate.service.data_plane import DataPlane
from headgate.service.grpc.call import CallContext, call_of
from headgate.service.grpc.call_headers import CallHeadersReader, MethodRoute
from headgate.service.http2.connection import Connection
from headgate.service.http2.hub import App, Hub
from headgate.service.protos import rate_limiter_pb2 as rl
from headgate.service.rpc.rate_limiter import RateLimiter
from headgate.stores.memory import MemoryStore
from headgate.telemetry.meter import Meter
from headgate.testing import FakeClock
from tests.property.strategies import examples

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
PATH = "/headgate.v1.RateLimiter/CheckRateLimit"
FIELDS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)


class Wire:
    """What a connection writes to. It keeps everything."""

    def __init__(self) -> None:
        self.sent = b""
        self.closing = False

    def write(self, data: bytes) -> None:
        assert not self.closing
        self.sent += data

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    close = abort

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, _: str) -> None:
        return None


def frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    return struct.pack(">L", len(payload))[1:] + struct.pack(">BBL", kind, flags, number) + payload


def message(identifier: str) -> bytes:
    body = rl.CheckRequest(identifier=identifier).SerializeToString()
    return struct.pack(">BL", 0, len(body)) + body


BLOCK = Encoder().encode(FIELDS)
numbers = st.sampled_from((1, 1, 3, 5, 7, 9, 0, 2))
windows = st.sampled_from((0, 1, 10, 65_535, 1 << 20, 2**31 - 1)).map(lambda size: struct.pack(">L", size))
calls = st.builds(
    lambda number, name: frame(HEADERS, 4, number, BLOCK) + frame(DATA, 1, number, message(name)),
    numbers,
    st.sampled_from(("ann", "bob", "x" * 1_000)),
)
frames = st.one_of(
    calls,
    calls,
    st.builds(frame, st.just(HEADERS), st.sampled_from((0, 1, 4, 5, 12)), numbers, st.just(BLOCK)),
    st.builds(frame, st.just(CONTINUATION), st.sampled_from((0, 4)), numbers, st.sampled_from((b"", BLOCK[:3]))),
    st.builds(
        frame, st.just(DATA), st.sampled_from((0, 1, 8)), numbers, st.sampled_from((b"", message("c"), b"\2ab\0\0"))
    ),
    st.builds(frame, st.just(WINDOW_UPDATE), st.just(0), numbers, windows),
    st.builds(frame, st.just(SETTINGS), st.just(0), st.just(0), windows.map(lambda size: b"\0\4" + size)),
    st.builds(frame, st.just(RST_STREAM), st.just(0), numbers, st.just(b"\0\0\0\x08")),
    st.builds(frame, st.integers(0, 12), st.integers(0, 255), numbers, st.binary(max_size=20)),
)
scripts = st.lists(frames, max_size=12)


async def heard(pieces: list[bytes]) -> tuple[bytes, int]:
    """What a server says to that, and how much was charged."""
    clock = FakeClock(1_700_000_000.0)
    store = MemoryStore(clock=clock)
    limiter = AsyncLimiter([Rule(id="users", quota="100000/day fixed_window")], store=store, clock=clock)
    service = RateLimiter(DataPlane(limiter))
    routes = {PATH.encode(): MethodRoute("CheckRateLimit", service.methods["CheckRateLimit"], "grpc")}
    context = CallContext(Access(), Meter(), None, 4_096)
    hub = Hub(10)
    wire: Any = Wire()
    connection = Connection(App(CallHeadersReader(routes), partial(call_of, context), 8_192), hub)
    connection.connection_made(wire)
    for piece in pieces:
        if not wire.closing:
            connection.data_received(piece)
        while hub.scheduler._waiting:  # noqa: ASYNC110 - on a busy machine, there may be turns left
            await asyncio.sleep(0)
    connection.connection_lost(None)
    assert hub.held == 0
    assert not hub.connections
    left = [await limiter.peek(name) for name in ("ann", "bob", "x" * 1_000, "c")]
    return wire.sent, sum(100_000 - one.remaining for one in left)


def split(sent: bytes) -> list[tuple[int, int, int, bytes]]:
    told = []
    while sent:
        size = int.from_bytes(sent[:3], "big")
        kind, flags, number = struct.unpack_from(">BBL", sent, 3)
        assert len(sent) >= 9 + size
        told.append((kind, flags, number, sent[9 : 9 + size]))
        sent = sent[9 + size :]
    return told


def is_no_bad_window(one: bytes) -> bool:
    """Whether it is no change of a window that may be an error or not, by whether a stream has gone on before it."""
    return one[3] not in (SETTINGS, WINDOW_UPDATE) or one[-4:] in (b"\0\0\0\x01", b"\0\0\0\x0a", b"\0\0\xff\xff")


@examples(300)
@given(script=st.lists(frames.filter(is_no_bad_window), max_size=12), cuts=st.lists(st.integers(1, 60), max_size=20))
def test_pieces_do_not_matter(script: list[bytes], cuts: list[int]) -> None:
    """But for when streams go on: that is once for all frames that came together."""
    whole = PREFACE + frame(SETTINGS, 0, 0) + b"".join(script)
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(whole[at : at + cut])
        at += cut
    pieces.append(whole[at:])
    sent, charged = asyncio.run(heard([whole]))
    sent_in_pieces, charged_in_pieces = asyncio.run(heard([piece for piece in pieces if piece]))
    assert charged == charged_in_pieces
    assert (GOAWAY in kinds(sent)) == (GOAWAY in kinds(sent_in_pieces))
    for number in range(10):
        one, other = body(sent, number), body(sent_in_pieces, number)
        assert one.startswith(other) or other.startswith(one)


def kinds(sent: bytes) -> list[int]:
    return [kind for kind, *_ in split(sent)]


def body(sent: bytes, stream: int) -> bytes:
    return b"".join(payload for kind, _, number, payload in split(sent) if (kind, number) == (DATA, stream))


@examples(300)
@given(script=scripts, window=st.sampled_from((0, 1, 10, 100)))
def test_what_is_sent_keeps_to_the_protocol(script: list[bytes], window: int) -> None:
    """Frames are whole and in order, nothing follows a goodbye, and no more data is sent than there is room for."""
    begin = frame(SETTINGS, 0, 0, struct.pack(">HL", 4, window))
    sent, _ = asyncio.run(heard([PREFACE + begin, *script]))
    room = given_room(split(b"".join([begin, *script])))
    decoder = Decoder()
    begun: set[int] = set()
    ended: set[int] = set()
    over = False
    for kind, flags, number, payload in split(sent):
        assert not over
        if kind == HEADERS:
            assert flags & 4
            assert number not in ended
            names: list[Any] = [name for name, _ in decoder.decode(payload)]
            assert (":status" in names) == (number not in begun)
            begun.add(number)
        elif kind == DATA:
            assert number in begun - ended
            room[number] -= len(payload)
            assert room[number] >= 0
        elif kind == GOAWAY:
            over = True
        if kind in (HEADERS, DATA) and flags & 1:
            ended.add(number)


def given_room(script: list[tuple[int, int, int, bytes]]) -> dict[int, int]:
    """By stream: what the client ever let the server send."""
    initial = 0
    room = dict.fromkeys(range(10), 0)
    for kind, _, number, payload in script:
        if kind == SETTINGS and payload[:2] == b"\0\4":
            initial = max(initial, int.from_bytes(payload[2:6], "big"))
        elif kind == WINDOW_UPDATE and number:
            room[number] += int.from_bytes(payload[:4], "big") & (2**31 - 1)
    return {number: initial + more for number, more in room.items()}


@examples(200)
@given(st.lists(st.binary(max_size=100), max_size=6))
def test_noise(pieces: list[bytes]) -> None:
    for begin in ([], [PREFACE], [PREFACE + frame(SETTINGS, 0, 0)]):
        asyncio.run(heard([piece for piece in [*begin, *pieces] if piece]))
