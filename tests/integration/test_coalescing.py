"""Checks of many tasks share calls, and connections: one call per tick, within bounds, each answer to its asker."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headgate import AsyncLimiter, Decision, Quota
from headgate.stores.redis.batcher import EARLY
from tests.integration.limiters import Open, calm
from tests.proxy import Proxy
from tests.servers import Server

LIMIT = 1_000_000_000
QUOTA = calm(LIMIT, "fixed_window")


class Watch:
    """What the server saw of a piece of work: one entry per script call, the number of keys that it named."""

    def __init__(self, server: Server) -> None:
        self._client = server.client()
        self.calls: list[int] = []

    def __enter__(self) -> Watch:
        self._client.config_set("slowlog-max-len", 100_000)
        self._client.config_set("slowlog-log-slower-than", 0)
        self._client.slowlog_reset()
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.config_set("slowlog-log-slower-than", -1)
        for entry in reversed(self._client.slowlog_get(100_000)):
            found = re.match(rb"EVAL(?:SHA)? .*? (\d+) rl:", entry["command"], re.DOTALL)
            if found:
                self.calls.append(int(found[1]))
        self._client.close()


@asynccontextmanager
async def warm(rules: Quota, url: str) -> AsyncIterator[AsyncLimiter]:
    """A limiter whose script the server knows."""
    async with AsyncLimiter(rules, store=url) as limiter:
        await limiter.check("warm")
        yield limiter


def connections(server: Server) -> int:
    """How many of Headgate's connections the server holds open."""
    with server.client() as client:
        return sum(1 for entry in client.client_list() if entry["name"] == "headgate")


def test_checks_of_one_tick_travel_as_one_call(redis_server: Server, redis_url: str) -> None:
    async def main() -> list[Decision]:
        async with warm(QUOTA, redis_url) as limiter:
            with watch:
                return await asyncio.gather(*(limiter.check(f"user-{n}", cost=n) for n in range(1, 101)))

    watch = Watch(redis_server)
    decisions = asyncio.run(main())
    assert watch.calls == [100]
    assert [decision.remaining for decision in decisions] == [LIMIT - n for n in range(1, 101)]


def test_a_large_batch_leaves_early_if_the_rest_of_its_tick_can_follow(redis_server: Server, redis_url: str) -> None:
    """An idle server decides the first checks of a tick while the others are made. That takes two connections."""

    async def main() -> list[Decision]:
        async with warm(QUOTA, redis_url) as limiter:
            while await asyncio.to_thread(connections, redis_server) < 2:  # the second is opened in the background
                await asyncio.gather(*(limiter.check("warm") for _ in range(EARLY)))
            await asyncio.sleep(0.2)  # it has been greeted
            with watch:
                few = await asyncio.gather(*(limiter.check(f"user-{n}", cost=n) for n in range(1, EARLY)))
                many = await asyncio.gather(*(limiter.check(f"user-{n}", cost=n) for n in range(EARLY, 101)))
                return [*few, *many]

    watch = Watch(redis_server)
    decisions = asyncio.run(main())
    assert watch.calls == [EARLY - 1, EARLY, 101 - 2 * EARLY]
    assert [decision.remaining for decision in decisions] == [LIMIT - n for n in range(1, 101)]


def test_a_server_that_accepts_no_second_connection_still_decides_everything(own_server: Server) -> None:
    async def main() -> list[Decision]:
        async with warm(QUOTA, f"{own_server.url}?timeout=10&probe_every=0.001") as limiter:
            client.config_set("maxclients", len(client.client_list()))
            return [
                decision
                for _ in range(100)
                for decision in await asyncio.gather(*(limiter.check(f"user-{n}") for n in range(2 * EARLY)))
            ]

    with own_server.client() as client:
        decisions = asyncio.run(main())
        assert int(client.info("stats")["rejected_connections"]) > 0
    assert {decision.reason for decision in decisions} == {"within_limit"}


def test_a_call_carries_no_more_than_max_batch(redis_server: Server, redis_url: str) -> None:
    async def main() -> list[Decision]:
        async with warm(QUOTA, f"{redis_url}&max_batch=10") as limiter:
            with watch:
                return await asyncio.gather(*(limiter.check(f"user-{n}", cost=n) for n in range(1, 101)))

    watch = Watch(redis_server)
    decisions = asyncio.run(main())
    assert watch.calls == [10] * 10
    assert [decision.remaining for decision in decisions] == [LIMIT - n for n in range(1, 101)]


@pytest.mark.parametrize("max_in_flight", [1, 3])
def test_no_more_than_max_in_flight_connections(redis_server: Server, redis_url: str, max_in_flight: int) -> None:
    url = f"{redis_url}&max_batch=4&max_in_flight={max_in_flight}"

    async def main() -> int:
        async with warm(QUOTA, url) as limiter:
            await asyncio.gather(*(limiter.check(f"user-{n}") for n in range(2_000)))
            return await asyncio.to_thread(connections, redis_server)

    assert asyncio.run(main()) == max_in_flight


