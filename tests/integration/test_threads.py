"""Threads, and processes forked off, that share one Limiter: each call has a connection to itself."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headgate import Limiter, RateLimited
from tests.integration.limiters import calm
from tests.proxy import Proxy
from tests.servers import Server

LIMIT = 1_000_000_000
QUOTA = calm(LIMIT, "fixed_window")
THREADS = 16


def test_one_slow_reply_holds_up_no_other_thread(proxy: Proxy) -> None:
    with Limiter(QUOTA, store=f"{proxy.url}?timeout=10") as limiter, ThreadPoolExecutor(THREADS) as pool:
        limiter.check("warm")
        (link,) = proxy.links
        link.hold()
        slow = pool.submit(limiter.check, "slow", cost=77)
        assert link.asked.wait(5)

        def work(number: int) -> list[int]:
            return [limiter.check(f"user-{number}").remaining for _ in range(50)]

        quick = list(pool.map(work, range(THREADS - 1)))  # ends while the slow one still waits
        assert quick == [[LIMIT - taken for taken in range(1, 51)]] * (THREADS - 1)
        assert not slow.done()
        link.release()
        assert slow.result(5).remaining == LIMIT - 77
    assert proxy.most_open <= THREADS


def test_as_many_connections_as_threads_at_most(redis_server: Server, redis_url: str) -> None:
    together = threading.Barrier(THREADS)

    def work(number: int) -> None:
        together.wait()
        for cost in range(1, 101):
            before = limiter.peek(f"user-{number}").remaining
            assert limiter.check(f"user-{number}", cost=cost).remaining == before - cost

    with Limiter(QUOTA, store=redis_url) as limiter, redis_server.client() as client:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(THREADS)))
        names = [entry["name"] for entry in client.client_list()]
        assert 1 <= names.count("headgate") <= THREADS
        for number in range(THREADS):
            assert limiter.peek(f"user-{number}").remaining == LIMIT - sum(range(1, 101))


def test_an_async_function_is_limited_without_holding_up_its_event_loop(proxy: Proxy) -> None:
    """A Limiter decorates async functions too: while it waits for the store, other tasks run."""

    async def main(limiter: Limiter) -> list[int | BaseException]:
        @limiter.limit(calm(3), name="double")
        async def double(number: int) -> int:
            return 2 * number

        await double(1)
        for link in proxy.links:
            link.hold()
        held = [asyncio.create_task(double(number)) for number in (2, 3, 4)]
        assert await asyncio.to_thread(proxy.links[0].asked.wait, 5)  # comes back, as the event loop is free
        assert not all(task.done() for task in held)
        for link in proxy.links:
            link.release()
        return await asyncio.gather(*held, return_exceptions=True)

    with Limiter(QUOTA, store=f"{proxy.url}?timeout=10") as limiter:
        answers = asyncio.run(main(limiter))
    assert sorted(answer for answer in answers if isinstance(answer, int)) in ([4, 6], [4, 8], [6, 8])
    assert sum(isinstance(answer, RateLimited) for answer in answers) == 1


def test_close_gives_back_every_connection(redis_server: Server, redis_url: str) -> None:
    with redis_server.client() as client:
        with Limiter(QUOTA, store=redis_url) as limiter, ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(limiter.check, (f"user-{number}" for number in range(200))))
        deadline = time.monotonic() + 5
        while any(entry["name"] == "headgate" for entry in client.client_list()):
            assert time.monotonic() < deadline, "the server still holds a connection of a closed limiter"


FORKING = """
import os, sys
from headgate import Limiter, RateLimited

limiter = Limiter("1000000/366d gcra", store=sys.argv[1] + "?timeout=1", failure_mode="closed")
limiter.check("before")  # leaves an idle connection, which every child inherits
children = []
for number in range(1, 5):
    pid = os.fork()
    if pid == 0:
        wrong = 0
        for taken in range(1, 301):
            decision = limiter.check(f"child-{number}", cost=number)
            wrong += decision.reason != "within_limit" or decision.remaining != 1_000_000 - taken * number
        os._exit(min(wrong, 100))
    children.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
"""


def test_forked_processes_do_not_share_connections(redis_url: str) -> None:
    """A server that loads its application and then forks (gunicorn --preload): nobody reads another's reply."""
    run = subprocess.run(
        [sys.executable, "-c", FORKING, redis_url.partition("?")[0]],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stdout.strip() == "[0, 0, 0, 0]", run.stderr
