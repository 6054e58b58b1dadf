"""Checks of several slots in one call to a server: they are decided as by themselves, also when some slots move."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from headgate import AsyncLimiter, Quota
from headgate.core.check import Check, Group
from headgate.core.key import key_template
from headgate.core.plan import Plan
from headgate.stores.memory import MemoryStore
from headgate.stores.redis.aio import AsyncRedisStore
from headgate.stores.redis.topology import slot_of
from headgate.testing import FakeClock
from tests.integration.limiters import calm
from tests.servers import Server
from tests.topologies import Cluster

MANY = 1_000_000
SECOND = 1_000_000
START = 1_800_000_000 * SECOND


@pytest.fixture
def url(cluster: Cluster) -> str:
    cluster.empty()
    return cluster.url + "?timeout=10"


def subjects_of(cluster: Cluster, server: Server, count: int) -> list[str]:
    """Subjects in different slots, all of which this server has."""
    found: dict[int, str] = {}
    for number in range(10_000):
        name = f"user-{number}"
        if cluster.of_slot(slot_of(name)) is server:
            found.setdefault(slot_of(name), name)
            if len(found) == count:
                return list(found.values())
    raise LookupError(server)


def test_checks_of_many_slots_are_decided_in_one_tick(url: str) -> None:
    async def main() -> None:
        async with AsyncLimiter(calm(MANY, "gcra"), store=url, failure_mode="closed") as limiter:
            decisions = await asyncio.gather(*(limiter.check(f"user-{n}", cost=n % 2 + 1) for n in range(100)))
            assert [MANY - decision.remaining for decision in decisions] == [n % 2 + 1 for n in range(100)]
            many = await limiter.check_many([f"user-{n}" for n in range(100)])
            assert [MANY - decision.remaining for decision in many] == [n % 2 + 2 for n in range(100)]

    asyncio.run(main())


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_counter", "gcra"])
def test_slots_that_are_half_way_to_another_server_are_decided_once(url: str, cluster: Cluster, algorithm: str) -> None:
    """Of those that move, one has a key there still, and another does not; the first of all is one of them, or not."""
    old, new = cluster.masters[:2]
    some = subjects_of(cluster, old, 8)
    with_key, without_key = some[0], some[3]
    old_id, new_id = cluster.node_id(old), cluster.node_id(new)

    async def main() -> None:
        async with AsyncLimiter(calm(MANY, algorithm), store=url, failure_mode="closed") as limiter:
            stay = [name for name in some if name != without_key]
            await asyncio.gather(*(limiter.check(name) for name in stay))
            with old.client() as from_client, new.client() as to_client:
                for name in (with_key, without_key):
                    to_client.execute_command("CLUSTER", "SETSLOT", slot_of(name), "IMPORTING", old_id)
                    from_client.execute_command("CLUSTER", "SETSLOT", slot_of(name), "MIGRATING", new_id)
            for turn in range(4):
                order = some[turn % 2 * 3 :] + some[: turn % 2 * 3]  # with the first or the fourth in front
                decisions = await asyncio.gather(*(limiter.check(name) for name in order))
                assert {decision.reason for decision in decisions} == {"within_limit"}
            looked = await asyncio.gather(*(limiter.peek(name) for name in some))
            charged = {name: MANY - decision.remaining for name, decision in zip(some, looked, strict=True)}
            assert charged == {name: 4 if name == without_key else 5 for name in some}

    try:
        asyncio.run(main())
    finally:
        for server in (new, old):
            with server.client() as client:
                for name in (with_key, without_key):
                    client.execute_command("CLUSTER", "SETSLOT", slot_of(name), "STABLE")


def test_slots_that_have_moved_unheard_of_are_found(url: str, cluster: Cluster) -> None:
    old, new = cluster.masters[:2]
    some = subjects_of(cluster, old, 6)

    async def main() -> None:
        async with AsyncLimiter(calm(MANY, "fixed_window"), store=url, failure_mode="closed") as limiter:
            await asyncio.gather(*(limiter.check(name) for name in some))
            for moved in (some[0], some[3]):
                cluster.move(slot_of(moved), new)
                decisions = await asyncio.gather(*(limiter.check(name) for name in some))
                assert {decision.reason for decision in decisions} == {"within_limit"}
            looked = await asyncio.gather(*(limiter.peek(name) for name in some))
            assert {MANY - decision.remaining for decision in looked} == {3}

    asyncio.run(main())


@pytest.mark.parametrize("topology", ["single", "cluster"])
def test_what_comes_in_one_tick_is_decided_as_by_itself(topology: str, url: str, redis_url: str) -> None:
    """Checks by short ways, of several quotas and costs, and groups of all kinds: some go together, others cannot."""
    chance = Random(11)
    names = ("gcra", "fixed_window", "sliding_window_log")
    templates = [
        Check(rule, key_template("user", rule, quota.algorithm), "", quota)
        for rule, quota in ((name, Quota(9, 60, algorithm=name)) for name in names)  # type: ignore[arg-type]
    ]
    clock = FakeClock()
    memory = MemoryStore(clock=clock)
    ways = [memory.compile(Plan((template,))) for template in templates]

    async def main() -> None:
        store = AsyncRedisStore(url if topology == "cluster" else redis_url, clock=clock)
        short = [store.compile(Plan((template,))) for template in templates]
        refused = 0
        for _ in range(40):
            clock.advance(chance.choice((0, 0.3, 5)))
            asked = [
                (chance.randrange(3), f"user-{chance.randrange(12)}", chance.choice((0, 1, 1, 1, 4))) for _ in range(30)
            ]
            grouped = [_of_all(templates, f"group-{chance.randrange(4)}", cost=chance.choice((1, 2))) for _ in range(3)]
            decisions, answers = await asyncio.gather(
                asyncio.gather(*(short[rule]((subject,), (cost,)) for rule, subject, cost in asked)),
                store.check(grouped),
            )
            expected = [ways[rule]((subject,), (cost,)) for rule, subject, cost in asked]
            assert decisions == expected
            assert answers == memory.check(grouped)
            refused += sum(not one.allowed for one in decisions)
        assert refused > 50
        await store.close()

    asyncio.run(main())


def _of_all(templates: list[Check], subject: str, cost: int) -> Group:
    return Group(tuple(template._replace(subject=subject, cost=cost) for template in templates))
