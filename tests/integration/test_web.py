"""The HTTP server against clients that are slow, greedy or many. By sockets, as no proper client behaves like that."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from headgate.service import listener, web
from headgate.service.sockets import bind
from headgate.service.web import WebServer
from headgate.settings_fields import Address

LATEST = 20.0
REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


class App:
    """Answers 200 as soon as it is told to; `/large` with more than buffers hold."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.begun = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun += 1
        while (await receive()).get("more_body"):
            pass
        await self.go.wait()
        body = b"x" * (64 << 20 if scope["path"] == "/large" else 2)
        length = str(len(body)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": body})


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def asks(self, request: bytes = REQUEST) -> bytes:
        """The status line of the answer, whose body has two bytes."""
        self.writer.write(request)
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), LATEST)
        await self.reader.readexactly(2)
        return head

    async def rest(self) -> bytes:
        """All that comes until the server closes."""
        try:
            return await asyncio.wait_for(self.reader.read(-1), LATEST)
        except ConnectionResetError:
            return b""


class Served:
    def __init__(self, server: WebServer, app: App, port: int) -> None:
        self.server = server
        self.app = app
        self._port = port
        self.clients: list[Client] = []

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self._port))
        self.clients.append(client)
        return client

    def plain_socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port))


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[Served]:
    app = App()
    server = WebServer(app, **options)
    sockets = bind(Address("127.0.0.1", 0), "http_address")
    port = sockets[0].getsockname()[1]
    await server.start(sockets)
    one = Served(server, app, port)
    try:
        yield one
    finally:
        app.go.set()
        await server.stop(0)
        for client in one.clients:
            client.writer.close()
            with suppress(ConnectionError):
                await client.writer.wait_closed()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines that a test can wait for."""
    for name in ("HEAD_SECONDS", "BODY_SECONDS", "UNREAD_SECONDS"):
        monkeypatch.setattr(web, name, 0.2)
    monkeypatch.setattr(listener, "TICK", 0.05)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"\r\n", b"HTTP/1.1 408 "),
        (b"GET / HT", b"HTTP/1.1 408 "),
        (b"GET / HTTP/1.1\r\nHost: h\r\n", b"HTTP/1.1 408 "),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhal", b""),
    ],
)
def test_who_does_not_finish_loses_the_connection(sent: bytes, answer: bytes) -> None:
    async def test() -> None:
        async with served() as one:
            client = await one.client()
            client.writer.write(sent)
            got = await client.rest()
            assert got.startswith(answer)
            assert bool(got) == bool(answer)
            client.writer.close()
            async with asyncio.timeout(LATEST):
                while one.server.state.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    run(test)


@pytest.mark.usefixtures("hasty")
def test_bytes_one_by_one_gain_no_time() -> None:
    async def test() -> None:
        async with served() as one:
            client = await one.client()
            assert (await client.asks()).startswith(b"HTTP/1.1 200 ")

            async def drip() -> None:
                while True:
                    client.writer.write(b"\r\n")
                    await asyncio.sleep(0.02)

            dripping = asyncio.create_task(drip())
            assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
            dripping.cancel()

    run(test)


@pytest.mark.usefixtures("hasty")
def test_who_does_not_read_loses_the_connection() -> None:
    async def test() -> None:
        async with served() as one:
            with one.plain_socket() as client:
                client.sendall(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n")
                async with asyncio.timeout(LATEST):
                    while not one.app.begun or one.server.state.connections:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)

    run(test)


@pytest.mark.usefixtures("hasty")
def test_a_long_answer_is_not_the_clients_fault() -> None:
    async def test() -> None:
        async with served() as one:
            one.app.go.clear()
            client = await one.client()
            asking = asyncio.create_task(client.asks())
            await asyncio.sleep(0.6)  # three times any deadline: the point is that real time goes by
            one.app.go.set()
            assert (await asking).startswith(b"HTTP/1.1 200 ")

    run(test)


@pytest.mark.parametrize(
    "head",
    [
        b"X-Large: " + b"x" * 70_000 + b"\r\n",
        b"".join(b"X-%d: %s\r\n" % (number, b"x" * 1_000) for number in range(70)),
        b"X-Endless: " + b"x" * 200_000,
    ],
)
def test_heads_are_bounded(head: bytes) -> None:
    async def test() -> None:
        async with served() as one:
            client = await one.client()
            client.writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n" + head + b"\r\n")
            assert (await client.rest()).startswith(b"HTTP/1.1 431 ")
            assert one.app.begun == 0
            assert (await (await one.client()).asks()).startswith(b"HTTP/1.1 200 ")

    run(test)


def test_a_large_body_is_no_large_head() -> None:
    async def test() -> None:
        async with served() as one:
            client = await one.client()
            body = b"x" * 500_000
            request = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
            assert (await client.asks(request)).startswith(b"HTTP/1.1 200 ")
            assert (await client.asks()).startswith(b"HTTP/1.1 200 ")

    run(test)


def test_nonsense_is_refused() -> None:
    async def test() -> None:
        async with served() as one:
            client = await one.client()
            client.writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
            assert (await client.rest()).startswith(b"HTTP/1.1 400 ")

    run(test)


def test_when_there_are_too_many_those_go_that_have_waited_longest() -> None:
    async def test() -> None:
        async with served(max_connections=10) as one:
            one.app.go.clear()
            busy = await one.client()
            asking = asyncio.create_task(busy.asks())
            waiting = [await one.client() for _ in range(9)]
            async with asyncio.timeout(LATEST):
                while len(one.server.state.connections) < 10:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            late = await one.client()
            assert await waiting[0].rest() == b""
            one.app.go.set()
            assert (await late.asks()).startswith(b"HTTP/1.1 200 ")
            assert (await asking).startswith(b"HTTP/1.1 200 ")
            assert (await waiting[-1].asks()).startswith(b"HTTP/1.1 200 ")

    run(test)


def test_pipelined_requests_are_all_answered() -> None:
    async def test() -> None:
        async with served() as one:
            client = await one.client()
            client.writer.write(REQUEST * 5)
            for _ in range(5):
                assert (await client.asks(b"")).startswith(b"HTTP/1.1 200 ")

    run(test)


def test_a_stop_closes_what_is_idle_and_answers_what_has_begun() -> None:
    async def test() -> None:
        async with served() as one:
            idle, busy, half = [await one.client() for _ in range(3)]
            await idle.asks()
            one.app.go.clear()
            asking = asyncio.create_task(busy.asks())
            half.writer.write(REQUEST[:10])
            async with asyncio.timeout(LATEST):
                while one.app.begun < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            stopping = asyncio.create_task(one.server.stop(LATEST))
            assert await idle.rest() == b""
            one.app.go.set()
            assert b"connection: close" in await asking
            assert b"connection: close" in await half.asks(REQUEST[10:])
            assert await stopping == 0

    run(test)
