"""Deadlines: no check takes longer than it may, and what is answered too late is answered to nobody."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headgate import AsyncLimiter, Decision
from tests.integration.limiters import Open, calm
from tests.proxy import Proxy, no_delay
from tests.servers import Server

LIMIT = 1_000_000_000
QUOTA = calm(LIMIT, "fixed_window")
PATIENCE = 0.5  # seconds that a check may take
MARGIN = 4.0  # … and thousands together, on a busy machine; one after the other they would take more


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    took = time.monotonic() - started
    assert took < seconds, f"took {took:.3f} s instead of {seconds:.3f} s at most"


def test_a_late_reply_is_not_taken_for_the_next_one(proxy: Proxy, open_limiter: Open) -> None:
    """Each check has a subject and a cost of its own, so that a reply to another would show."""
    limiter = open_limiter(QUOTA, store=f"{proxy.url}?timeout=0.1&probe_every=0.000001")
    for number in range(1, 6):
        proxy.delay = lambda: 0.2
        assert limiter.check(f"late-{number}", cost=10_000_000 + number).reason == "fail_open"
        proxy.delay = no_delay
        tries = 1
        while (decision := limiter.check(f"next-{number}", cost=1_000 + number)).reason == "fail_open":
            tries += 1  # a busy machine may miss the deadline once or twice
            assert tries < 50
        assert LIMIT - decision.remaining in {(1_000 + number) * charged for charged in range(1, tries + 1)}


def test_late_replies_among_many_tasks_go_to_nobody(proxy: Proxy) -> None:
    chance = random.Random(3)

    async def task(limiter: AsyncLimiter, number: int) -> list[str]:
        reasons: list[str] = []
        for turn in range(1, 21):
            cost = number * 100 + turn
            decision = await limiter.check(f"{number}-{turn}", cost=cost)
            reasons.append(decision.reason)
            if decision.reason == "within_limit":
                assert decision.remaining == LIMIT - cost
        return reasons

    async def main() -> list[str]:
        async with AsyncLimiter(QUOTA, store=f"{proxy.url}?timeout=0.1&max_batch=4") as limiter:
            await limiter.check("warm")
            proxy.delay = lambda: chance.choice([0.0, 0.0, 0.0, 0.12])
            reasons = await asyncio.gather(*(task(limiter, number) for number in range(1, 33)))
            proxy.delay = no_delay
            return [reason for each in reasons for reason in each]

    reasons = asyncio.run(main())
    assert set(reasons) == {"within_limit", "fail_open"}


def test_a_slow_handshake_has_a_time_of_its_own(proxy: Proxy, open_limiter: Open) -> None:
    """Connecting, loading the script and the check each take a reply, which comes in time; all of them do not."""
    limiter = open_limiter(QUOTA, store=f"{proxy.url}?timeout=3&connect_timeout=60", failure_mode="closed")
    proxy.delay = lambda: 1.2
    assert limiter.check("alice").reason == "within_limit"


def test_a_handshake_that_never_ends_costs_no_more_than_a_check(halted_server: Server, open_limiter: Open) -> None:
    limiter = open_limiter(QUOTA, store=f"{halted_server.url}?timeout=0.5&connect_timeout=60", failure_mode="closed")
    with at_most(0.5 + 2.0):
        assert limiter.check("alice").reason == "fail_closed"


def test_a_reply_that_trickles_in_counts(proxy: Proxy, open_limiter: Open) -> None:
    """Byte by byte, each soon after the one before."""
    limiter = open_limiter(QUOTA, store=f"{proxy.url}?timeout=0.5", failure_mode="closed")
    for _ in range(50):
        if limiter.check("warm").reason == "within_limit":
            break
    proxy.chunk = 1
    proxy.delay = lambda: 0.15
    limiter.check("alice")  # the proxy is already reading one reply in a whole
    with at_most(0.5 + 2.0):  # all of the reply takes more than three seconds
        assert limiter.check("bob").reason == "fail_closed"


@pytest.fixture
def halted_server(own_server: Server) -> Iterator[Server]:
    """It knows the script, and answers nothing."""
    os.kill(own_server.pid, signal.SIGSTOP)
    yield own_server
    os.kill(own_server.pid, signal.SIGCONT)


@pytest.mark.parametrize(("tasks", "max_batch"), [(1_000, 1), (2_000, 128)])
def test_those_who_queue_wait_no_longer_than_the_others(halted_server: Server, tasks: int, max_batch: int) -> None:
    async def main() -> list[Decision]:
        url = f"{halted_server.url}?timeout={PATIENCE}&max_batch={max_batch}"
        async with AsyncLimiter(QUOTA, store=url) as limiter:
            with at_most(MARGIN):
                return await asyncio.gather(*(limiter.check(f"user-{n}") for n in range(tasks)))

    assert {decision.reason for decision in asyncio.run(main())} == {"fail_open"}


def test_many_requests_in_one_call_wait_once(halted_server: Server, open_limiter: Open) -> None:
    limiter = open_limiter(QUOTA, store=f"{halted_server.url}?timeout={PATIENCE}")
    requests = [f"user-{number}" for number in range(2_000)]
    with at_most(MARGIN):
        decisions = limiter.check_many(requests)
    assert [decision.reason for decision in decisions] == ["fail_open"] * 2_000


def test_a_caller_is_not_cut_short_by_an_older_ones_deadline(proxy: Proxy) -> None:
    """Both wait for the one call under way, and then leave together; the older has hardly any time left."""
    delays = iter([1.04, 0.66])

    async def main() -> tuple[Decision, Decision]:
        url = f"{proxy.url}?timeout=1.2&max_in_flight=1"
        async with AsyncLimiter(QUOTA, store=url, failure_mode="closed") as limiter:
            while (await limiter.check("warm")).reason != "within_limit":
                pass
            proxy.delay = lambda: next(delays, 0.0)
            first = asyncio.create_task(limiter.check("first"))  # answered after 1.04 s
            await asyncio.sleep(0.1)
            older = asyncio.create_task(limiter.check("older"))  # has time until 1.3 s
            await asyncio.sleep(0.8)
            younger = asyncio.create_task(limiter.check("younger"))  # has time until 2.1 s; answered after 1.7 s
            await older
            return await first, await younger

    first, younger = asyncio.run(main())
    assert (first.reason, younger.reason) == ("within_limit", "within_limit")
