"""The gRPC port, frame by frame: what clients may do, and what they may not.

The client's side is the `h2` library, or bytes written here where that would refuse to send what is to be tested.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from math import inf
from typing import Any, Final, Literal
from urllib.parse import unquote

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    PingAckReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes, Settings
from hpack import Encoder

from headgate import Rule
from headgate.errors import InvalidCheck
from headgate.service.access import Access
from headgate.service.grpc.call import BODY_SECONDS
from headgate.service.http2 import allowance
from headgate.service.http2.connection import FIRST_SECONDS, FRAME_SECONDS, IDLE_SECONDS
from headgate.service.http2.receiver import MAX_STREAMS
from headgate.service.protos import rate_limiter_pb2 as rl
from headgate.service.rpc.method import Method, method_of
from tests.acceptance.apps.service_grpc import Serving, serving

STUCK = 30.0
RULES = [Rule(id="many", quota="1000000/day fixed_window"), Rule(id="tenants", quota="2/day", dimension="tenant")]
OURS = "/headgate.v1.RateLimiter"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED = 0, 1, 3, 5
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 6, 7, 8, 9, 11
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
HEAD = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", f"{OURS}/CheckRateLimit"),
    (":authority", "here"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)


class Odd:
    """Methods for the tests."""

    name: Final = "test.Odd"
    protocol: Final[Literal["grpc"]] = "grpc"

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.go_on = asyncio.Event()
        self.methods: Mapping[str, Method] = {
            "Wait": method_of(rl.CheckRequest, self.wait, "viewer"),
            "Complain": method_of(rl.CheckRequest, self.complain, "viewer"),
        }

    async def wait(self, _: rl.CheckRequest) -> rl.CheckResponse:
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return rl.CheckResponse(allowed=True)

    async def complain(self, request: rl.CheckRequest) -> rl.CheckResponse:
        raise InvalidCheck(request.identifier)


@pytest.fixture
def odd() -> Odd:
    return Odd()


@pytest.fixture
def served(odd: Odd) -> Iterator[Serving]:
    with serving(RULES, others=[odd]) as started:
        yield started


def dial(served: Serving) -> socket.socket:
    host, port = served.address.split(":")
    return socket.create_connection((host, int(port)), timeout=STUCK)


class Answer:
    """What came back on one stream."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = b""
        self.ended = False
        self.reset: int | None = None

    @property
    def code(self) -> int:
        return int(self.headers["grpc-status"])

    @property
    def details(self) -> str:
        return unquote(self.headers.get("grpc-message", ""))

    @property
    def allowed(self) -> bool:
        assert (self.code, self.body[:1]) == (0, b"\0")
        return rl.CheckResponse.FromString(self.body[5:]).allowed


