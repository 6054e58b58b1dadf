"""Reservations on a real cluster: one call for limits in one slot, and records that anybody finds."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from secrets import token_urlsafe
from typing import Any

import pytest

from headgate import AsyncLimiter, Limiter, Rule
from headgate.core.reservation import Adjustments, ClaimedAdjustments, Record
from headgate.rules.penalties import Penalties
from headgate.rules.snapshot import Snapshot
from headgate.stores.redis.reservation_slots import KEYS, LOOK_US, slot_of_id, tag_of_slot
from headgate.stores.redis.topology import RESERVATIONS, slot_of
from headgate.testing import FakeClock
from tests.integration.limiters import calm
from tests.topologies import Cluster, calls_to
from tests.waiting import until

LIMIT = 1_000
START = 1_700_000_040
ONE_SLOT = [Rule(id="own", quota=calm(LIMIT)), Rule(id="burst", quota=calm(LIMIT, "gcra"))]
TWO_SLOTS = [ONE_SLOT[0], Rule(id="all", quota=calm(LIMIT), dimension="global")]


@pytest.fixture
def url(cluster: Cluster) -> str:
    cluster.empty()
    return cluster.url + "?timeout=10"


def calls(cluster: Cluster) -> int:
    """Return how many scripts the cluster has run."""
    return sum(map(calls_to, cluster.masters))


def keys(cluster: Cluster, pattern: str) -> list[str]:
    found: list[str] = []
    for server in cluster.masters:
        with server.client() as client:
            found += [key.decode() for key in client.keys(pattern)]
    return found


def left(limiter: Limiter) -> dict[str, int]:
    return {status.rule: status.remaining for status in limiter.peek(user="alice").limits}


def all_left(rules: list[Rule], remaining: int = LIMIT) -> dict[str, int]:
    return {rule.id: remaining for rule in rules}


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize(("rules", "expected"), [(ONE_SLOT, 1), (TWO_SLOTS, 3)], ids=["one slot", "two slots"])
def test_a_reservation_is_a_call_for_each_slot(
    cluster: Cluster, url: str, kind: type[Any], rules: list[Rule], expected: int
) -> None:
    """For two slots, one more call completes the record; with asyncio, the caller does not wait for that."""

    async def reserve() -> list[int]:
        limiter = kind(rules, store=url, clock=FakeClock(START))  # in no time: it looks for what expired once a second
        counts = []
        for _ in range(4):  # the first loads the scripts, registers the slot, and looks for what has expired
            before = calls(cluster)
            reservation = limiter.reserve(user="alice", cost=2)
            assert (await reservation if kind is AsyncLimiter else reservation).recorded
            if kind is AsyncLimiter:
                await limiter._reservations.finish()
            counts.append(calls(cluster) - before)
        closed = limiter.close()
        if kind is AsyncLimiter:
            await closed
        return counts

    assert asyncio.run(reserve())[1:] == [expected] * 3


@pytest.mark.parametrize("rules", [ONE_SLOT, TWO_SLOTS], ids=["one slot", "two slots"])
def test_any_process_settles_by_the_id_alone(cluster: Cluster, url: str, rules: list[Rule]) -> None:
    with Limiter(rules, store=url) as limiter, Limiter(rules, store=url) as other:
        reservations = [limiter.reserve(user="alice", cost=100) for _ in range(3)]
        (slot,) = {slot_of_id(one.id) for one in reservations}
        assert (slot == slot_of("alice")) == (rules is ONE_SLOT)
        assert slot != RESERVATIONS
        assert other.settle(reservations[0].id, 30).refunded == 70
        assert other.refund(reservations[1].id)
        assert other.settle(reservations[2].id, 130).surcharged == 30
        assert not limiter.settle(reservations[0].id, 30)
        assert left(limiter) == all_left(rules, LIMIT - 160)
    assert keys(cluster, "rl:{reservations*:records") == []


@pytest.mark.parametrize("refusing", ["own", "all"])
def test_a_refused_reservation_leaves_no_record(cluster: Cluster, url: str, refusing: str) -> None:
    limits = {"own": LIMIT, "all": LIMIT} | {refusing: 10}
    rules = [Rule(id="own", quota=calm(limits["own"])), Rule(id="all", quota=calm(limits["all"]), dimension="global")]
    with Limiter(rules, store=url) as limiter:
        assert not limiter.reserve(user="alice", cost=11)
        assert left(limiter) == limits
    assert keys(cluster, "rl:{reservations*:records") == []


def test_the_record_of_a_client_with_penalties_is_in_the_clients_slot(cluster: Cluster, url: str) -> None:
    """That part is decided first, even if it has no limit."""
    penalties = Penalties(enabled=True, violation_threshold=1)
    with Limiter(Snapshot([TWO_SLOTS[1]], penalties=penalties), store=url) as limiter:
        reservation = limiter.reserve(user="alice", cost=LIMIT)
        assert slot_of_id(reservation.id) == slot_of("alice")
        assert not limiter.reserve(user="bob", cost=1)
        assert limiter.reserve(user="bob", cost=1).decision.reason == "penalty"
        assert reservation.settle(30).refunded == LIMIT - 30
        assert left(limiter) == {"all": LIMIT - 30}
    assert keys(cluster, "rl:{reservations*:records") == []


def test_what_expires_is_given_back_once(url: str) -> None:
    clock = FakeClock(START)
    with Limiter(TWO_SLOTS, store=url, clock=clock) as limiter, Limiter(TWO_SLOTS, store=url, clock=clock) as other:
        names = [f"user {number}" for number in range(40)]
        reserved = [limiter.reserve(user=name, cost=5, ttl=20) for name in names]
        clock.advance(19.9)
        assert left(limiter)["all"] == LIMIT - 200
        clock.advance(0.1)
        assert limiter.check(user="alice")  # before a check, it gives back its own
        assert not other.settle("some-other-one", 1)
        assert left(limiter)["all"] == LIMIT - 1
        late = other.settle(reserved[0].id, 3)
        assert (late.reason, left(limiter)["all"]) == ("late", LIMIT - 4)


def test_what_a_dead_process_left_is_found_within_half_a_minute(url: str) -> None:
    """Also if it was made after the last search of its slot, when the slot was registered already."""
    clock = FakeClock(START)
    with Limiter(ONE_SLOT, store=url, clock=clock) as other:
        dead = Limiter(ONE_SLOT, store=url, clock=clock)
        dead.reserve(user="alice", cost=5, ttl=5)
        clock.advance(6)
        other.reserve(user="bob", cost=0)
        assert left(other) == all_left(ONE_SLOT)
        dead.reserve(user="alice", cost=5, ttl=5)
        dead.close()
        clock.advance(LOOK_US / 1e6)
        other.reserve(user="bob", cost=0)
        assert left(other) == all_left(ONE_SLOT)


KILLED = """
import os, signal, sys
from headgate import Limiter
from tests.integration.test_cluster_reservations import ONE_SLOT, TWO_SLOTS

