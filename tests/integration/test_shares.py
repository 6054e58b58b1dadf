"""Failure mode local on real servers: nodes count one another, share the limit, and tell the store when it is back."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headgate import Limiter, Rule
from headgate.core.share import Standing
from headgate.limiter import async_heartbeat, heartbeat
from headgate.stores.redis.aio import AsyncRedisStore
from headgate.stores.redis.sync import RedisStore
from headgate.testing import FakeClock
from tests.integration.limiters import ALGORITHMS, AnyLimiter, Awaited, Open, calm
from tests.integration.test_faults import store_of, until_decided
from tests.servers import Server
from tests.topologies import Cluster, SentinelTrio
from tests.waiting import until

LIMIT = 10
NODES = 3
SECOND = 1_000_000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (heartbeat, async_heartbeat):
        monkeypatch.setattr(module, "BEAT_SECONDS", 0.1)


def engine_of(limiter: AnyLimiter) -> Any:
    return (limiter.limiter if isinstance(limiter, Awaited) else limiter)._engine  # type: ignore[union-attr]


def known(limiters: list[AnyLimiter], count: int) -> bool:
    """Whether all know how many they are. A check lets an AsyncLimiter's event loop go on."""
    for limiter in limiters:
        limiter.peek("nobody")
        if isinstance(limiter, Awaited):
            limiter.run(asyncio.sleep(0.02))
    return all(engine_of(limiter).fallback.shares.standing.nodes == count for limiter in limiters)


def test_beats_count_the_living(redis_url: str) -> None:
    clock = FakeClock()
    store = RedisStore(redis_url, clock=clock)
    assert store.record_heartbeat("a", "2", 5 * SECOND) == Standing(1, 0)
    assert store.record_heartbeat("a", "1", 9 * SECOND) == Standing(2, 0)
    assert store.record_heartbeat("a", "2", 5 * SECOND) == Standing(2, 1)
    assert store.record_heartbeat("b", "3", 5 * SECOND) == Standing(1, 0)
    clock.advance(6)
    assert store.record_heartbeat("a", "9", 5 * SECOND) == Standing(2, 1)
    assert store.record_heartbeat("a", "1", 0).nodes == 1
    store.close()


@pytest.fixture(params=[SentinelTrio, Cluster])
def topology_url(request: pytest.FixtureRequest) -> Iterator[str]:
    with request.param() as topology:
        yield topology.url + "?timeout=10"


def test_beats_in_every_topology(topology_url: str) -> None:
    async def record_heartbeat() -> Standing:
        store = AsyncRedisStore(topology_url)
        standing: Standing = await store.record_heartbeat("a", "2", SECOND * 60)
        await store.close()
        return standing

    store = RedisStore(topology_url)
    assert store.record_heartbeat("a", "1", SECOND * 60) == Standing(1, 0)
    store.close()
    assert asyncio.run(record_heartbeat()) == Standing(2, 1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nodes_share_the_limit_and_tell_the_store(own_server: Server, open_limiter: Open, algorithm: str) -> None:
    limiters = [
        open_limiter(calm(LIMIT, algorithm), store=store_of(own_server, timeout=1), failure_mode="local")
        for _ in range(NODES)
    ]
    until(lambda: known(limiters, NODES), "all nodes know of one another")
    own_server.stop()
    decisions = [limiter.check("alice") for _ in range(LIMIT) for limiter in limiters]
    assert {decision.reason for decision in decisions} == {"local_fallback"}
    assert sum(decision.allowed for decision in decisions) == LIMIT
    own_server.start()  # with nothing in it
    for limiter in limiters:
        until_decided(limiter, "bob")
    until(lambda: known(limiters, NODES) and limiters[0].peek("alice").remaining == 0, "the store knows")
    assert not limiters[1].check("alice").allowed


def test_nothing_is_charged_twice(own_server: Server, open_limiter: Open) -> None:
    limiter = open_limiter(calm(LIMIT), store=store_of(own_server, timeout=1), failure_mode="local")
    until(lambda: known([limiter], 1) and until_decided(limiter, "alice"), "it is known")
    limiter.reset("alice")
    own_server.stop()
    assert sum(limiter.check("alice").allowed for _ in range(3)) == 3
    own_server.start()
    until_decided(limiter, "bob")
    until(lambda: known([limiter], 1) and limiter.peek("alice").remaining == LIMIT - 3, "the store knows")
    own_server.stop()
    assert limiter.check("alice").remaining == LIMIT - 4  # what was admitted in the outage before still counts here
    own_server.start()
    until_decided(limiter, "bob")
    until(lambda: known([limiter], 1) and limiter.peek("alice").remaining == LIMIT - 1, "the store knows")


def test_no_rule_is_local_no_beats(own_server: Server, open_limiter: Open) -> None:
    limiter = open_limiter(calm(LIMIT), store=store_of(own_server, timeout=1))
    local = open_limiter(
        [Rule(id="r", quota=calm(LIMIT), failure_mode="local")], store=store_of(own_server, timeout=1), name="local"
    )
    until_decided(limiter, "alice")
    until_decided(local, "alice")
    with own_server.client() as client:
        until(lambda: known([local], 1) and client.keys("rl:nodes:*"), "it beats")
        assert client.keys("rl:nodes:*") == [b"rl:nodes:{local}"]
        local.close()
        assert client.keys("rl:nodes:*") == []
    local.close = lambda: None  # type: ignore[method-assign]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_is_a_node_of_its_own(own_server: Server) -> None:
    with Limiter(calm(LIMIT), store=store_of(own_server, timeout=1), failure_mode="local") as limiter:
        until(lambda: known([limiter], 1) and limiter.check("alice").reason == "within_limit", "it is known")
        child = os.fork()
        if child == 0:
            while True:  # until it is killed
                limiter.check("alice")
                time.sleep(0.01)
        try:
            until(lambda: known([limiter], 2), "the child is known")
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)