class Client:
    """A client of the h2 library."""

    def __init__(self, served: Serving, **settings: int) -> None:
        self.socket = dial(served)
        self.h2 = H2Connection(H2Configuration(header_encoding="utf-8"))
        initial = {getattr(SettingCodes, name): value for name, value in settings.items()}
        self.h2.local_settings = Settings(client=True, initial_values=initial)
        self.h2.initiate_connection()
        self.answers: dict[int, Answer] = {}
        self.pings: list[bytes] = []
        self.giving_back = True

    def send(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def begin(self, path: str = f"{OURS}/CheckRateLimit", *more: tuple[str, str], end: bool = False) -> int:
        number = self.h2.get_next_available_stream_id()
        fields = [*((name, path if name == ":path" else value) for name, value in HEAD), *more]
        self.h2.send_headers(number, fields, end_stream=end)
        self.answers[number] = Answer()
        return number

    def call(self, path: str, message: bytes, *more: tuple[str, str]) -> Answer:
        number = self.begin(path, *more)
        self.h2.send_data(number, framed(message), end_stream=True)
        return self.answer(number)

    def answer(self, number: int) -> Answer:
        answer = self.answers[number]
        self.until(lambda: answer.ended or answer.reset is not None)
        return answer

    def until(self, done: Callable[[], bool]) -> None:
        self.send()
        while not done():
            received = self.socket.recv(65_536)
            assert received, "the server has hung up"
            self._hear(received)
            self.send()

    def _hear(self, received: bytes) -> None:
        for event in self.h2.receive_data(received):
            if isinstance(event, ResponseReceived | TrailersReceived):
                told: Any = event.headers
                self.answers[event.stream_id].headers |= dict(told)
            elif isinstance(event, DataReceived):
                self.answers[event.stream_id].body += event.data
                if self.giving_back and event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, StreamEnded):
                self.answers[event.stream_id].ended = True
            elif isinstance(event, StreamReset):
                self.answers[event.stream_id].reset = event.error_code
            elif isinstance(event, PingAckReceived):
                self.pings.append(event.ping_data)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def framed(message: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BL", flag, len(message)) + message


ASK = rl.CheckRequest(identifier="ann").SerializeToString()


# What clients may do


def test_calls_one_after_the_other_and_side_by_side(served: Serving) -> None:
    with Client(served) as client:
        for _ in range(3):
            assert client.call(f"{OURS}/CheckRateLimit", ASK).allowed
        numbers = [client.begin() for _ in range(50)]
        for number in reversed(numbers):
            client.h2.send_data(number, framed(ASK), end_stream=True)
        assert all(client.answer(number).allowed for number in numbers)


def test_header_fields_that_refer_to_others(served: Serving) -> None:
    """What a block means depends on what came before: the same bytes are not always the same call."""
    tenant = rl.CheckRequest(identifier="t", dimension=rl.TENANT).SerializeToString()
    with Client(served) as client:
        for number in range(200):
            told = client.call(f"{OURS}/CheckRateLimit", ASK, ("x-number", str(number % 7)), ("x-many", str(number)))
            assert told.allowed
            assert client.call(f"{OURS}/Nothing{number % 3}", ASK).details.startswith("there is no method")
            assert client.call(f"{OURS}/CheckRateLimit", tenant, ("x-many", "0")).allowed == (number < 2)


def test_a_request_in_many_padded_parts(served: Serving) -> None:
    with Client(served) as client:
        number = client.begin()
        body = framed(rl.CheckRequest(identifier="u" * 20_000).SerializeToString())
        for at in range(0, len(body), 997):
            client.h2.send_data(number, body[at : at + 997], pad_length=at % 200)
        client.h2.end_stream(number)
        assert client.answer(number).allowed


def test_a_request_that_ends_with_header_fields(served: Serving) -> None:
    with Client(served) as client:
        number = client.begin()
        client.h2.send_data(number, framed(ASK))
        client.h2.send_headers(number, [("x-checksum", "1")], end_stream=True)
        assert client.answer(number).allowed


def test_more_header_fields_than_fit_in_a_frame(served: Serving) -> None:
    with Client(served) as client:
        told = client.call(f"{OURS}/CheckRateLimit", ASK, ("x-long", "&" * 15_000))
        assert told.allowed
        told = client.call(f"{OURS}/CheckRateLimit", ASK, ("x-long", "&" * 40_000))  # in several frames
        assert (told.code, "metadata is larger than max" in told.details) == (8, True)
        assert client.call(f"{OURS}/CheckRateLimit", ASK).allowed


def big() -> bytes:
    return rl.CheckBatchRequest(
        checks=[rl.CheckRequest(identifier=f"u{number}") for number in range(900)]
    ).SerializeToString()


@pytest.mark.parametrize("window", [0, 1, 1_000, 65_535])
def test_an_answer_waits_for_room(served: Serving, window: int) -> None:
    """On the stream: it has as much as it is given, and no more."""
    with Client(served, INITIAL_WINDOW_SIZE=window) as client:
        client.giving_back = False
        number = client.begin(f"{OURS}/CheckRateLimits")
        client.h2.send_data(number, framed(big()), end_stream=True)
        answer = client.answers[number]
        client.until(lambda: len(answer.body) == window and ":status" in answer.headers)
        assert client.call(f"{OURS}/Nothing", b"").code == 12  # others are not held up
        client.h2.increment_flow_control_window(5_000, number)
        client.until(lambda: len(answer.body) == min(65_535, window + 5_000))
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
        client.h2.increment_flow_control_window(1 << 20)
        assert len(rl.CheckBatchResponse.FromString(client.answer(number).body[5:]).responses) == 900


def test_a_large_request_and_its_room(served: Serving) -> None:
    """4 MB many times over, on one connection."""
    body = framed(rl.CheckRequest(identifier="u", endpoint="/" + "e" * 4_000_000).SerializeToString())
    with Client(served) as client:
        for _ in range(6):
            number = client.begin()
            at = 0
            while at < len(body):
                room = min(client.h2.local_flow_control_window(number), 16_384, len(body) - at)
                if not room:
                    received = client.socket.recv(65_536)
                    client._hear(received)
                    continue
                client.h2.send_data(number, body[at : at + room])
                at += room
                client.send()
            client.h2.end_stream(number)
            assert client.answer(number).allowed


def test_pings_priorities_and_what_nobody_knows(served: Serving) -> None:
    with Client(served) as client:
        client.h2.ping(b"12345678")
        client.h2.prioritize(1, weight=16, depends_on=3)
        client.send()
        client.socket.sendall(frame(0x42, 0xFF, 7, b"whatever"))
        client.until(lambda: client.pings == [b"12345678"])
        assert client.call(f"{OURS}/CheckRateLimit", ASK).allowed


def test_the_smallest_pieces(served: Serving) -> None:
    """Byte by byte."""
    with Client(served) as client:
        number = client.begin()
        client.h2.send_data(number, framed(ASK), end_stream=True)
        for byte in client.h2.data_to_send():
            client.socket.sendall(bytes((byte,)))
        assert client.answer(number).allowed


# gRPC


@pytest.mark.parametrize(
    ("body", "more", "code", "details"),
    [
        (framed(gzip.compress(ASK, mtime=0), 1), ("grpc-encoding", "gzip"), 0, ""),
        (framed(ASK), ("grpc-encoding", "gzip"), 0, ""),
        (framed(ASK), ("grpc-timeout", "5S"), 0, ""),
        (framed(gzip.compress(b"\0" * 5_000_000, mtime=0), 1), ("grpc-encoding", "gzip"), 8, "larger than max"),
        (framed(b"no gzip", 1), ("grpc-encoding", "gzip"), 13, "cannot be decompressed"),
        (framed(gzip.compress(ASK, mtime=0)[:-4], 1), ("grpc-encoding", "gzip"), 13, "breaks off"),
        (framed(ASK, 1), ("x", "y"), 13, "grpc-encoding does not say how"),
        (framed(ASK), ("grpc-encoding", "snappy"), 12, "'snappy' is not known"),
        (framed(ASK), ("grpc-timeout", "soon"), 13, "grpc-timeout cannot be read"),
        (framed(ASK) * 2, ("x", "y"), 13, "more than one message"),
        (framed(ASK)[:-1], ("x", "y"), 13, "breaks off within a message"),
        (b"", ("x", "y"), 13, "no message"),
        (b"\0\0", ("x", "y"), 13, "breaks off"),
    ],
)
def test_messages(served: Serving, body: bytes, more: tuple[str, str], code: int, details: str) -> None:
    with Client(served) as client:
        number = client.begin(f"{OURS}/CheckRateLimit", more)
        client.h2.send_data(number, body, end_stream=True)
        told = client.answer(number)
        assert (told.code, details in told.details) == (code, True), told.details
        assert told.headers["content-type"] == "application/grpc"
        assert client.call(f"{OURS}/CheckRateLimit", ASK).allowed


def test_a_message_that_is_too_large_is_not_waited_for(served: Serving) -> None:
    with Client(served) as client:
        number = client.begin()
        client.h2.send_data(number, struct.pack(">BL", 0, 5_000_000) + b"the beginning")
        told = client.answer(number)
        assert (told.code, "larger than max" in told.details) == (8, True)
        client.until(lambda: told.reset == NO_ERROR)
        assert client.call(f"{OURS}/CheckRateLimit", ASK).allowed


@pytest.mark.parametrize(("field", "status"), [((":method", "GET"), "405"), (("content-type", "text/plain"), "415")])
def test_what_is_no_call(served: Serving, field: tuple[str, str], status: str) -> None:
    with Client(served) as client:
        number = client.h2.get_next_available_stream_id()
        client.answers[number] = Answer()
        client.h2.send_headers(number, [field if name == field[0] else (name, value) for name, value in HEAD])
        assert client.answer(number).headers[":status"] == status


def test_details_in_any_script_and_of_any_length(served: Serving) -> None:
    with Client(served) as client:
        odd = rl.CheckRequest(identifier="100 % Straße\n\0").SerializeToString()
        assert client.call("/test.Odd/Complain", odd).details == "100 % Straße\n\0"
        told = client.call("/test.Odd/Complain", rl.CheckRequest(identifier="ß" * 5_000).SerializeToString())
        assert (told.code, told.details[-4:]) == (3, "ß...")
        assert len(told.headers["grpc-message"]) < 1_100


def test_a_call_whose_time_is_up(served: Serving, odd: Odd) -> None:
    with Client(served) as client:
        assert client.call("/test.Odd/Wait", ASK, ("grpc-timeout", "20m")).code == 4
    served.run(odd.cancelled.wait())


def test_a_call_that_is_taken_back(served: Serving, odd: Odd) -> None:
    with Client(served) as client:
        number = client.begin("/test.Odd/Wait")
        client.h2.send_data(number, framed(ASK), end_stream=True)
        client.send()
        served.run(odd.begun.wait())
        client.h2.reset_stream(number, CANCEL)
        client.send()
        served.run(odd.cancelled.wait())
        assert client.call(f"{OURS}/CheckRateLimit", ASK).allowed


def test_a_client_that_hangs_up(served: Serving, odd: Odd) -> None:
    with Client(served) as client:
        number = client.begin("/test.Odd/Wait")
        client.h2.send_data(number, framed(ASK), end_stream=True)
        client.send()
        served.run(odd.begun.wait())
    served.run(odd.cancelled.wait())


def test_more_calls_at_a_time_than_are_allowed(served: Serving, odd: Odd) -> None:
    with Client(served) as client:
        client.until(lambda: client.h2.remote_settings.max_concurrent_streams == MAX_STREAMS)
        numbers = [client.begin("/test.Odd/Wait") for _ in range(MAX_STREAMS)]
        client.send()
        late = numbers[-1] + 2
        client.answers[late] = Answer()
        # The library itself would keep to the limit.
        client.h2.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = MAX_STREAMS + 1
        client.h2.remote_settings.acknowledge()
        assert client.begin("/test.Odd/Wait") == late
        assert client.answer(late).reset == REFUSED_STREAM
        client.h2.send_data(numbers[0], framed(ASK), end_stream=True)
        client.send()
        served.run(odd.begun.wait())


def test_guesses_of_tokens_are_slowed_down() -> None:
    """Whoever has had too many bad ones is not looked at any more, unless their token was good before."""
    with serving(RULES, access=Access(data_token="secret")) as served, Client(served) as client:

        def code(token: str) -> int:
            return client.call(f"{OURS}/CheckRateLimit", ASK, ("authorization", f"Bearer {token}")).code

        assert [code(f"guess-{number}") for number in range(31)] == [16] * 30 + [8]
        assert code("secret") == 8
        assert client.call(f"{OURS}/CheckRateLimit", ASK).code == 16
    with serving(RULES, access=Access(data_token="secret")) as served, Client(served) as client:
        assert code("secret") == 0
        assert [code(f"guess-{number}") for number in range(31)] == [16] * 30 + [8]
        assert code("secret") == 0


# What they may not do: by hand


def frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    return struct.pack(">L", len(payload))[1:] + struct.pack(">BBL", kind, flags, number) + payload


def block(*fields: tuple[str, str]) -> bytes:
    return Encoder().encode(fields or HEAD)


class Raw:
    """A client that sends whatever it likes."""

    def __init__(self, served: Serving) -> None:
        self.socket = dial(served)
        self._rest = b""

    def send(self, *parts: bytes) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the server has had enough
            self.socket.sendall(b"".join(parts))

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """What the server sends, until it hangs up."""
        while True:
            while len(self._rest) >= 9:
                size = int.from_bytes(self._rest[:3], "big")
                if len(self._rest) < 9 + size:
                    break
                kind, flags, number = struct.unpack_from(">BBL", self._rest, 3)
                payload, self._rest = self._rest[9 : 9 + size], self._rest[9 + size :]
                yield kind, flags, number, payload
            try:
                received = self.socket.recv(65_536)
            except ConnectionResetError:
                return
            if not received:
                return
            self._rest += received

    def goaway(self) -> int:
        """The code of the last word; then, it hangs up."""
        codes = [struct.unpack_from(">L", payload, 4)[0] for kind, _, _, payload in self.frames() if kind == GOAWAY]
        assert codes, "it hung up without a word"
        return int(codes[-1])

    def reset(self, number: int) -> int:
        return next(
            int.from_bytes(payload, "big")
            for kind, _, reset, payload in self.frames()
            if (kind, reset) == (RST_STREAM, number)
        )


@contextmanager
def raw(served: Serving, *, greeted: bool = True) -> Iterator[Raw]:
    client = Raw(served)
    if greeted:
        client.send(PREFACE, frame(SETTINGS, 0, 0))
    try:
        yield client
    finally:
        client.socket.close()


OPEN = frame(HEADERS, 4, 1, block())
CALL = OPEN + frame(DATA, 1, 1, framed(ASK))
WAITING = block(*((name, "/test.Odd/Wait" if name == ":path" else value) for name, value in HEAD))
WAIT = frame(HEADERS, 4, 1, WAITING) + frame(DATA, 1, 1, framed(ASK))
GIGABYTE = struct.pack(">L", 2**30)
LARGEST_WINDOW = struct.pack(">HL", 4, 2**31 - 1)
PADDING = frame(DATA, 8, 1, b"\xff" + b"x" * 8_000 + b"\0" * 255)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
        (frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR),  # of a stream that is not open
        (frame(HEADERS, 4, 2, block()), PROTOCOL_ERROR),
        (frame(HEADERS, 4, 0, block()), PROTOCOL_ERROR),
        (frame(HEADERS, 4 | 8, 1, b""), FRAME_SIZE_ERROR),
        (frame(HEADERS, 4 | 8, 1, b"\x05ab"), PROTOCOL_ERROR),
        (frame(HEADERS, 4 | 0x20, 1, b"abc"), FRAME_SIZE_ERROR),
        (frame(HEADERS, 4 | 0x20, 1, b"\0\0\0\1\0" + block()), PROTOCOL_ERROR),
        (frame(HEADERS, 4, 1, b"\xff\xff\xff\xff\xff"), COMPRESSION_ERROR),
        (frame(HEADERS, 4, 1, b"\x00\x05ab"), COMPRESSION_ERROR),
        (frame(HEADERS, 0, 1, block()) + frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, 4, 3, b""), PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, 0, 1, b"") * 100, ENHANCE_YOUR_CALM),
        (frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, 0, 1, b"\0" * 16_000) * 6, ENHANCE_YOUR_CALM),
        (frame(HEADERS, 4, 1, block(*HEAD, *[("x", "y" * 10_000)] * 9)[:16_000]), COMPRESSION_ERROR),
        (frame(CONTINUATION, 4, 1, b""), PROTOCOL_ERROR),
        (CALL + frame(HEADERS, 4, 1, block()), STREAM_CLOSED),
        (OPEN + frame(HEADERS, 4, 1, block(("x", "y"))), PROTOCOL_ERROR),  # at the end, and it does not end
        (WAIT + frame(HEADERS, 5, 1, block()), STREAM_CLOSED),
        (WAIT + frame(DATA, 1, 1, b"x"), STREAM_CLOSED),
        (OPEN + frame(DATA, 8, 1, b"\x09abc"), PROTOCOL_ERROR),
        (OPEN + frame(DATA, 0, 1, b"x" * 16_385), FRAME_SIZE_ERROR),
        (frame(PRIORITY, 0, 1, b"x"), FRAME_SIZE_ERROR),
        (frame(PRIORITY, 0, 0, b"\0" * 5), PROTOCOL_ERROR),
        (frame(RST_STREAM, 0, 0, b"\0" * 4), PROTOCOL_ERROR),
        (frame(RST_STREAM, 0, 5, b"\0" * 4), PROTOCOL_ERROR),
        (OPEN + frame(RST_STREAM, 0, 1, b"\0"), FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 1), PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, b"\0"), FRAME_SIZE_ERROR),
        (frame(SETTINGS, 1, 0, b"\0" * 6), FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 0, struct.pack(">HL", 4, 2**31)), FLOW_CONTROL_ERROR),
        (frame(SETTINGS, 0, 0, struct.pack(">HL", 5, 16_383)), PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, struct.pack(">HL", 5, 2**24)), PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, struct.pack(">HL", 2, 2)), PROTOCOL_ERROR),
        (
            OPEN + frame(WINDOW_UPDATE, 0, 1, GIGABYTE) + frame(SETTINGS, 0, 0, b"\0\4\x7f\xff\xff\xff"),
            FLOW_CONTROL_ERROR,
        ),
        (frame(PUSH_PROMISE, 4, 1, b"\0\0\0\2"), PROTOCOL_ERROR),
        (frame(PING, 0, 0, b"short"), FRAME_SIZE_ERROR),
        (frame(PING, 0, 1, b"\0" * 8), PROTOCOL_ERROR),
        (frame(PING, 0, 0, b"\0" * 8) * 3_000, ENHANCE_YOUR_CALM),
        (OPEN + frame(DATA, 0, 1) * 3_000, ENHANCE_YOUR_CALM),
        (frame(GOAWAY, 0, 1, b"\0" * 8), PROTOCOL_ERROR),
        (frame(GOAWAY, 0, 0, b"\0"), FRAME_SIZE_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, b"\0"), FRAME_SIZE_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, b"\0" * 4), PROTOCOL_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", 2**31 - 1)), FLOW_CONTROL_ERROR),
        (frame(WINDOW_UPDATE, 0, 9, struct.pack(">L", 1)), PROTOCOL_ERROR),
        (OPEN + frame(DATA, 0, 1, b"\0\0\x40\0\0") + PADDING * 520, FLOW_CONTROL_ERROR),
    ],
)
def test_what_ends_a_connection(served: Serving, sent: bytes, code: int) -> None:
    with raw(served) as client:
        client.send(sent)
        assert client.goaway() == code
    with Client(served) as other:
        assert other.call(f"{OURS}/CheckRateLimit", ASK).allowed


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", PREFACE + frame(PING, 0, 0, b"\0" * 8), b"\x16\x03\x01\x02\x00\x01"]
)
def test_what_is_no_beginning(served: Serving, sent: bytes) -> None:
    with raw(served, greeted=False) as client:
        client.send(sent)
        assert client.goaway() == PROTOCOL_ERROR


