"""Slices of leases whose answer is lost on its way: they come back, and nothing stays charged that nobody used."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from headgate import AsyncLimiter, Limiter, Rule
from tests.integration.limiters import calm
from tests.proxy import Proxy
from tests.servers import Server

LIMIT = 1_000_000
SECONDS = 20.0  # that each part of a test may take
RULE = Rule(id="leased", quota=calm(LIMIT, "fixed_window"), sync="leased", failure_mode="open")


class Mute(Proxy):
    """Loses all replies while it is told to, and with each its connection. What was asked has been done."""

    mute = False

    def loses(self) -> bool:
        return self.mute


async def use(kind: type[Any], proxy: Mute) -> tuple[int, int]:
    """Check, lose a slice, and check on until it is back. Returns the units that were lost, and the checks."""
    limiter = kind([RULE], store=f"{proxy.url}?timeout=2")
    checks = 0

    async def check(done: Any, seconds: float = SECONDS) -> None:
        nonlocal checks
        deadline = time.monotonic() + seconds
        while not done() and time.monotonic() < deadline:
            decision = limiter.check(user="alice")
            assert (await decision if kind is AsyncLimiter else decision).allowed
            checks += 1
            if checks % 50 == 0:
                await asyncio.sleep(0)

    await check(lambda: limiter.leases().fetched > 1_000)
    lost = 0

    def has_lost() -> bool:
        nonlocal lost
        lost = limiter.leases().unanswered
        return bool(lost)

    for _ in range(10):  # the first reply that is lost may be that of another call, and then the store is left alone
        fetched = limiter.leases().fetched
        await check(lambda: limiter.leases().fetched > fetched)  # noqa: B023
        proxy.mute = True
        await check(has_lost, seconds=0.5)
        proxy.mute = False
        if lost:
            break
    await check(lambda: not limiter.leases().unanswered)
    assert limiter.leases().unanswered == 0
    closed = limiter.close()
    if kind is AsyncLimiter:
        await closed
    return lost, checks


@pytest.mark.parametrize("kind", [AsyncLimiter])
def test_a_slice_whose_answer_was_lost_comes_back(redis_server: Server, redis_url: str, kind: type[Any]) -> None:
    with Mute(redis_server.port) as proxy:
        lost, checks = asyncio.run(use(kind, proxy))
    with Limiter([RULE], store=redis_url) as limiter:
        charged = LIMIT - limiter.peek(user="alice").remaining
    assert lost > 0
    assert charged <= checks  # those that were let in while the store was away are not all charged