for rules in (ONE_SLOT, TWO_SLOTS):
    limiter = Limiter(rules, store=sys.argv[1])
    for _ in range(10):
        assert limiter.reserve(user="alice", cost=5, ttl=1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_another_process_gives_back_what_a_killed_one_reserved(url: str) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, url], check=False, timeout=60)
    assert killed.returncode == -9
    rules = [*ONE_SLOT, TWO_SLOTS[1]]
    with Limiter(rules, store=url) as limiter:

        def is_given_back() -> bool:
            limiter.reserve(user="bob", cost=0)
            return left(limiter) == all_left(rules)

        until(is_given_back, "what the killed process reserved is given back")


def test_records_move_with_their_slot(cluster: Cluster, url: str) -> None:
    slot = slot_of("alice")
    source = cluster.of_slot(slot)
    other = next(server for server in cluster.masters if server is not source)
    clock = FakeClock(START)
    with Limiter(ONE_SLOT, store=url, clock=clock) as limiter:
        one, another = (limiter.reserve(user="alice", cost=5, ttl=30) for _ in range(2))
        try:
            cluster.move(slot, other)
            assert one.settle(3).refunded == 2
            assert limiter.reserve(user="alice", cost=5, ttl=30)
            clock.advance(30)
            assert limiter.check(user="alice", cost=0)
            assert left(limiter) == all_left(ONE_SLOT, LIMIT - 3)
        finally:
            cluster.move(slot, source)
        assert another.settle(4).reason == "late"


def test_a_register_that_is_lost_is_written_again(cluster: Cluster, url: str) -> None:
    clock = FakeClock(START)
    looks = f"rl:{KEYS[0]}"
    with Limiter(ONE_SLOT, store=url, clock=clock) as limiter, Limiter(ONE_SLOT, store=url, clock=clock) as other:
        limiter.reserve(user="alice", cost=5)
        other.reset_all()
        assert keys(cluster, looks) == []
        clock.advance(1)  # it looks at the register once a second
        limiter.reserve(user="alice", cost=5)
        assert keys(cluster, looks) == [looks]


def test_a_slot_is_forgotten_a_day_after_its_last_reservation(cluster: Cluster, url: str) -> None:
    clock = FakeClock(START)
    with Limiter(ONE_SLOT, store=url, clock=clock) as limiter:
        limiter.reserve(user="alice", cost=5)
        with cluster.of_slot(RESERVATIONS).client() as client:
            for hours, registered in ((0, 1), (24, 1), (2, 0)):
                clock.advance(3_600 * hours)
                limiter.settle("some-other-one", 1)
                assert client.zcard(f"rl:{KEYS[0]}") == registered


def test_records_of_the_version_before_are_settled_and_expire(cluster: Cluster, url: str) -> None:
    """It wrote all records to the slot of `{reservations}`, and its ids name no slot."""
    clock = FakeClock(START)
    with Limiter(ONE_SLOT, store=url, clock=clock) as limiter:
        store = limiter._reservations.store
        reservation = limiter.reserve(user="alice", cost=5)
        claim = store.claim_reservation(reservation.id, 0)
        assert claim is not None
        store.settle([ClaimedAdjustments(claim, Adjustments())])
        assert Record.decode(claim.record).cost == 5
        names = [token_urlsafe(18) for _ in range(2)]
        for name in names:
            store.save_reservation(name, claim.record, 10_000_000)
        assert keys(cluster, "rl:{reservations*:records") == ["rl:{reservations}:records"]
        assert limiter.settle(names[0], 3).refunded == 2
        clock.advance(10)
        assert limiter.check(user="alice")
        assert limiter.settle(names[1], 0).reason == "late"


def test_records_are_beside_the_limits_and_do_not_live_for_ever(cluster: Cluster, url: str) -> None:
    with Limiter(ONE_SLOT, store=url) as limiter:
        limiter.reserve(user="alice", cost=5, ttl=30)
    slot = slot_of("alice")
    assert f"rl:{{{tag_of_slot(slot)}}}:records" in keys(cluster, "rl:{reservations*")
    for server in cluster.masters:
        with server.client() as client:
            lives = {key: client.pttl(key) for key in client.scan_iter("rl:{reservations*")}
        assert all(0 < life < 26 * 3_600_000 for life in lives.values()), lives
