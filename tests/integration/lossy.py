"""Proxies that lose replies of Redis servers, and a cluster behind them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import redis

from tests.proxy import Proxy
from tests.topologies import Cluster
from tests.waiting import until


class Lossy(Proxy):
    """Loses every so many replies, or the reply with a number, and with each its connection. What was asked has been
    done."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.every = 0
        self.count = Count()
        self._own_count = count(1)

    def loses(self) -> bool:
        return self.count.loses_next() or (self.every > 0 and next(self._own_count) % self.every == 0)


class Count:
    """Counts the replies that one or several proxies forward."""

    def __init__(self) -> None:
        self.replies = 0
        self.lost = 0  # the number of the reply that is lost; 0: none

    def lose(self, number: int) -> None:
        """Begin to count, and lose the reply with this number."""
        self.replies, self.lost = 0, number

    def loses_next(self) -> bool:
        self.replies += 1
        return self.replies == self.lost


@contextmanager
def behind_proxies() -> Iterator[tuple[Cluster, list[Lossy]]]:
    """A cluster whose servers are reached through proxies, which count their replies together."""
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster())
        proxies = [stack.enter_context(Lossy(server.port)) for server in cluster.masters]
        ports = {proxy.port for proxy in proxies}
        for server, proxy in zip(cluster.masters, proxies, strict=True):
            proxy.count = proxies[0].count
            with redis.Redis(port=server.port) as client:
                client.config_set("cluster-announce-port", proxy.port)

        def announced() -> bool:
            with redis.Redis(port=cluster.masters[0].port) as client:
                slots: Any = client.execute_command("CLUSTER", "SLOTS")
            return {row[2][1] for row in slots} == ports

        until(announced, "all servers are known by the ports of their proxies")
        yield cluster, proxies
