"""What an attack costs: the node's processor time, and the delay of another client's calls."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.attacks.frames import (
    ACK,
    CHECK,
    DATA,
    EMPTY_MESSAGE,
    END_HEADERS,
    END_STREAM,
    GREETING,
    HEADERS,
    HEALTH,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    block,
    frame,
    number,
)
from tests.chaos.lateness import Wait, Witness
from tests.service import Service

STUCK = 120.0  # seconds after which a call that is not answered fails the test
KEPT = 1_048_576  # bytes that an attacker keeps of what it receives: more than the longest response
PAUSE = 0.01  # seconds between two calls
MOST_CPU = 0.5  # seconds that a megabyte may cost
LONGEST_DELAY = 0.1  # seconds
SETTLED = 0.3  # seconds in which the node has looked at a megabyte
ATTEMPTS = 3  # a bound that is broken by the machine alone is not broken again


@dataclass
class Cost:
    """What the attack took from others. Times are in seconds."""

    cpu: float = 0.0  # of the node, from the beginning of the attack to its end
    delay: float = 0.0  # of another client's call, at worst, less what the machine was late by
    delay_over_http: float = 0.0  # of a request on the other port
    calls: int = 0  # of the other client, meanwhile

    @property
    def longest(self) -> float:
        return max(self.delay, self.delay_over_http)

    @property
    def held(self) -> bool:
        return self.cpu < MOST_CPU and self.longest < LONGEST_DELAY

    def __str__(self) -> str:
        return f"cpu {self.cpu:.3f} s, delay {1_000 * self.longest:.0f} ms ({self.calls} calls)"


class Watched:
    """Watches a node and calls it, while somebody else attacks it.

    with Watched(service) as cost:
        attack(service)
    """

    def __init__(self, service: Service, token: str | None = None, pause: float = PAUSE) -> None:
        """With a token, the other client is no stranger. `pause` is between its calls, in seconds."""
        self._pause = pause
        self._service = service
        self._token = token
        self._cost = Cost()
        self._stop = threading.Event()
        self._timer = Timer(service)
        self._failure: BaseException | None = None
        self._threads = [threading.Thread(target=self._run, args=(one,)) for one in (self._call, self._get)]

    def __enter__(self) -> Cost:
        self._grpc = Caller(self._service, self._token)
        self._http = socket.create_connection(address_of(self._service.url), timeout=STUCK)
        self._grpc.call()
        self._timer.__enter__()
        self._before = cpu_of(self._service.process.pid)
        for thread in self._threads:
            thread.start()
        return self._cost

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._cost.cpu = cpu_of(self._service.process.pid) - self._before
        self._timer.__exit__()
        self._grpc.close()
        self._http.close()
        if self._failure is not None:
            raise self._failure

    def _run(self, ask: Callable[[], None]) -> None:
        try:
            while not self._stop.wait(self._pause):
                ask()
        except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
            self._failure = error

    def _call(self) -> None:
        self._cost.calls += 1
        self._cost.delay = max(self._cost.delay, self._timer.late(self._grpc.call))

    def _get(self) -> None:
        self._cost.delay_over_http = max(self._cost.delay_over_http, self._timer.late(self._healthz))

    def _healthz(self) -> None:
        self._http.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            received = self._http.recv(65_536)
            assert received, "the node has hung up on another client"
            answer += received
        assert answer.startswith(b"HTTP/1.1 200"), answer


class Timer:
    """Takes the time of calls, less what this process and the node waited for a processor."""

    def __init__(self, service: Service) -> None:
        self._process = service.process.pid
        self._witness = Witness()

    def late(self, ask: Callable[[], None]) -> float:
        waits = Wait.of_this_thread(), Wait(self._process, self._process)
        before = [wait.seconds() for wait in waits]
        began = time.monotonic()
        ask()
        ended = time.monotonic()
        here, there = (wait.seconds() - waited for wait, waited in zip(waits, before, strict=True))
        for wait in waits:
            wait.close()
        return max(0.0, ended - began - max(here, self._witness.late(began, ended)) - there)

    def __enter__(self) -> Self:
        self._witness.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._witness.__exit__(*exc)


class Caller:
    """A client with one connection to the gRPC port, which calls one method again and again."""

    def __init__(self, service: Service, token: str | None = None) -> None:
        self._block = block(HEALTH) if token is None else block(CHECK, ("authorization", f"Bearer {token}"))
        self._message = EMPTY_MESSAGE if token is None else b"\0\0\0\0\5\x0a\3ann"
        self._socket = socket.create_connection(address_of(service.grpc_address), timeout=STUCK)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(GREETING)
        self._stream = -1
        self._taken = 0  # bytes of answers
        self._rest = b""

    def call(self, path: str | None = None, expected: bytes = b"grpc-status\x010") -> None:
        """Raises `AssertionError` unless it is answered as expected."""
        self._stream += 2
        opened = frame(HEADERS, END_HEADERS, self._stream, self._block if path is None else block(path))
        self._socket.sendall(opened + frame(DATA, END_STREAM, self._stream, self._message))
        while True:
            for kind, flags, stream, payload in self._frames():
                if (kind, stream) == (HEADERS, self._stream) and flags & 1:
                    assert expected in payload, payload
                    return
                assert (kind, stream) != (RST_STREAM, self._stream), f"another client's call was refused: {payload!r}"
                if kind == DATA:
                    self._taken += len(payload)
                    if self._taken > 16_384:
                        self._socket.sendall(frame(WINDOW_UPDATE, 0, 0, number(self._taken)))
                        self._taken = 0
                elif (kind, flags) == (SETTINGS, 0):
                    self._socket.sendall(frame(SETTINGS, ACK, 0))
                elif (kind, flags) == (PING, 0):
                    self._socket.sendall(frame(PING, ACK, 0, payload))

    def close(self) -> None:
        self._socket.close()

    def _frames(self) -> list[tuple[int, int, int, bytes]]:
        received = self._socket.recv(65_536)
        assert received, "the node has hung up on another client"
        self._rest += received
        whole, self._rest = split(self._rest)
        return whole

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Attacker:
    """A connection of somebody who sends whatever they like. They read what comes back, unless told."""

    def __init__(self, address: str, *, reads: bool = True) -> None:
        self.socket = socket.create_connection(address_of(address), timeout=STUCK)
        self.received = b""
        self.closed = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        if reads:
            self._reader.start()

    def send(self, data: bytes, seconds: float = 3.0) -> int:
        """Send as much as the node takes in that time; returns how many bytes that were."""
        at, until = 0, time.monotonic() + seconds
        self.socket.settimeout(0.1)
        while at < len(data) and time.monotonic() < until and not self.closed.is_set():
            try:
                at += self.socket.send(data[at : at + 65_536])
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                break
        return at

    def wait_for(self, what: bytes, seconds: float = 10.0) -> None:
        until = time.monotonic() + seconds
        while what not in self.received:
            assert time.monotonic() < until, "the node did not answer in time"
            time.sleep(0.005)

    def _read(self) -> None:
        with suppress(OSError):
            while True:
                try:
                    received = self.socket.recv(262_144)
                except TimeoutError:
                    continue
                if not received:
                    break
                self.received = (self.received + received)[-KEPT:]
        self.closed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        if self._reader.is_alive():
            self._reader.join()


def flood(service: Service, begin: bytes, flood: bytes) -> Cost:
    """Attack the gRPC port, and return what that cost: again, a few times, while the bounds are not kept."""
    for _ in range(ATTEMPTS):
        with Watched(service) as cost, Attacker(service.grpc_address) as attacker:
            attacker.send(begin)
            attacker.send(flood)
            attacker.closed.wait(SETTLED)
        if cost.held:
            break
    return cost


def split(received: bytes) -> tuple[list[tuple[int, int, int, bytes]], bytes]:
    """The whole frames of what came, and the rest."""
    whole, at = [], 0
    while len(received) - at >= 9:
        size = int.from_bytes(received[at : at + 3], "big")
        if len(received) - at < 9 + size:
            break
        stream = int.from_bytes(received[at + 5 : at + 9], "big")
        whole.append((received[at + 3], received[at + 4], stream, received[at + 9 : at + 9 + size]))
        at += 9 + size
    return whole, received[at:]


def cpu_of(process: int) -> float:
    """Seconds of processor time that all threads of a process have had."""
    total = 0
    for task in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):  # it has ended
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.rpartition("/")[2].rpartition(":")
    return host, int(port)
