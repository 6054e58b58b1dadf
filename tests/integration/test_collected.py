"""Limiters that nobody closed: when they are garbage, their connections are closed."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from headgate import AsyncLimiter, Limiter, Rule
from tests.integration.limiters import calm
from tests.servers import Server
from tests.topologies import Cluster
from tests.waiting import until

LIMITERS = 100
PATIENCE = 15.0  # seconds
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"rules": "100000/minute"},
    "local": {"rules": "100000/minute", "failure_mode": "local"},
    "leased": {"rules": [Rule(id="leased", quota=calm(1_000_000), sync="leased")]},
}


def connections(servers: list[Server]) -> int:
    count = 0
    for server in servers:
        with server.client() as client:
            count += len(client.client_list(_type="normal")) - 1  # its own
    return count


async def expect(servers: list[Server], before: int) -> None:
    """Wait until there are no more connections than before."""
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE
    while True:
        gc.collect()
        await asyncio.sleep(0.05)
        left = await asyncio.to_thread(connections, servers)
        if left <= before or loop.time() > end:
            assert left <= before
            return


async def use(url: str, options: dict[str, Any]) -> None:
    for _ in range(LIMITERS):
        limiter = AsyncLimiter(store=url, **options)
        for _ in range(3):
            assert await limiter.check(user="alice")


@pytest.mark.parametrize("kind", KINDS)
def test_async_limiters_that_are_garbage_keep_no_connections(redis_server: Server, redis_url: str, kind: str) -> None:
    async def scenario() -> None:
        before = connections([redis_server])
        await use(redis_url, KINDS[kind])
        await expect([redis_server], before)

    asyncio.run(scenario())


def test_async_limiters_on_a_cluster_that_are_garbage_keep_no_connections(cluster: Cluster) -> None:
    async def scenario() -> None:
        cluster.empty()
        before = connections(cluster.masters)
        await use(cluster.url + "?timeout=10", {"rules": "1000/minute"})
        await expect(cluster.masters, before)

    asyncio.run(scenario())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python's word on unclosed sockets
@pytest.mark.parametrize("kind", KINDS)
def test_limiters_that_are_garbage_keep_no_connections(redis_server: Server, redis_url: str, kind: str) -> None:
    before = connections([redis_server])
    for _ in range(LIMITERS // 4):
        limiter: Any = Limiter(store=redis_url, **KINDS[kind])
        assert limiter.check(user="alice")
    del limiter

    def gone() -> bool:
        gc.collect()
        return connections([redis_server]) <= before

    until(gone, "all connections are closed")
