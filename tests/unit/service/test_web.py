"""How long connections of the HTTP server last."""

from __future__ import annotations

import asyncio
from typing import Any

from headgate.service.web import IDLE_SECONDS, WebServer

REQUEST = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"


class Client:
    """A connection's other end, which reads nothing but keeps what it gets."""

    def __init__(self) -> None:
        self.data = b""
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.data += data

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def get_extra_info(self, _: str) -> None:
        return None

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


def test_a_connection_ends_when_it_was_idle_for_long_enough() -> None:
    async def story() -> None:
        server, client = WebServer(app), Client()
        connection: Any = server._connection()
        connection.connection_made(client)
        for number in range(1, 4):
            connection.data_received(REQUEST)
            await asyncio.sleep(0.01)
            assert client.data.count(b"204") == number
            connection.look(asyncio.get_running_loop().time() + IDLE_SECONDS - 1)
            assert not client.aborted
        connection.look(asyncio.get_running_loop().time() + IDLE_SECONDS + 1)
        assert client.aborted

    asyncio.run(story())