@pytest.mark.parametrize(
    "fields",
    [
        [(name, value) for name, value in HEAD if name != ":path"],
        [(name, value) for name, value in HEAD if name != ":scheme"],
        [(":path", "/again"), *HEAD],
        [(":nothing", "x"), *HEAD],
        [*HEAD, (":authority", "late")],
        [*HEAD, ("X-Upper", "case")],
        [*HEAD, ("connection", "close")],
        [*HEAD, ("te", "gzip")],
        [*HEAD, ("x", "a\r\nb")],
        [*HEAD, ("", "x")],
    ],
)
def test_header_fields_that_make_no_sense_end_a_stream(served: Serving, fields: list[tuple[str, str]]) -> None:
    with raw(served) as client:
        client.send(frame(HEADERS, 4, 1, block(*fields)))
        assert client.reset(1) == PROTOCOL_ERROR
        client.send(frame(HEADERS, 4, 3, block()), frame(DATA, 1, 3, framed(ASK)))
        assert (HEADERS, 3) in ((kind, number) for kind, _, number, _ in client.frames())


@pytest.mark.parametrize(("more", "code"), [(0, PROTOCOL_ERROR), (2**31 - 1, FLOW_CONTROL_ERROR)])
def test_a_window_that_is_not_allowed_ends_a_stream(served: Serving, odd: Odd, more: int, code: int) -> None:
    with raw(served) as client:
        client.send(WAIT)
        served.run(odd.begun.wait())
        client.send(frame(WINDOW_UPDATE, 0, 1, struct.pack(">L", more)))
        assert client.reset(1) == code
        served.run(odd.cancelled.wait())


