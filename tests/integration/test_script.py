"""The script on the server: it may be forgotten at any moment, with or without everything else, and nobody notices."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from headgate import AsyncLimiter, Limiter
from tests.integration.limiters import ALGORITHMS, Open, calm
from tests.servers import Server, binaries

pytestmark = pytest.mark.every_server
LIMIT = 1_000


@contextmanager
def flushing(server: Server, pause: float = 0.003) -> Iterator[Counter[str]]:
    """Has the server forget its scripts again and again; counts how often."""
    count: Counter[str] = Counter()
    ended = threading.Event()

    def flush() -> None:
        with server.client() as client:
            while not ended.wait(pause):
                client.script_flush()
                count["flushes"] += 1

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        yield count
    finally:
        ended.set()
        thread.join()


def script_calls(server: Server) -> dict[str, int]:
    """How often the server was sent EVALSHA and EVAL."""
    with server.client() as client:
        stats = client.info("commandstats")
    return {name: int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("evalsha", "eval")}


def test_flushed_scripts_are_not_noticed_by_tasks(redis_server: Server, redis_url: str) -> None:
    async def main() -> Counter[str]:
        counted: Counter[str] = Counter()
        async with AsyncLimiter(calm(LIMIT, "gcra"), store=redis_url) as limiter:

            async def task() -> None:
                for _ in range(24):
                    counted[(await limiter.check("alice")).reason] += 1

            await asyncio.gather(*(task() for _ in range(64)))
        return counted

    before = script_calls(redis_server)
    with flushing(redis_server) as flushed:
        counted = asyncio.run(main())
    assert counted == {"within_limit": LIMIT, "over_limit": 24 * 64 - LIMIT}
    assert flushed["flushes"] > 0
    assert script_calls(redis_server)["eval"] > before["eval"]


def test_flushed_scripts_are_not_noticed_by_threads(redis_server: Server, redis_url: str) -> None:
    threads = 16

    def work(limiter: Limiter) -> Counter[str]:
        return Counter(limiter.check("alice").reason for _ in range(95))

    before = script_calls(redis_server)
    with (
        Limiter(calm(LIMIT, "token_bucket"), store=redis_url) as limiter,
        flushing(redis_server, pause=0) as flushed,  # also between two commands of one pipeline
        ThreadPoolExecutor(threads) as pool,
    ):
        counted = sum(pool.map(work, [limiter] * threads), Counter[str]())
    assert counted == {"within_limit": LIMIT, "over_limit": threads * 95 - LIMIT}
    assert flushed["flushes"] > 0
    assert script_calls(redis_server)["eval"] > before["eval"] + 1


def test_flushed_scripts_charge_no_group_twice(redis_server: Server, redis_url: str) -> None:
    """The answer of every check counts down by one: what NOSCRIPT made it send again was charged once."""
    with Limiter(calm(LIMIT, "gcra"), store=redis_url) as limiter, redis_server.client() as client:
        for sent in range(1, 201):
            client.script_flush()
            assert limiter.check("alice").remaining == LIMIT - sent


@pytest.mark.parametrize("kind", sorted(binaries()))
def test_a_server_that_never_saw_the_script_is_sent_it_once(kind: str, open_limiter: Open) -> None:
    with Server(binaries()[kind]) as server:
        limiter = open_limiter(calm(LIMIT), store=f"{server.url}?timeout=10")
        assert [limiter.check("alice").remaining for _ in range(5)] == [999, 998, 997, 996, 995]
        assert script_calls(server) == {"evalsha": 4, "eval": 1}


@pytest.mark.parametrize("kind", sorted(binaries()))
def test_the_next_check_after_a_restart_is_decided_by_the_server(kind: str, open_limiter: Open) -> None:
    """Nothing was persisted, so that it starts anew; the limiter is the same one."""
    with Server(binaries()[kind]) as server:
        limiter = open_limiter(calm(LIMIT), store=f"{server.url}?timeout=10", failure_mode="closed")
        assert limiter.check("alice", cost=400).remaining == 600
        server.stop()
        server.start()
        after = limiter.check("alice")
        assert (after.reason, after.remaining) == ("within_limit", 999)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_script_leaves_nothing_global_behind(redis_server: Server, redis_url: str, algorithm: str) -> None:
    """Two calls of different quotas in a row on one interpreter: neither remembers the other's figures."""
    with (
        Limiter(calm(10, algorithm), store=redis_url, name="small") as small,
        Limiter(calm(1_000, algorithm), store=redis_url, name="large") as large,
    ):
        for taken in range(1, 6):
            assert (small.check("alice").remaining, large.check("alice").remaining) == (10 - taken, 1000 - taken)
