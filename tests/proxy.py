"""A TCP proxy on loopback that a test can slow down, hold up and cut: what networks do to a store."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Self


class Link:
    """One connection through the proxy, from a client to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._sockets = (client, server)
        self._passing = threading.Event()
        self._passing.set()
        self.asked = threading.Event()  # set as soon as the client has sent something since it was last cleared
        self._threads = [
            threading.Thread(target=self._forward, daemon=True),
            threading.Thread(target=self._answer, daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def hold(self) -> None:
        """Keep replies back until `release`; requests still reach the server."""
        self.asked.clear()
        self._passing.clear()

    def release(self) -> None:
        self._passing.set()

    def cut(self) -> None:
        """End the connection, towards both sides. What was held back is lost."""
        for end in self._sockets:
            with contextlib.suppress(OSError):  # the other side was faster
                end.shutdown(socket.SHUT_RDWR)
        self._passing.set()

    def close(self) -> None:
        self.cut()
        for thread in self._threads:
            thread.join()
        for end in self._sockets:
            end.close()

    def _forward(self) -> None:
        client, server = self._sockets
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                self.asked.set()
                self._proxy.forwards(data)
                server.sendall(data)
        self._ended()

    def _answer(self) -> None:
        client, server = self._sockets
        with contextlib.suppress(OSError):
            while data := server.recv(self._proxy.chunk):
                seconds = self._proxy.delay()
                if seconds:
                    time.sleep(seconds)
                self._passing.wait()
                if self._proxy.loses():
                    break
                client.sendall(data)
        self._ended()

    def _ended(self) -> None:
        self.cut()
        self._proxy.ended(self)


def no_delay() -> float:
    return 0.0


class Proxy:
    """Forwards connections to `port`. Use as a context manager.

    `delay` says by how many seconds to hold up a reply, or each `chunk` bytes of it. `links` are all connections
    ever made, in order; `most_open` is how many of them were open at a time.
    """

    def __init__(self, port: int) -> None:
        self.delay: Callable[[], float] = no_delay
        self.chunk = 65_536
        self.links: list[Link] = []
        self.most_open = 0
        self._target = port
        self._open: set[Link] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _port_for(self, _client: socket.socket) -> int:
        """Where to forward a connection."""
        return self._target

    def forwards(self, data: bytes) -> None:
        """Told of what a client has sent, just before the server is."""

    def loses(self) -> bool:
        """Whether a reply is lost, and its connection with it: what was asked has been done."""
        return False

    def ended(self, link: Link) -> None:
        with self._lock:
            self._open.discard(link)

    def cut(self) -> None:
        """End every connection that is open now."""
        for link in list(self.links):
            link.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._port_for(client)))
            except OSError:  # nobody there
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = Link(self, client, server)
            with self._lock:
                self.links.append(link)
                self._open.add(link)
                self.most_open = max(self.most_open, len(self._open))
            link.start()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for link in self.links:
            link.close()