def test_no_more_than_max_in_flight_calls_wait_for_the_server(own_server: Server, proxy: Proxy) -> None:
    """With every reply held back, two calls leave and all others gather; released, they are all answered."""

    async def main() -> list[Decision]:
        async with warm(QUOTA, f"{proxy.url}?timeout=10&max_batch=8&max_in_flight=2") as limiter:
            while await asyncio.to_thread(connections, own_server) < 2:  # the second is opened in the background
                await asyncio.gather(*(limiter.check("warm") for _ in range(16)))
            await asyncio.sleep(0.2)  # it has been greeted
            assert len(proxy.links) == 2
            for link in proxy.links:
                link.hold()
            with Watch(own_server) as watch:
                tasks = [asyncio.create_task(limiter.check(f"user-{n}")) for n in range(64)]
                for link in proxy.links:
                    assert await asyncio.to_thread(link.asked.wait, 5)
            assert len(watch.calls) <= 2
            assert not any(task.done() for task in tasks)
            for link in proxy.links:
                link.release()
            return await asyncio.gather(*tasks)

    assert [decision.remaining for decision in asyncio.run(main())] == [LIMIT - 1] * 64
    assert proxy.most_open == 2


def test_resets_keep_to_max_in_flight_too(redis_server: Server, redis_url: str) -> None:
    async def main() -> int:
        async with warm(QUOTA, f"{redis_url}&max_in_flight=2") as limiter:
            await asyncio.gather(*(limiter.reset(f"user-{n}") for n in range(100)))
            return await asyncio.to_thread(connections, redis_server)

    assert asyncio.run(main()) <= 2


def test_a_lone_check_leaves_at_once(redis_server: Server, redis_url: str) -> None:
    """No timer collects company for it. The best of a hundred, as the machine has other things to do."""

    async def main() -> float:
        async with warm(QUOTA, redis_url) as limiter:
            best = 1.0
            for _ in range(100):
                started = time.perf_counter()
                await limiter.check("alice")
                best = min(best, time.perf_counter() - started)
            return best

    with Watch(redis_server) as watch:
        assert asyncio.run(main()) < 0.003
    assert watch.calls[1:] == [1] * 100


@pytest.mark.parametrize("max_batch", [7, 128])
def test_cancelled_callers_disturb_nobody(redis_url: str, max_batch: int) -> None:
    """Each check has a subject and a cost of its own, so that a reply to another would show."""
    callers = 4_000
    chance = random.Random(7)

    async def main() -> tuple[int, int]:
        async with warm(QUOTA, f"{redis_url}&max_batch={max_batch}") as limiter:

            async def caller(number: int, patience: float | None) -> bool:
                await asyncio.sleep(chance.random() * 0.3)
                try:
                    async with asyncio.timeout(patience):
                        decision = await limiter.check(f"user-{number}", cost=number)
                except TimeoutError:
                    return False
                assert (decision.reason, decision.remaining) == ("within_limit", LIMIT - number)
                return True

            tasks = [
                asyncio.create_task(caller(number, chance.choice([None, chance.random() * 0.002])))
                for number in range(1, callers + 1)
            ]
            doomed = chance.sample(tasks, callers // 4)
            for task in doomed:
                await asyncio.sleep(0)
                asyncio.get_running_loop().call_later(chance.random() * 0.4, task.cancel)
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            for outcome in outcomes:
                assert isinstance(outcome, bool | asyncio.CancelledError), outcome
            # and afterwards everything is as it should be
            again = await asyncio.gather(*(limiter.check(f"next-{n}", cost=n) for n in range(1, 300)))
            assert [decision.remaining for decision in again] == [LIMIT - n for n in range(1, 300)]
            return outcomes.count(True), callers - outcomes.count(True)

    answered, given_up = asyncio.run(main())
    assert answered > callers / 4
    assert given_up > callers / 20


def test_ten_thousand_requests_at_once_are_split(redis_server: Server, redis_url: str, open_limiter: Open) -> None:
    limiter = open_limiter(QUOTA, store=redis_url)
    limiter.check("warm")
    with Watch(redis_server) as watch:
        decisions = limiter.check_many({"user": f"user-{n}", "cost": n} for n in range(10_000))
    assert [decision.remaining for decision in decisions] == [LIMIT - n for n in range(10_000)]
    assert sum(watch.calls) == 10_000
    assert max(watch.calls) == 128
    assert len(watch.calls) == 79


def test_a_second_event_loop_is_told_so(redis_url: str) -> None:
    with asyncio.Runner() as first, asyncio.Runner() as second:
        limiter = AsyncLimiter(QUOTA, store=redis_url)
        assert first.run(limiter.check("alice")).remaining == LIMIT - 1
        with pytest.raises(RuntimeError, match="belongs to another event loop"):
            second.run(limiter.check("alice"))
        assert first.run(limiter.check("alice")).remaining == LIMIT - 2
        first.run(limiter.close())
