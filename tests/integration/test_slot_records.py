"""What a limiter knows of its slots agrees with the store: with shadows, several ttls, and cancelled releases."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Literal

import pytest

from headgate import AsyncLimiter, Limiter, RateLimited, Rule
from headgate.http.asgi import RateLimitMiddleware, Receive, Scope, Send
from headgate.testing import FakeClock
from tests.servers import Server
from tests.unit.http.test_asgi import Client, scope_of


@pytest.fixture(params=["memory", "redis"])
def url(request: pytest.FixtureRequest, redis_url: str) -> str:
    return "memory://" if request.param == "memory" else redis_url


def shadowed(action: Literal["log_only", "annotate"] = "log_only", ttl: str = "10s") -> list[Rule]:
    return [
        Rule(id="hard", quota=f"3 concurrent ttl {ttl}"),
        Rule(id="trial", quota=f"1 concurrent ttl {ttl}", action=action),
    ]


def remaining(limiter: Limiter) -> dict[str, int]:
    return {status.rule: status.remaining for status in limiter.peek(user="alice").limits}


@pytest.mark.parametrize("action", ["log_only", "annotate"])
def test_a_full_shadow_does_not_change_what_is_held(url: str, action: Literal["log_only", "annotate"]) -> None:
    with Limiter(shadowed(action), store=url) as limiter:
        first, second = limiter.acquire(user="alice"), limiter.acquire(user="alice")
        assert limiter.slots().in_use == {"hard": 2, "trial": 1}
        assert [second.renew(), limiter.renew(second.id), second.is_held, second.is_lost] == [True, True, True, False]
        assert second.release()
        assert remaining(limiter) == {"hard": 2, "trial": 0}
        assert limiter.release(first.id)
        assert remaining(limiter) == {"hard": 3, "trial": 1}
        assert not limiter.release(first.id)
        status = limiter.slots()
    assert (status.released, status.expired) == ({"hard": 2, "trial": 1}, {})
    assert status.acquired == status.released


def test_slots_are_renewed_beside_a_full_shadow(url: str) -> None:
    with Limiter(shadowed(ttl="900ms"), store=url) as limiter:
        slots = [limiter.acquire(user="alice", renew=True) for _ in range(3)]
        time.sleep(1.5)
        with pytest.raises(RateLimited):
            limiter.acquire(user="alice")
        assert [slot.release() for slot in slots] == [True] * 3


def test_a_slot_outlives_its_shadow(url: str) -> None:
    clock = FakeClock(1_700_000_040)
    rules = [
        Rule(id="hard", quota="3 concurrent ttl 60s"),
        Rule(id="trial", quota="1 concurrent ttl 1s", action="log_only"),
    ]
    with Limiter(rules, store=url, clock=clock) as limiter:
        slot = limiter.acquire(user="alice")
        clock.advance(2)
        assert [slot.renew(), limiter.renew(slot.id), slot.is_lost] == [True, True, False]
        assert (limiter.slots().in_use, limiter.slots().expired) == ({"hard": 1}, {"trial": 1})
        assert slot.release()
        assert remaining(limiter) == {"hard": 3, "trial": 1}
        assert (limiter.slots().released, limiter.slots().expired) == ({"hard": 1}, {"trial": 1})
        assert limiter.slots().acquired == {"hard": 1, "trial": 1}


def test_a_slot_of_a_shadow_alone(url: str) -> None:
    with Limiter([Rule(id="trial", quota="1 concurrent ttl 10s", action="log_only")], store=url) as limiter:
        first, second = limiter.acquire(user="alice"), limiter.acquire(user="alice")
        assert (second.is_held, second.id, second.ttl) == (False, "", None)
        assert [second.renew(), second.release()] == [False, False]
        assert [first.renew(), limiter.release(first.id), limiter.release(first.id)] == [True, True, False]
        assert (limiter.slots().acquired, limiter.slots().released) == ({"trial": 1}, {"trial": 1})


def test_a_lost_slot_is_released_where_it_is_still_held(url: str) -> None:
    clock = FakeClock(1_700_000_040)
    rules = [
        Rule(id="short", quota="5 concurrent ttl 1s"),
        Rule(id="long", quota="5 concurrent ttl 60s", dimension="global"),
    ]
    with Limiter(rules, store=url, clock=clock) as limiter:
        slot = limiter.acquire(user="alice")
        clock.advance(1.5)
        assert [slot.renew(), slot.is_held, slot.is_lost] == [False, False, True]
        assert remaining(limiter) == {"short": 5, "long": 4}
        assert (limiter.slots().in_use, limiter.slots().expired) == ({"long": 1}, {"short": 1})
        assert not slot.release()
        assert remaining(limiter) == {"short": 5, "long": 5}
        assert not slot.release()
        assert (limiter.slots().released, limiter.slots().expired) == ({"long": 1}, {"short": 1})


def test_a_cancelled_release_is_recorded(url: str) -> None:
    async def run() -> None:
        async with AsyncLimiter([Rule(id="slots", quota="1 concurrent ttl 20s")], store=url) as limiter:
            slot = await limiter.acquire(user="alice")
            releasing = asyncio.create_task(slot.release())
            await asyncio.sleep(0)
            releasing.cancel()
            await asyncio.gather(releasing, return_exceptions=True)
            assert (await limiter.acquire(user="alice", wait=5)).is_held
            status = limiter.slots()
            assert (status.in_use, status.released, status.acquired) == ({"slots": 1}, {"slots": 1}, {"slots": 2})

    asyncio.run(run())


def test_a_cancelled_request_releases_the_slots_of_all_its_middleware(url: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        entered.set()
        await asyncio.Event().wait()

    async def cancel(task: asyncio.Task[None], turns: int) -> None:
        """Cancel a request, and again while it releases its slots, as a task group does."""
        task.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def run() -> None:
        client = Client()
        async with AsyncLimiter(rules, store=url) as outer, AsyncLimiter(rules, store=url) as inner:
            middleware = RateLimitMiddleware(RateLimitMiddleware(app, limiter=inner), limiter=outer)
            for turns in range(1, 5):
                entered.clear()
                task = asyncio.create_task(middleware(scope_of(), client.receive, client.send))
                await entered.wait()
                await cancel(task, turns)
                await inner.acquire(ip="192.0.2.7", cost=2, wait=5)
                await inner.reset(ip="192.0.2.7")

    rules = [Rule(id="slots", quota="2 concurrent ttl 1h", dimension="ip")]
    entered = asyncio.Event()
    asyncio.run(run())


@pytest.mark.parametrize("mode", ["open", "local"])
def test_what_the_store_did_not_grant_does_not_stay_taken(
    own_server: Server, caplog: pytest.LogCaptureFixture, mode: Literal["open", "local"]
) -> None:
    rules = [Rule(id="slots", quota="2 concurrent ttl 20s")]
    with Limiter(rules, store=own_server.url, failure_mode=mode) as limiter:
        granted = limiter.acquire(user="alice")
        own_server.stop()
        fallback = limiter.acquire(user="alice")
        with caplog.at_level(logging.WARNING):
            fallback.release()
            assert "stays taken" not in caplog.text
            granted.release()
            assert "stays taken" in caplog.text
