"""The breaker between a limiter and a real server: a dead one costs little time, and is told of; it heals by itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from headgate import AsyncLimiter, Limiter
from headgate.errors import StoreError
from headgate.stores.breaker import GRACE_SECONDS
from headgate.stores.urls import open_async_store, open_store
from tests.integration.limiters import AnyLimiter, Awaited, Open, calm
from tests.proxy import Proxy, no_delay
from tests.servers import Server, default_binary
from tests.topologies import halt, resume
from tests.waiting import until

QUOTA = calm(1_000_000)
SOON = 1.5  # seconds: the bound is 1, on a machine that has nothing else to do (`make chaos`)


class Told:
    """An observer that remembers what it was told of failures and breakers."""

    def __init__(self) -> None:
        self.failures = 0
        self.states: list[str] = []
        self.nodes: set[str] = set()

    def called(self, seconds: float, groups: int) -> None:
        assert seconds >= 0
        assert groups >= 0

    def failed(self, error: StoreError, seconds: float, groups: int) -> None:
        assert groups >= 0, error
        self.failures += seconds >= 0

    def breaker(self, node: str, state: str) -> None:
        self.nodes.add(node)
        self.states.append(state)


@contextmanager
def observed(kind: str, url: str, told: Told) -> Iterator[AnyLimiter]:
    """A limiter of failure mode closed."""
    if kind == "Limiter":
        store = open_store(url, None, observer=told)
        yield Limiter(QUOTA, store=store, failure_mode="closed")
        store.close()
    else:
        awaited = open_async_store(url, None, observer=told)
        limiter = Awaited(QUOTA, store=awaited, failure_mode="closed")
        yield limiter
        limiter.run(awaited.close())
        limiter.close()


@pytest.mark.parametrize("kind", ["Limiter", "AsyncLimiter"])
def test_a_server_that_does_not_answer_is_left_alone(
    own_server: Server, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    with observed(kind, f"{own_server.url}?timeout=0.2", told) as limiter:
        until(lambda: limiter.check("alice").reason == "within_limit", "a decision by the store")
        told.failures = 0
        caplog.clear()
        caplog.set_level(logging.WARNING, logger="headgate.breaker")
        halt(own_server)
        began = time.monotonic()
        assert {limiter.check("alice").reason for _ in range(500)} == {"fail_closed"}
        took = time.monotonic() - began
        assert told.failures <= 1 + (GRACE_SECONDS + took) / 0.2, "callers waited after the first second"
        assert told.states[-1] in ("open", "half_open")
        assert told.nodes == {f"127.0.0.1:{own_server.port}"}
        resume(own_server)
        back = time.monotonic()
        until(lambda: limiter.check("alice").reason == "within_limit", "a decision by the store")
        assert time.monotonic() - back < SOON
        assert told.states[-1] == "closed"
    lines = [record.getMessage() for record in caplog.records if record.name == "headgate.breaker"]
    name = f"Redis at 127.0.0.1:{own_server.port}"
    assert lines == [f"{name}: breaker open (Redis did not answer within 200 ms)", f"{name}: breaker closed"]


@pytest.mark.parametrize("kind", ["Limiter", "AsyncLimiter"])
def test_a_server_that_was_late_is_asked_again_as_soon_as_it_answers(own_server: Server, kind: str) -> None:
    """Nobody waits for the next probe, which is an hour away: the late replies and the first one tell."""
    told = Told()
    url = f"{own_server.url}?timeout=0.2&connect_timeout=60&probe_every=3600"
    with observed(kind, url, told) as limiter:
        until(lambda: limiter.check("alice").reason == "within_limit", "a decision by the store")
        halt(own_server)
        assert {limiter.check("alice").reason for _ in range(10)} == {"fail_closed"}
        assert "open" in told.states
        resume(own_server)
        until(lambda: limiter.check("alice").reason == "within_limit", "a decision by the store")
        assert told.states[-1] == "closed"


SILENT = "timeout=0.5&probe_every=3600"  # whoever is not decided by the first probe never is


def test_connections_of_threads_that_fell_silent_do_not_cost_a_probe_each(proxy: Proxy) -> None:
    with Limiter(QUOTA, store=f"{proxy.url}?{SILENT}", failure_mode="closed") as limiter:
        proxy.delay = lambda: 0.05  # so that they are under way at the same time
        with ThreadPoolExecutor(8) as threads:
            until(lambda: len(proxy.links) >= 4 or not list(threads.map(limiter.check, range(8))), "four connections")
        proxy.delay = no_delay
        limiter.check("a sign of life")
        for link in list(proxy.links):
            link.hold()
        assert limiter.check("waits").reason == "fail_closed"
        assert limiter.check("probe").reason == "within_limit"


async def open_four(proxy: Proxy, limiter: AsyncLimiter) -> None:
    """Have enough to do for four connections."""
    proxy.delay = lambda: 0.05
    async with asyncio.timeout(30):
        while len(proxy.links) < 4:
            await asyncio.gather(*(limiter.check(f"user-{n}") for n in range(8)))
    proxy.delay = no_delay
    await limiter.check("a sign of life")


def test_connections_of_tasks_that_fell_silent_do_not_cost_a_probe_each(proxy: Proxy) -> None:
    async def main() -> None:
        async with AsyncLimiter(QUOTA, store=f"{proxy.url}?{SILENT}&max_batch=1", failure_mode="closed") as limiter:
            await open_four(proxy, limiter)
            for link in list(proxy.links):
                link.hold()
            decisions = await asyncio.gather(limiter.check("waits"), limiter.check("waits, too"))
            assert [decision.reason for decision in decisions] == ["fail_closed"] * 2
            assert (await limiter.check("probe")).reason == "within_limit"
            assert (await limiter.check("after that")).reason == "within_limit"

    asyncio.run(main())


def test_connections_that_are_answered_meanwhile_are_kept(proxy: Proxy) -> None:
    """One falls silent, of four: the server is alive, and the three others are as good as new."""

    async def main() -> None:
        store = open_async_store(f"{proxy.url}?{SILENT}&max_batch=1", None, observer=told)
        limiter = AsyncLimiter(QUOTA, store=store, failure_mode="closed")
        await open_four(proxy, limiter)
        links = len(proxy.links)
        proxy.links[0].hold()
        some = asyncio.gather(*(limiter.check(f"user-{n}") for n in range(8)))
        await asyncio.sleep(0.01)  # they have taken all four, so that one of them is on the silent one
        while not some.done():
            assert (await limiter.check("meanwhile")).reason == "within_limit"
            await asyncio.sleep(0.01)
        assert sorted(one.reason for one in await some) == ["fail_closed", *["within_limit"] * 7]
        assert len(proxy.links) == links
        assert told.states == ["closed"]
        await store.close()

    told = Told()
    asyncio.run(main())


def test_a_server_that_is_loading_is_a_fault_that_heals(open_limiter: Open, tmp_path: Path) -> None:
    binary = default_binary()
    options = ("--dir", str(tmp_path), "--enable-debug-command", "yes")
    slow = ("--key-load-delay", "3000", "--loading-process-events-interval-bytes", "1024")
    with Server(binary, options) as server, server.client() as client:
        for n in range(500):
            client.set(f"key-{n}", "x" * 200)
        client.save()
        limiter = open_limiter(QUOTA, store=f"{server.url}?probe_every=0.05", failure_mode="closed")
        until(lambda: limiter.check("alice").reason == "within_limit", "a decision by the store")
        server.stop()
        loading = Server(binary, (*options, *slow), port=server.port, patient=False)
        with loading:
            reasons = []

            def healed() -> bool:
                reasons.append(limiter.check("alice").reason)
                return reasons[-1] == "within_limit"

            until(healed, "it has loaded")
            assert set(reasons) == {"fail_closed", "within_limit"}
