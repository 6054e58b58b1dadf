"""Three real servers as three regions, far apart: every way from one to another is a proxy that delays, or is cut."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Self

from headgate.regions import Member, Region
from tests.proxy import Proxy
from tests.servers import Server
from tests.topologies import topology_binary

NAMES = ("ap", "eu", "us")
APART = 0.15  # seconds, there and back


class Far(Proxy):
    """The way from one region to another."""

    def __init__(self, port: int, apart: float) -> None:
        super().__init__(port)
        self._apart = apart
        self._is_cut = False
        self.delay = self._late

    def sever(self) -> None:
        """Nothing comes back any more, on this connection or another; what is asked may still arrive."""
        self._is_cut = True

    def heal(self) -> None:
        self._is_cut = False

    def _late(self) -> float:
        while self._is_cut:
            time.sleep(0.005)
        return self._apart

    def __exit__(self, *exc: object) -> None:
        self.heal()
        super().__exit__(*exc)


class Continents:
    """The regions. Use as a context manager. `servers` are their stores; `links` the ways between, by from and to."""

    def __init__(self, apart: float = APART, servers: Mapping[str, Server] | None = None) -> None:
        self.servers = {name: (servers or {}).get(name) or Server(topology_binary()) for name in NAMES}
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

    def empty(self) -> None:
        """Forget what was counted."""
        for server in self.servers.values():
            if server.running:
                with server.client() as client:
                    client.flushall()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        for server in self.servers.values():
            self._stack.enter_context(server)
        for here in NAMES:
            for there in NAMES:
                if here != there:
                    far = Far(self.servers[there].port, self._apart)
                    self.links[here, there] = self._stack.enter_context(far)

    def __exit__(self, *exc: object) -> None:
        self._stack.close()