def test_requests_that_are_taken_back_at_once(served: Serving) -> None:
    with raw(served) as client:
        number, encoder = 1, Encoder()
        for _ in range(50):
            part = b""
            for _ in range(100):
                part += frame(HEADERS, 4, number, encoder.encode(HEAD)) + frame(RST_STREAM, 0, number, b"\0\0\0\x08")
                number += 2
            client.send(part)
        assert client.goaway() == ENHANCE_YOUR_CALM


def test_frames_of_streams_that_are_over_are_passed_over(served: Serving) -> None:
    with raw(served) as client:
        client.send(CALL, frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1"), frame(RST_STREAM, 0, 1, b"\0\0\0\x08"))
        unknown = block(*((name, "/nothing" if name == ":path" else value) for name, value in HEAD))
        client.send(frame(HEADERS, 4, 3, unknown), frame(DATA, 0, 3, b"late"))
        client.send(frame(HEADERS, 5, 3, block(("x-checksum", "1"))), frame(PING, 0, 0, b"87654321"))
        assert (PING, 1, 0, b"87654321") in client.frames()


# Time: the server looks at its clock once a second


def later(served: Serving, seconds: float) -> None:
    async def look() -> None:
        served.server._hub.tick(asyncio.get_running_loop().time() + seconds)

    served.run(look())


def test_who_says_nothing_is_cut_off(served: Serving) -> None:
    with raw(served, greeted=False) as client:
        client.send(PREFACE[:5])
        next(client.frames())
        later(served, FIRST_SECONDS - 1)
        later(served, FIRST_SECONDS + 1)
        assert [kind for kind, *_ in client.frames()] == [WINDOW_UPDATE]


@pytest.mark.parametrize("part", [frame(HEADERS, 4, 3, block())[:20], frame(HEADERS, 0, 3, block())])
def test_who_does_not_go_on_is_cut_off(served: Serving, part: bytes) -> None:
    with raw(served) as client:
        client.send(CALL, part)
        assert (HEADERS, 1) in ((kind, number) for kind, _, number, _ in client.frames())
        later(served, FRAME_SECONDS + 1)
        assert GOAWAY not in [kind for kind, *_ in client.frames()]


def test_a_request_that_does_not_go_on(served: Serving) -> None:
    with Client(served) as client:
        number = client.begin()
        client.h2.send_data(number, framed(ASK)[:7])
        client.h2.ping(b"12345678")
        client.until(lambda: client.pings == [b"12345678"])
        later(served, BODY_SECONDS + 1)
        assert client.answer(number).code == 4
        assert client.call(f"{OURS}/CheckRateLimit", ASK).allowed


def test_an_answer_that_nobody_takes(served: Serving) -> None:
    with Client(served, INITIAL_WINDOW_SIZE=10) as client:
        client.giving_back = False
        number = client.begin(f"{OURS}/CheckRateLimits")
        client.h2.send_data(number, framed(big()), end_stream=True)
        client.until(lambda: len(client.answers[number].body) == 10)
        later(served, BODY_SECONDS + 1)
        assert client.answer(number).reset == CANCEL


def test_who_has_nothing_to_ask_is_told_to_come_again(served: Serving) -> None:
    with raw(served) as client:
        client.send(CALL)
        assert (DATA, 1) in ((kind, number) for kind, _, number, _ in client.frames())
        later(served, IDLE_SECONDS + 1)
        ping = next(payload for kind, _, _, payload in client.frames() if kind == PING)
        client.send(frame(PING, 1, 0, ping))
        assert list(client.frames()) == [(GOAWAY, 0, 0, struct.pack(">LL", 1, NO_ERROR))]


def test_connections_beyond_the_most() -> None:
    with serving(RULES, max_connections=3) as served:
        clients = [Client(served) for _ in range(3)]
        for client in clients:
            assert client.call(f"{OURS}/CheckRateLimit", ASK).allowed
        with Client(served) as another:
            assert another.call(f"{OURS}/CheckRateLimit", ASK).allowed
        answered = 0
        for client in clients:
            with client, suppress(AssertionError, ConnectionResetError, BrokenPipeError):
                answered += client.call(f"{OURS}/CheckRateLimit", ASK).allowed
        assert answered == 2


def test_requests_that_come_together_are_answered_in_order(served: Serving) -> None:
    numbers = range(1, 61, 2)
    calls = [frame(HEADERS, 4, number, block()) + frame(DATA, 1, number, framed(ASK)) for number in numbers]
    with raw(served) as client:
        client.send(*calls, frame(PING, 0, 0, b"farewell"))
        answers = ((kind, number) for kind, _, number, _ in client.frames() if kind in (DATA, PING))
        expected = [*((DATA, number) for number in numbers), (PING, 0)]
        assert list(islice(answers, len(expected))) == expected


# The end


def test_a_stop_answers_what_is_on_its_way(served: Serving, odd: Odd) -> None:
    with raw(served) as client:
        client.send(WAIT)
        served.run(odd.begun.wait())
        stopping = asyncio.run_coroutine_threadsafe(served.server.stop(STUCK), served.loop)
        told = client.frames()
        first = next(payload for kind, _, _, payload in told if kind == GOAWAY)
        assert first == struct.pack(">LL", 2**31 - 1, NO_ERROR)  # there may be more on their way
        ping = next(payload for kind, _, _, payload in told if kind == PING)
        client.send(frame(HEADERS, 4, 3, block()), frame(DATA, 1, 3, framed(ASK)), frame(PING, 1, 0, ping))
        answer = next(payload for kind, _, number, payload in told if (kind, number) == (DATA, 3))
        assert rl.CheckResponse.FromString(answer[5:]).allowed
        last = next(payload for kind, _, _, payload in told if kind == GOAWAY)
        assert last == struct.pack(">LL", 3, NO_ERROR)
        client.send(frame(HEADERS, 4, 5, block()), frame(DATA, 1, 5, framed(ASK)))  # too late
        served.loop.call_soon_threadsafe(odd.go_on.set)
        rest = [(kind, number) for kind, _, number, _ in told]
        assert rest == [(HEADERS, 1), (DATA, 1), (HEADERS, 1)]
        client.socket.close()
        assert stopping.result(STUCK) == 0


def test_a_stop_cuts_off_who_takes_too_long(served: Serving, odd: Odd) -> None:
    with Client(served) as client:
        number = client.begin("/test.Odd/Wait")
        client.h2.send_data(number, framed(ASK), end_stream=True)
        client.send()
        served.run(odd.begun.wait())
        assert served.run(served.server.stop(0)) == 1
        served.run(odd.cancelled.wait())


def test_what_does_not_fit_is_not_listened_to(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks and never reads: it is not read from either, and cut off in time."""
    monkeypatch.setattr(allowance, "FRAME", 0)
    with raw(served) as client:
        next(client.frames())
        client.socket.settimeout(0.1)
        (connection,) = served.server._hub.connections
        ping, sent = frame(PING, 0, 0, b"\0" * 8) * 1_000, 0
        while connection._unread_since == inf:  # until replies wait to be read
            with suppress(TimeoutError):
                sent += client.socket.send(ping[sent % len(ping) :])
        assert connection._transport.get_write_buffer_size() < 4_000_000
        later(served, 100.0)
        client.socket.settimeout(STUCK)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            client.socket.sendall(ping * 5_000)


def test_too_many_large_messages_at_a_time(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.service.grpc.call.MAX_HELD", 300_000)
    beginning: Any = struct.pack(">BL", 0, 4_000_000) + b"x" * 16_000
    with Client(served) as client:
        client.until(lambda: client.h2.remote_settings.initial_window_size > 65_535)
        numbers = [client.begin() for _ in range(8)]
        for _ in range(5):
            for number in numbers:
                if not client.answers[number].ended:
                    client.h2.send_data(number, beginning if _ == 0 else b"x" * 16_000)
            client.h2.ping(b"12345678")
            client.pings.clear()
            client.until(lambda: bool(client.pings))
        told = [client.answers[number] for number in numbers]
        assert [one.code for one in told if one.ended] == [8] * sum(one.ended for one in told)
        assert 0 < sum(one.ended for one in told) < 8
        assert client.call(f"{OURS}/CheckRateLimit", ASK).allowed  # small ones always fit
        for number in numbers:
            if not client.answers[number].ended:
                client.h2.reset_stream(number)
        assert client.call(f"{OURS}/CheckRateLimit", ASK).allowed
    assert served.server._hub.held == 0
