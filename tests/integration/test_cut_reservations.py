"""Reservations whose caller is cancelled, or whose connection is cut: nothing stays charged."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest
import redis

from headgate import AsyncLimiter, Limiter, Rule
from headgate.testing import FakeClock
from tests.integration.limiters import calm
from tests.integration.lossy import Lossy
from tests.servers import Server
from tests.topologies import Cluster, SentinelTrio

LIMIT = 1_000_000
START = 1_700_000_040
COST = 7
RESERVES = 120
RULES = [
    Rule(id="own", quota=calm(LIMIT, "sliding_window_counter")),
    Rule(id="all", quota=calm(LIMIT, "fixed_window"), dimension="global"),
    Rule(id="split", quota=calm(LIMIT, "sliding_window_counter"), dimension="tenant", shards=2),
]
WHOLE = RULES[:2]  # which have no shards; on a cluster, they are in two slots
ONE_SLOT = [RULES[0], Rule(id="burst", quota=calm(LIMIT, "fixed_window"))]
SETS = {"one slot": ONE_SLOT, "two slots": WHOLE, "shards": RULES}
ALICE: dict[str, Any] = {"user": "alice", "tenant": "acme"}


@pytest.fixture(params=["memory", "redis", "sentinel", "cluster"])
def store(request: pytest.FixtureRequest, redis_url: str) -> Any:
    if request.param == "sentinel":
        with SentinelTrio() as trio:
            yield trio.url + "?timeout=10"
        return
    if request.param == "cluster":
        cluster: Cluster = request.getfixturevalue("cluster")
        cluster.empty()
        yield cluster.url + "?timeout=10"
        return
    yield "memory://" if request.param == "memory" else redis_url


def charged(limiter: Limiter) -> dict[str, int]:
    """What is charged to each limit."""
    return {status.rule: LIMIT - status.remaining for status in limiter.peek(**ALICE).limits}


def nothing(rules: list[Rule]) -> dict[str, int]:
    return {rule.id: 0 for rule in rules}


@pytest.mark.parametrize("rules", SETS.values(), ids=SETS)
def test_a_caller_that_is_cancelled_is_charged_nothing(store: str, rules: list[Rule]) -> None:
    async def scenario() -> dict[str, int]:
        async with AsyncLimiter(rules, store=store) as limiter:
            chance = random.Random(17)
            for _ in range(RESERVES):
                task = asyncio.create_task(limiter.reserve(cost=COST, **ALICE))
                await asyncio.sleep(chance.uniform(0, 0.003))
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await (await task).refund()
            while limiter._reservations._under_way:
                await asyncio.wait(limiter._reservations._under_way)
            statuses = (await limiter.peek(**ALICE)).limits
            return {status.rule: LIMIT - status.remaining for status in statuses}

    assert asyncio.run(scenario()) == nothing(rules)


@pytest.mark.parametrize("rules", SETS.values(), ids=SETS)
def test_a_caller_can_be_cancelled_at_every_step(store: str, rules: list[Rule]) -> None:
    async def scenario() -> dict[str, int]:
        async with AsyncLimiter(rules, store=store) as limiter:
            for steps in range(RESERVES // 2):
                task = asyncio.create_task(limiter.reserve(cost=COST, **ALICE))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await (await task).refund()
                await limiter._reservations.finish()
            statuses = (await limiter.peek(**ALICE)).limits
            return {status.rule: LIMIT - status.remaining for status in statuses}

    assert asyncio.run(scenario()) == nothing(rules)


def test_what_expired_is_given_back_even_if_the_caller_is_cancelled(store: str) -> None:
    async def scenario() -> dict[str, int]:
        async with AsyncLimiter(ONE_SLOT, store=store) as limiter:
            for steps in range(RESERVES // 2):
                await limiter.reserve(cost=COST, ttl=0.001, **ALICE)
                await asyncio.sleep(0.002)  # a real time to live is the point
                task = asyncio.create_task(limiter.check(cost=0, **ALICE))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await limiter._reservations.finish()
            return {status.rule: LIMIT - status.remaining for status in (await limiter.check(cost=0, **ALICE)).limits}

    assert asyncio.run(scenario()) == nothing(ONE_SLOT)


def leave_behind(
    kind: type[Any], rules: list[Rule], url: str, clock: FakeClock, proxies: list[Lossy], every: int
) -> int:
    """Reserve while replies are lost, and settle nothing. Returns how many reservations were recorded."""

    async def reserve() -> int:
        cut = kind(rules, store=url, clock=clock)
        recorded = 0
        for number in range(RESERVES // 2):
            reservation = cut.reserve(cost=COST, ttl=30.0, **ALICE)
            recorded += (await reservation if kind is AsyncLimiter else reservation).recorded
            for proxy in proxies:
                proxy.every = every if number else 0  # the first loads the scripts
        for proxy in proxies:
            proxy.every = 0
        if kind is AsyncLimiter:
            await cut.close()
        else:
            cut.close()
        return recorded

    return asyncio.run(reserve())


def expect_nothing(rules: list[Rule], url: str, clock: FakeClock, recorded: int) -> None:
    """Nothing stays charged, once what was left behind has expired."""
    assert 0 < recorded < RESERVES // 2  # some were cut, and not all
    with Limiter(rules, store=url, clock=clock) as limiter:
        assert charged(limiter)["own"] >= recorded * COST
        clock.advance(31)
        limiter.reserve(user="bob", cost=0)
        assert charged(limiter) == nothing(rules)


@pytest.mark.parametrize(("verb", "left"), [("give_back", 0), ("correct", COST - 3)])
def test_a_correction_completes_even_if_the_caller_is_cancelled(store: str, verb: str, left: int) -> None:
    async def scenario() -> dict[str, int]:
        async with AsyncLimiter(ONE_SLOT, store=store) as limiter:
            for steps in range(1, RESERVES // 4):
                decision = await limiter.check(cost=COST, **ALICE)
                call = limiter.give_back(decision) if verb == "give_back" else limiter.correct(decision, left)
                task = asyncio.create_task(call)
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await limiter._reservations.finish()
            return {status.rule: LIMIT - status.remaining for status in (await limiter.peek(**ALICE)).limits}

    calls = RESERVES // 4 - 1
    assert asyncio.run(scenario()) == dict.fromkeys(nothing(ONE_SLOT), calls * left)


@pytest.mark.parametrize("every", [2, 3, 5, 7])
@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_nothing_stays_charged_when_replies_are_lost(
    redis_server: Server, redis_url: str, kind: type[Any], every: int
) -> None:
    clock = FakeClock(START)
    with Lossy(redis_server.port) as proxy:
        recorded = leave_behind(kind, RULES, f"{proxy.url}?timeout=2", clock, [proxy], every)
    expect_nothing(RULES, redis_url, clock, recorded)


def script_calls(url: str) -> int:
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        stats: Any = client.info("commandstats")
    return sum(stats[name]["calls"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_a_reservation_is_one_call(redis_url: str, kind: type[Any]) -> None:
    async def reserve() -> int:
        limiter = kind(WHOLE, store=redis_url)
        calls = 0
        for _ in range(2):  # the first loads the scripts, and looks for what has expired
            before = script_calls(redis_url)
            reservation = limiter.reserve(cost=COST, **ALICE)
            assert (await reservation if kind is AsyncLimiter else reservation).recorded
            calls = script_calls(redis_url) - before
        closed = limiter.close()
        if kind is AsyncLimiter:
            await closed
        return calls

    assert asyncio.run(reserve()) == 1


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_whatever_is_cut_there_is_a_record_of_every_charge(
    redis_server: Server, redis_url: str, kind: type[Any]
) -> None:
    """At any time, and not only in the end: charge and record are one step."""

    async def reserve() -> None:
        cut = kind(WHOLE, store=f"{proxy.url}?timeout=2")
        for number in range(RESERVES // 4):
            reservation = cut.reserve(cost=COST, **ALICE)
            if kind is AsyncLimiter:
                await reservation
            proxy.every = 2 if number else 0
            with redis.Redis.from_url(redis_url.partition("?")[0]) as client:
                records = sum(client.hlen(key) for key in client.keys("*{reservations}:records"))
            assert charged(limiter)["own"] == records * COST
        proxy.every = 0
        closed = cut.close()
        if kind is AsyncLimiter:
            await closed

    with Lossy(redis_server.port) as proxy, Limiter(WHOLE, store=redis_url) as limiter:
        asyncio.run(reserve())


@pytest.mark.parametrize("kind", [pytest.param(Limiter, marks=pytest.mark.extended), AsyncLimiter])
@pytest.mark.parametrize("rules", SETS.values(), ids=SETS)
def test_nothing_stays_charged_when_replies_of_a_cluster_are_lost(
    lossy_cluster: tuple[Cluster, list[Lossy]], kind: type[Any], rules: list[Rule]
) -> None:
    cluster, proxies = lossy_cluster
    for every in (2, 3, 4, 7):
        cluster.empty()
        clock = FakeClock(START)
        recorded = leave_behind(kind, rules, cluster.url + "?timeout=2", clock, proxies, every)
        expect_nothing(rules, cluster.url + "?timeout=10", clock, recorded)


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_in_one_slot_of_a_cluster_there_is_a_record_of_every_charge(
    lossy_cluster: tuple[Cluster, list[Lossy]], kind: type[Any]
) -> None:
    cluster, proxies = lossy_cluster
    cluster.empty()

    async def reserve() -> None:
        cut = kind(ONE_SLOT, store=f"{cluster.url}?timeout=2")
        for number in range(RESERVES // 4):
            for proxy in proxies:
                proxy.every = 2 if number else 0  # the first loads the scripts
            reservation = cut.reserve(cost=COST, **ALICE)
            if kind is AsyncLimiter:
                await reservation
            records = 0
            for server in cluster.masters:
                with redis.Redis(port=server.port) as client:
                    records += sum(client.hlen(key) for key in client.keys("*{reservations-*}:records"))
            for proxy in proxies:
                proxy.every = 0
            assert charged(limiter) == dict.fromkeys(nothing(ONE_SLOT), records * COST)
        closed = cut.close()
        if kind is AsyncLimiter:
            await closed

    with Limiter(ONE_SLOT, store=f"{cluster.url}?timeout=10") as limiter:
        asyncio.run(reserve())


@pytest.mark.parametrize("rules", [WHOLE, RULES], ids=["two slots", "shards"])
def test_on_a_cluster_a_caller_waits_for_the_charge_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, rules: list[Rule]
) -> None:
    """The record is complete only later. Until then, a settlement asks the charge's receipt what was charged."""
    cluster.empty()

    async def scenario() -> dict[str, int]:
        async with AsyncLimiter(rules, store=cluster.url + "?timeout=10") as limiter:
            store, late = limiter._reservations.store, asyncio.Event()
            renew = store.renew
            renewed: list[bool] = []

            async def renew_late(*arguments: Any) -> bool:
                await late.wait()
                renewed.append(await renew(*arguments))
                return renewed[-1]

            monkeypatch.setattr(store, "renew", renew_late)
            settled, open_one = [await asyncio.wait_for(limiter.reserve(cost=COST, **ALICE), 30) for _ in range(2)]
            assert (await settled.settle(COST - 3)).refunded == 3
            late.set()
            await limiter._reservations.finish()
            assert renewed == [False, True]  # one was settled before
            assert (await open_one.settle(COST)).reason == "settled"
            statuses = (await limiter.peek(**ALICE)).limits
            return {status.rule: LIMIT - status.remaining for status in statuses}

    assert asyncio.run(scenario()) == dict.fromkeys(nothing(rules), 2 * COST - 3)
