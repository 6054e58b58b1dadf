"""TLS in front of servers that may not speak it: not every Redis or Valkey at hand was built with it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from typing import Self

from tests.proxy import Proxy

HANDSHAKE = b"\x16"  # the first byte of what a client says over TLS


class TlsProxy(Proxy):
    """Forwards connections to `port`, over TLS and in the clear alike. Use as a context manager.

    One port for both: a Sentinel watches over its master in the clear, and names that port to clients who speak TLS.
    """

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        super().__init__(port)
        self.over_tls = self.in_the_clear = 0  # connections
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._unwraps = 0  # the port on which TLS ends
        self._ready = threading.Event()
        self._unwrapping = threading.Thread(target=self._run, daemon=True)

    def _port_for(self, _client: socket.socket) -> int:
        if _client.recv(1, socket.MSG_PEEK) != HANDSHAKE:
            self.in_the_clear += 1
            return super()._port_for(_client)
        self.over_tls += 1
        return self._unwraps

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._context)
        self._unwraps = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:  # nobody there
            writer.close()
            return
        await asyncio.gather(_pass_on(reader, to_server), _pass_on(from_server, writer))

    def __enter__(self) -> Self:
        self._unwrapping.start()
        assert self._ready.wait(10)
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._loop.call_soon_threadsafe(self._over.set)
        self._unwrapping.join()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:  # the other side was faster
        pass
    finally:
        writer.close()
