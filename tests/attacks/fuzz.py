"""A fuzzer for both ports: inputs that nearly make sense, from a fixed seed, so that each can be made again.

No input may cost the node more than 100 ms of processor time, delay another client by more than that, or give away a
byte of another connection.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.attacks import frames
from tests.attacks.frames import GREETING, HEADERS, PREFACE, block, frame, literal, number, setting
from tests.attacks.victim import ATTEMPTS, STUCK, Caller, Timer, address_of, cpu_of
from tests.service import Service

MOST_CPU: Final = 0.1  # seconds, of an input
LONGEST_DELAY: Final = 0.1  # seconds, of another client's call
QUIET: Final = 0.02  # seconds in which nothing comes back, after which an input counts as answered
LONGEST: Final = 60_000  # bytes of an input

_BLOCKS: Final = (
    block(),
    block(frames.HEALTH),
    block("/there/is/none"),
    block(frames.CHECK, ("grpc-timeout", "1m"), ("authorization", "Bearer wrong")),
    block(frames.CHECK, ("content-length", "7"), ("grpc-encoding", "gzip")),
    b"\x82\x86\x84\x41\x8a\x08\x9d\x5c\x0b\x81\x70\xdc\x78\x0f\x03",
    b"\x3f\xe1\x1f" + block(),
    literal(":method", "GET") + literal(":path", "/"),
    b"\xbe" * 40,
    b"\x40\x01a\x01b" * 20,
    b"",
)
_PAYLOADS: Final = (
    b"",
    b"\0" * 4,
    b"\0" * 5,
    b"\0" * 8,
    b"\0\0\0\0\0",
    b"\0\0\0\0\x05\x0a\x03ann",
    b"\1\0\0\0\x14\x1f\x8b\x08\0\0\0\0\0\x02\xff",
    b"\0\xff\xff\xff\xff",
    number(1),
    number(2**31 - 1),
    number(2**32 - 1),
    setting(4, 0),
    setting(4, 2**31 - 1) + setting(5, 16_384),
    setting(1, 0) * 50,
    number(0) * 2,
    b"x" * 300,
    b"\xff" + b"\0" * 300,
)
_NUMBERS: Final = (0, 1, 1, 1, 3, 3, 5, 7, 9, 2, 2**31 - 1)
_LINES: Final = (
    b"Host: here",
    b"Host: there",
    b"Host:",
    b"Content-Length: 14",
    b"Content-Length: 3",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: -1",
    b"Content-Length: 14, 14",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding : chunked",
    b"Content-Type: application/json",
    b"Content-Type: text/plain",
    b"Content-Encoding: gzip",
    b"Authorization: Bearer wrong",
    b"Authorization: Basic \xff\xfe",
    b"Connection: close",
    b"Connection: keep-alive, Upgrade",
    b"Upgrade: h2c",
    b"Upgrade: websocket",
    b"Expect: 100-continue",
    b"X-Forwarded-For: 1.2.3.4, \0",
    b"X-Original-URI: /a%2fb?c",
    b'If-None-Match: "' + b"x" * 2_000 + b'"',
    b"Accept: application/openmetrics-text; version=1.0.0",
    b" folded",
    b": nameless",
    b"no colon",
    b"X: " + b"y" * 9_000,
)
_TARGETS: Final = (
    b"/healthz",
    b"/readyz",
    b"/metrics",
    b"/v1/check",
    b"/v1/check/batch",
    b"/v1/authorize?cost=1&tenant=a",
    b"/v1/authorize?" + b"a=b&" * 100,
    b"/api/v1/rules",
    b"/docs",
    b"/docs/assets/../../etc/passwd",
    b"/%00%ff%2e%2e/",
    b"*",
    b"http://there/healthz",
    b"//",
    b"/" + b"a" * 5_000,
    b"",
)
_METHODS: Final = (b"GET", b"POST", b"POST", b"HEAD", b"PUT", b"OPTIONS", b"CONNECT", b"PRI", b"get", b"M-SEARCH", b"")
_BODIES: Final = (
    b'{"user":"ann"}',
    b"{}",
    b'{"checks":[{"user":"a"},{"user":"b"}]}',
    b"[" * 500,
    b'{"user":"' + b"\xff" * 20 + b'"}',
    b'{"cost":1e999}',
    b'e\r\n{"user":"ann"}\r\n0\r\n\r\n',
    b"0\r\n\r\n",
    b"fffffffffffffffff\r\n",
    b"1;x=" + b"y" * 3_000 + b"\r\n{\r\n0\r\nTrailer: x\r\n\r\n",
    b"\0" * 2_000,
    b"",
)


def http2_input(random: Random) -> list[bytes]:
    """Frames, most of them on few streams; now and then, with bytes that were changed."""
    parts = [random.choice((GREETING, GREETING, GREETING, PREFACE, PREFACE + frame(4, 0, 0, setting(4, 0)), b""))]
    for _ in range(random.choice((1, 3, 10, 30, 100))):
        kind = random.choice((0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9, random.randrange(256)))
        flags = random.choice((0, 0, 1, 4, 4, 5, 5, 8, 9, 0x25, random.randrange(256)))
        payload = random.choice(_BLOCKS) if kind in (HEADERS, 9) else random.choice(_PAYLOADS)
        if random.random() < 0.05:
            payload = random.randbytes(random.choice((1, 9, 200, 16_384, 16_400)))
        unit = frame(kind, flags, random.choice(_NUMBERS), payload)
        parts.append(unit * random.choice((1, 1, 1, 1, 2, 50)))
    return _pieces(random, b"".join(parts))


def http1_input(random: Random) -> list[bytes]:
    """Requests, one behind the other."""
    parts = []
    for _ in range(random.choice((1, 1, 2, 5, 40))):
        lines = random.sample(_LINES, random.choice((0, 1, 2, 3, 5)))
        if random.random() < 0.8:
            lines.insert(0, b"Host: here")
        first = b"%b %b HTTP/%b" % (
            random.choice(_METHODS),
            random.choice(_TARGETS),
            random.choice((b"1.1", b"1.1", b"1.1", b"1.0", b"2.0", b"0.9", b"x")),
        )
        end = random.choice((b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r"))
        parts.append(end.join((first, *lines, b"", random.choice(_BODIES))))
    return _pieces(random, b"".join(parts))


def _pieces(random: Random, whole: bytes) -> list[bytes]:
    changed = bytearray(whole[:LONGEST])
    if changed and random.random() < 0.3:
        for _ in range(random.choice((1, 2, 10))):
            changed[random.randrange(len(changed))] = random.randrange(256)
    cuts = sorted(random.randrange(len(changed) + 1) for _ in range(random.choice((0, 0, 1, 3))))
    return [bytes(changed[at:end]) for at, end in zip([0, *cuts], [*cuts, len(changed)], strict=True)]


PORTS: Final[dict[str, Callable[[Random], list[bytes]]]] = {"grpc": http2_input, "http": http1_input}


@dataclass
class Outcome:
    """What all inputs did, at worst."""

    inputs: int = 0
    cpu: float = 0.0  # seconds, of one input
    delay: float = 0.0
    leaks: int = 0
    broken: list[str] = field(default_factory=list)  # inputs that broke a bound, as the seeds to make them again


class Victim:
    """Another client, on both ports. What it asks for is a secret of its own, and so are its answers."""

    def __init__(self, service: Service) -> None:
        self._grpc = Caller(service)
        self._http = socket.create_connection(address_of(service.url), timeout=STUCK)
        self._asked = 0

    def call(self) -> None:
        """Raises `AssertionError` unless the answers are its own."""
        self._asked += 1
        secret = f"{SECRET}-{self._asked}"
        self._grpc.call(f"/{secret}/Method", secret.encode())
        self._http.sendall(b"GET /v1/%b HTTP/1.1\r\nHost: here\r\n\r\n" % secret.encode())
        answer = b""
        while not answer.endswith(b"}"):
            received = self._http.recv(65_536)
            assert received, "the node has hung up on another client"
            answer += received
        assert answer.startswith(b"HTTP/1.1 404"), answer
        assert secret.encode() in answer, answer

    def close(self) -> None:
        self._grpc.close()
        self._http.close()


SECRET: Final = "of-another-connection"


def fuzz(service: Service, port: str, *, seed: int, inputs: int, seconds: float) -> Outcome:
    """Send so many inputs to a port, or as many as there is time for."""
    outcome = Outcome()
    victim = Victim(service)
    until = time.monotonic() + seconds
    with Timer(service) as timer:
        while outcome.inputs < inputs and time.monotonic() < until:
            made = f"{port} {seed}:{outcome.inputs}"
            outcome.inputs += 1
            for _ in range(ATTEMPTS):  # what only the machine has made slow is not slow again
                before = cpu_of(service.process.pid)
                received, delay = _attack(service, port, PORTS[port](Random(made)), victim, timer)
                cpu = cpu_of(service.process.pid) - before
                if cpu < MOST_CPU and delay < LONGEST_DELAY:
                    break
            outcome.cpu, outcome.delay = max(outcome.cpu, cpu), max(outcome.delay, delay)
            leaked = SECRET.encode() in received
            outcome.leaks += leaked
            if cpu >= MOST_CPU or delay >= LONGEST_DELAY or leaked:
                outcome.broken.append(made)
    victim.close()
    return outcome


def _attack(service: Service, port: str, pieces: list[bytes], victim: Victim, timer: Timer) -> tuple[bytes, float]:
    """What came back, and by how much another client was delayed meanwhile."""
    address = address_of(service.grpc_address if port == "grpc" else service.url)
    received = b""
    with socket.create_connection(address, timeout=STUCK) as attacker, suppress(ConnectionError):
        for piece in pieces[:-1]:
            attacker.sendall(piece)
            time.sleep(0.001)
        attacker.sendall(pieces[-1])
        delay = timer.late(victim.call)
        attacker.settimeout(QUIET)
        with suppress(TimeoutError):
            while more := attacker.recv(262_144):
                received += more
        return received, delay
    return received, timer.late(victim.call)
