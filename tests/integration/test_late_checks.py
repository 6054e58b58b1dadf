"""Checks that a failure mode decides because the store is late: those that it admits are charged all the same."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headgate import AsyncLimiter, Limiter
from tests.integration.limiters import calm
from tests.servers import Server
from tests.topologies import halt, resume
from tests.waiting import until

LIMIT = 1_000
QUOTA = calm(LIMIT, "fixed_window")
CHECKS = 11  # one of which is under way, while the others have queued behind it

modes = pytest.mark.parametrize(("mode", "expected"), [("open", CHECKS), ("closed", 1)])


def options(server: Server, mode: str) -> dict[str, Any]:
    return {"store": f"{server.url}?timeout=0.3&max_in_flight=1&max_batch=1&connect_timeout=60", "failure_mode": mode}


def charged(server: Server) -> int:
    with Limiter(QUOTA, store=f"{server.url}?timeout=10") as limiter:
        return LIMIT - limiter.peek("alice").remaining


@modes
def test_tasks_that_were_admitted_without_the_store_are_charged(own_server: Server, mode: str, expected: int) -> None:
    async def main() -> None:
        async with AsyncLimiter(QUOTA, **options(own_server, mode)) as limiter:
            while (await limiter.check("warm")).reason != "within_limit":
                pass
            halt(own_server)
            decisions = await asyncio.gather(*(limiter.check("alice") for _ in range(CHECKS)))
            resume(own_server)
            assert {decision.reason for decision in decisions} == {f"fail_{mode}"}
            await asyncio.to_thread(until, lambda: charged(own_server) == expected, "all are charged")

    asyncio.run(main())
    assert charged(own_server) == expected


@modes
def test_threads_that_were_admitted_without_the_store_are_charged(own_server: Server, mode: str, expected: int) -> None:
    with Limiter(QUOTA, **options(own_server, mode)) as limiter, ThreadPoolExecutor(CHECKS) as threads:
        until(lambda: limiter.check("warm").reason == "within_limit", "a decision by the store")
        halt(own_server)
        decisions = list(threads.map(limiter.check, ["alice"] * CHECKS))
        resume(own_server)
        assert {decision.reason for decision in decisions} == {f"fail_{mode}"}
        until(lambda: charged(own_server) == expected, "all are charged")
    assert charged(own_server) == expected
