"""Settlements whose connection is cut, at every reply: they are completed, by this limiter or by another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pytest

from headgate import AsyncLimiter, AsyncReservation, Limiter, Rule
from headgate.testing import FakeClock
from tests.integration.limiters import calm
from tests.integration.lossy import Lossy
from tests.servers import Server

LIMIT = 1_000
START = 1_700_000_040
TTL = 30.0
REPLIES = 8  # more than any of the operations waits for
ALICE: dict[str, Any] = {"user": "alice", "tenant": "acme"}
OWN = Rule(id="own", quota=calm(LIMIT, "fixed_window"))
SETS = {
    "one slot": [OWN, Rule(id="burst", quota=calm(LIMIT, "gcra"))],
    "several slots": [OWN, Rule(id="all", quota=calm(LIMIT), dimension="global")],
    "shards": [OWN, Rule(id="split", quota=calm(LIMIT), dimension="tenant", shards=2)],
}
Act = Callable[[AsyncLimiter, AsyncReservation, FakeClock], Coroutine[Any, Any, None]]


async def settle(_: AsyncLimiter, reservation: AsyncReservation, __: FakeClock) -> None:
    await reservation.settle(3)


async def overspend(_: AsyncLimiter, reservation: AsyncReservation, __: FakeClock) -> None:
    await reservation.settle(14)


async def refund(_: AsyncLimiter, reservation: AsyncReservation, __: FakeClock) -> None:
    await reservation.refund()


async def expire(limiter: AsyncLimiter, _: AsyncReservation, clock: FakeClock) -> None:
    clock.advance(TTL)
    await limiter.reserve(user="bob", tenant="other", cost=0)


ACTS = {settle: 3, overspend: 14, refund: 0, expire: 0}


@pytest.fixture(params=["one server", "cluster"])
def store(
    request: pytest.FixtureRequest, redis_server: Server, redis_url: str
) -> Iterator[tuple[str, str, list[Lossy]]]:
    """The URL through proxies, the URL to look at what is charged, and the proxies."""
    if request.param == "cluster":
        cluster, proxies = request.getfixturevalue("lossy_cluster")
        cluster.empty()
        yield f"{cluster.url}?timeout=2", f"{cluster.url}?timeout=10", proxies
        return
    with Lossy(redis_server.port) as proxy:
        yield f"{proxy.url}?timeout=2", redis_url, [proxy]


async def cut(act: Act, rules: list[Rule], url: str, clock: FakeClock, proxies: list[Lossy], number: int) -> bool:
    """Do something with a reservation of 10 while the reply with this number is lost. Return whether there was one."""
    limiter = AsyncLimiter(rules, store=url, clock=clock)
    warm = await limiter.reserve(cost=1, ttl=TTL, **ALICE)  # loads the scripts
    await warm.refund()
    reservation = await limiter.reserve(cost=10, ttl=TTL, **ALICE)
    await limiter._reservations.finish()
    for proxy in proxies:
        proxy.count.lose(number)
    with suppress(Exception):
        await act(limiter, reservation, clock)
    await limiter._reservations.finish()
    was_lost = proxies[0].count.replies >= number
    for proxy in proxies:
        proxy.count.lose(0)
    await limiter.close()
    return was_lost


def charged_later(rules: list[Rule], url: str, clock: FakeClock) -> set[int]:
    """What is charged to the limits once another limiter has had the time to find what was left behind."""
    with Limiter(rules, store=url, clock=clock) as limiter:
        for _ in range(6):
            clock.advance(TTL)
            limiter.reserve(user="bob", tenant="other", cost=0)
        return {LIMIT - status.remaining for status in limiter.peek(**ALICE).limits}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("rules", SETS.values(), ids=SETS)
def test_a_settlement_that_is_cut_is_completed(
    store: tuple[str, str, list[Lossy]], rules: list[Rule], act: Act
) -> None:
    """By any limiter: the one that was cut may have ended."""
    url, direct, proxies = store
    for number in range(1, REPLIES + 1):
        clock, prefix = FakeClock(START), f"&prefix={act.__name__}-{number}"
        if not asyncio.run(cut(act, rules, url + prefix, clock, proxies, number)):
            break
        assert charged_later(rules, direct + prefix, clock) == {ACTS[act]}, f"after reply {number} was lost"
    assert number > 2  # settling takes two calls


def test_a_settlement_that_was_cut_is_settled_once(store: tuple[str, str, list[Lossy]]) -> None:
    """Until it is completed, nobody else can settle it; and later neither."""
    url, direct, proxies = store
    clock = FakeClock(START)

    async def scenario() -> None:
        limiter = AsyncLimiter(SETS["several slots"], store=url, clock=clock)
        await (await limiter.reserve(cost=1, **ALICE)).refund()
        reservation = await limiter.reserve(cost=10, **ALICE)
        await limiter._reservations.finish()
        proxies[0].count.lose(1)
        assert (await reservation.settle(3)).reason == "store_error"
        with Limiter(SETS["several slots"], store=direct, clock=clock) as other:
            assert other.settle(reservation.id, 7).reason == "gone"
            clock.advance(10)
            await limiter.check(cost=0, **ALICE)  # it knows when to look
            assert [LIMIT - one.remaining for one in other.peek(**ALICE).limits] == [3, 3]
            assert other.settle(reservation.id, 7).reason == "gone"
        await limiter.close()

    asyncio.run(scenario())


def test_an_expired_reservation_that_is_settled_while_it_is_refunded_is_charged_its_cost(
    store: tuple[str, str, list[Lossy]],
) -> None:
    """Whoever comes first completes the refund."""
    url, direct, proxies = store
    for number in range(1, REPLIES + 1):
        clock, prefix = FakeClock(START), f"&prefix=late-{number}"

        async def late(limiter: AsyncLimiter, reservation: AsyncReservation, clock: FakeClock) -> None:
            clock.advance(TTL)
            await limiter.reserve(user="bob", tenant="other", cost=0)
            with Limiter(SETS["several slots"], store=direct + prefix, clock=clock) as other:  # noqa: B023
                assert other.settle(reservation.id, 3).reason == "late"

        if not asyncio.run(cut(late, SETS["several slots"], url + prefix, clock, proxies, number)):
            break
        assert charged_later(SETS["several slots"], direct + prefix, clock) == {3}
    assert number > 2
