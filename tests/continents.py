"""Three real servers as three regions, far apart: every way from one to another is a proxy that delays, or is cut."""

from __future__ import annotations

import heapq
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from random import Random
from threading import Condition, Thread
from typing import Any, Self

from hiredis import Reader

from headgate.regions import Member, Region
from tests.proxy import Proxy
from tests.servers import Server, Started, default_binary

NAMES = ("ap", "eu", "us")
APART = 0.15  # seconds, there and back


LOST = 0.2  # of the replies, on a link that is unreliable
AT_ONCE = 0.02  # seconds after which every message arrives once more there,
LATE = 0.3  # and after which it does so yet again, at the earliest: newer ones have been there


class Echo:
    """Sends a server again what it was sent before, on a connection of its own. Use as a context manager."""

    def __init__(self, port: int) -> None:
        self.repeated = 0  # messages that the server has executed once more
        self._port = port
        self._due: list[tuple[float, bytes]] = []
        self._changed = Condition()
        self._ending = False
        self._thread = Thread(target=self._work, daemon=True)

    def repeat(self, message: bytes, seconds: float) -> None:
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + seconds, message))
            self._changed.notify()

    def _work(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port)) as server:
            while (message := self._next()) is not None:
                server.sendall(message)
                reader = Reader()
                while reader.gets() is False:
                    reader.feed(server.recv(65_536))
                self.repeated += 1

    def _next(self) -> bytes | None:
        with self._changed:
            while not self._ending:
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._due)[1]
                self._changed.wait(wait)
        return None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify()
        self._thread.join()


class Far(Proxy):
    """The way from one region to another."""

    def __init__(self, port: int, apart: float) -> None:
        super().__init__(port)
        self.lost = 0  # replies
        self._apart = apart
        self._is_cut = False
        self._echo: Echo | None = None
        self._late = LATE
        self._random = Random(port)
        self.delay = self._held_up

    def disturb(self, echo: Echo, late: float) -> None:
        """From now on, lose replies, and have messages arrive again."""
        self._echo, self._late = echo, late

    def calm(self) -> None:
        self._echo = None

    def forwards(self, data: bytes) -> None:
        echo = self._echo
        if echo is not None and _is_message(data):
            echo.repeat(data, AT_ONCE)
            echo.repeat(data, self._random.uniform(LATE, self._late))

    def loses(self) -> bool:
        lost = self._echo is not None and self._random.random() < LOST
        self.lost += lost
        return lost

    def sever(self) -> None:
        """Nothing comes back any more, on this connection or another; what is asked may still arrive."""
        self._is_cut = True

    def heal(self) -> None:
        self._is_cut = False

    def _held_up(self) -> float:
        while self._is_cut:
            time.sleep(0.005)
        return self._apart

    def __exit__(self, *exc: object) -> None:
        self.heal()
        super().__exit__(*exc)


def _is_message(data: bytes) -> bool:
    """Whether it is a command, one and whole."""
    reader = Reader()
    reader.feed(data)
    return reader.gets() is not False and not reader.has_data()


class Continents(Started):
    """The regions. Use as a context manager. `servers` are their stores; `links` the ways between, by from and to."""

    def __init__(self, apart: float = APART, servers: Mapping[str, Server] | None = None) -> None:
        self.servers = {name: (servers or {}).get(name) or Server(default_binary()) for name in NAMES}
        self.links: dict[tuple[str, str], Far] = {}
        self._apart = apart
        self._stack = ExitStack()

    def region(self, name: str, weights: dict[str, int] | None = None, **options: Any) -> Region:
        weights = weights or dict.fromkeys(NAMES, 1)
        urls = {other: self.links[name, other].url for other in NAMES if other != name}
        members = [Member(other, urls.get(other), weights[other]) for other in NAMES]
        return Region(name, members, central="eu", **options)

    def options(self, name: str, **options: Any) -> dict[str, Any]:
        """What makes a limiter one of this region."""
        return {"store": f"{self.servers[name].url}?timeout=0.5", "region": self.region(name, **options)}

    def sever(self, names: Iterable[str]) -> None:
        """Cut the link between two regions, both ways."""
        one, other = names
        self.links[one, other].sever()
        self.links[other, one].sever()

    def heal(self) -> None:
        for link in self.links.values():
            link.heal()

    @contextmanager
    def unreliable(self, late: float) -> Iterator[list[Echo]]:
        """All links lose replies, and repeat messages, at once and up to `late` seconds later. Waits for the last."""
        with ExitStack() as stack:
            echoes = {name: stack.enter_context(Echo(server.port)) for name, server in self.servers.items()}
            for (_, there), link in self.links.items():
                link.disturb(echoes[there], late)
            yield list(echoes.values())
            for link in self.links.values():
                link.calm()
            time.sleep(late)

    def empty(self) -> None:
        """Forget what was counted."""
        for server in self.servers.values():
            if server.running:
                with server.client() as client:
                    client.flushall()

    def start(self) -> None:
        for server in self.servers.values():
            self._stack.enter_context(server)
        for here in NAMES:
            for there in NAMES:
                if here != there:
                    far = Far(self.servers[there].port, self._apart)
                    self.links[here, there] = self._stack.enter_context(far)

    def __exit__(self, *exc: object) -> None:
        self._stack.close()
