"""A limiter that was closed has given everything back; whoever uses it again, is limited as before."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate import AsyncLimiter, Limiter
from tests.integration.limiters import calm
from tests.proxy import Proxy
from tests.servers import Server
from tests.topologies import SERVICE, Cluster, SentinelTrio
from tests.waiting import until

KINDS = ["single", "sentinel", "cluster"]
TIMEOUT = "timeout=10"
TOLD = ["within_limit", "within_limit", "over_limit"]


@pytest.fixture(scope="module")
def trio() -> Iterator[SentinelTrio]:
    with SentinelTrio() as trio:
        yield trio


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "single":
        server: Server = request.getfixturevalue("own_server")
        return f"{server.url}?{TIMEOUT}"
    if request.param == "sentinel":
        trio = request.getfixturevalue("trio")
        with trio.master().client() as client:
            client.flushall()
        return f"{trio.url}?{TIMEOUT}"
    cluster: Cluster = request.getfixturevalue("cluster")
    cluster.empty()
    return f"{cluster.url}?{TIMEOUT}"


def discoveries() -> int:
    return sum(thread.name == "headgate-discovery" for thread in threading.enumerate())


async def reasons(limiter: AsyncLimiter, subject: str = "alice") -> list[str]:
    return [(await limiter.check(subject)).reason for _ in TOLD]


@pytest.mark.parametrize("used", [False, True])
def test_a_limiter_limits_after_it_was_closed(url: str, used: bool) -> None:
    with Limiter(calm(2), store=url) as limiter:
        if used:
            limiter.check("bob")
        for subject in ("alice", "carol"):
            limiter.close()
            assert [limiter.check(subject).reason for _ in TOLD] == TOLD
    until(lambda: not discoveries(), "the end of its threads")


@pytest.mark.parametrize("used", [False, True])
def test_an_async_limiter_limits_after_it_was_closed(url: str, used: bool) -> None:
    async def main() -> None:
        async with AsyncLimiter(calm(2), store=url) as limiter:
            if used:
                await limiter.check("bob")
            for subject in ("alice", "carol"):
                await limiter.close()
                assert await reasons(limiter, subject) == TOLD
                assert (await limiter.check_many(["dave"]))[0].reason == "within_limit"
                await limiter.reset("dave")

    asyncio.run(main())
    until(lambda: not discoveries(), "the end of its threads")


def test_it_may_be_used_in_another_event_loop_after_it_was_closed(url: str) -> None:
    with asyncio.Runner() as first, asyncio.Runner() as second:
        limiter = AsyncLimiter(calm(2), store=url)
        first.run(limiter.check("bob"))
        first.run(limiter.close())
        assert second.run(reasons(limiter)) == TOLD
        second.run(limiter.close())
        assert first.run(reasons(limiter, "carol")) == TOLD
        first.run(limiter.close())


def test_closing_under_load_answers_everybody_and_leaves_nothing_open(url: str) -> None:
    """Callers come all the time, singly and in groups, while it is closed by several, some of whom give up."""

    async def main() -> None:
        limiter = AsyncLimiter(calm(1_000_000), store=url, failure_mode="closed")
        told: list[str] = []
        stopped = False

        async def caller(number: int) -> None:
            while not stopped:
                if number % 2:
                    told.append((await limiter.check(f"user-{number}")).reason)
                else:
                    told.extend(one.reason for one in await limiter.check_many([f"user-{number}", "everybody"]))
                await asyncio.sleep(0)

        callers = [asyncio.create_task(caller(number)) for number in range(20)]
        for turn in range(30):
            await asyncio.sleep(0.005)
            closing = [asyncio.create_task(limiter.close()) for _ in range(1 + turn % 3)]
            await asyncio.sleep(0)
            closing[turn % 2 - 1].cancel()
            async with asyncio.timeout(10):
                await asyncio.wait(closing)
        stopped = True
        async with asyncio.timeout(10):
            await asyncio.gather(*callers)
        assert set(told) <= {"within_limit", "fail_closed"}
        assert (await limiter.check("alice")).reason == "within_limit"
        await limiter.close()

    asyncio.run(main())
    gc.collect()  # which tells of connections that were left open
    until(lambda: not discoveries(), "the end of its threads")


def test_connections_are_given_back_each_time(proxy: Proxy) -> None:
    async def main() -> None:
        limiter = AsyncLimiter(calm(2), store=f"{proxy.url}?{TIMEOUT}")
        for _ in range(3):
            await limiter.check("alice")
            assert len(proxy._open) == 1
            await limiter.close()
            await asyncio.to_thread(until, lambda: not proxy._open, "the end of the connection")

    asyncio.run(main())


def test_a_closed_limiter_still_finds_the_next_master(trio: SentinelTrio) -> None:
    """What was known before is not all that it goes by."""
    with Limiter(calm(2), store=f"{trio.url}?{TIMEOUT}", failure_mode="closed") as limiter:
        limiter.check("bob")
        limiter.close()
        with trio.sentinels[0].client() as sentinel, trio.master().client() as master:
            sentinel.execute_command("SENTINEL", "FAILOVER", SERVICE)
            until(lambda: master.execute_command("ROLE")[0] == b"slave", "another master")
        until(lambda: limiter.check("erin").reason == "within_limit", "a decision by it")


def test_an_embedded_store_goes_on_while_somebody_else_has_it(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/c?{TIMEOUT}"

    async def main() -> None:
        limiter = AsyncLimiter(calm(2), store=url)
        await limiter.close()
        assert await reasons(limiter) == TOLD
        await limiter.close()

    with Limiter(calm(2), store=url):
        asyncio.run(main())
