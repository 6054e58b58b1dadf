"""A cluster: limits over several slots and servers are as exact as on one, also while slots move and servers die."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from headgate import AsyncLimiter, Decision, Limiter, Rule
from headgate.errors import StoreError
from headgate.rules.penalties import Penalties
from headgate.rules.snapshot import Snapshot
from headgate.stores.redis.topology import slot_of
from headgate.stores.urls import open_async_store, open_store
from tests.integration.limiters import ALGORITHMS, Open, calm
from tests.integration.load import BY_STORE, Load
from tests.servers import Server, free_port
from tests.topologies import Cluster, halt, is_master, kill, resume
from tests.waiting import until

LIMIT = 40
MANY = 1_000_000
SOON = 1.5  # seconds: the bound is 1, on a machine that has nothing else to do (`make chaos`)
MARGIN = 1.0  # seconds in which a check with a deadline of 200 ms has returned, on a busy one
PATIENT = "?timeout=10"


@pytest.fixture
def url(cluster: Cluster) -> str:
    cluster.empty()
    return cluster.url + PATIENT


def rules(shared: str, own: str = "fixed_window", *, limit: int = LIMIT, each: int = MANY) -> list[Rule]:
    """A limit that all share, and one for each user: in different slots."""
    return [
        Rule(id="shared", quota=calm(limit, shared), dimension="global"),
        Rule(id="own", quota=calm(each, own), dimension="user"),
    ]


def remaining(decision: Decision, rule: str) -> int:
    return next(limit.remaining for limit in decision.limits if limit.rule == rule)


def subject_of(cluster: Cluster, server: Server, prefix: str = "user") -> str:
    """A subject whose slot this server has."""
    return next(f"{prefix}-{n}" for n in range(10_000) if cluster.of_slot(slot_of(f"{prefix}-{n}")) is server)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_threads_together_get_exactly_what_several_slots_allow(url: str, algorithm: str) -> None:
    with Limiter(rules(algorithm), store=url, failure_mode="closed") as limiter:
        with ThreadPoolExecutor(8) as threads:
            decisions = list(threads.map(lambda n: limiter.check(user=f"u{n % 8}"), range(120)))
        assert {decision.reason for decision in decisions} == {"within_limit", "over_limit"}
        admitted = sum(decision.allowed for decision in decisions)
        assert admitted <= LIMIT
        used = sum(MANY - remaining(limiter.peek(user=f"u{n}"), "own") for n in range(8))
        assert used == admitted, "a refused request was charged, or an admitted one was not"
        while limiter.check(user="last").allowed:  # in peace, all that is left can be had
            admitted += 1
        assert admitted == LIMIT


def test_tasks_together_get_exactly_what_several_slots_allow(url: str) -> None:
    async def main() -> None:
        async with AsyncLimiter(rules("gcra"), store=url, failure_mode="closed") as limiter:
            decisions = await asyncio.gather(*(limiter.check(user=f"u{n}") for n in range(200)))
            admitted = [n for n, decision in enumerate(decisions) if decision.allowed]
            assert len(admitted) == LIMIT
            looked = await asyncio.gather(*(limiter.peek(user=f"u{n}") for n in range(200)))
            charged = [n for n, decision in enumerate(looked) if remaining(decision, "own") < MANY]
            assert charged == admitted

    asyncio.run(main())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_a_later_slot_refuses_is_undone_in_those_before(url: str, open_limiter: Open, algorithm: str) -> None:
    limiter = open_limiter(rules(algorithm, algorithm, limit=10, each=2), store=url, failure_mode="closed")
    reasons = [limiter.check(user="alice").reason for _ in range(6)]
    assert reasons == ["within_limit"] * 2 + ["over_limit"] * 4
    refused = limiter.check(user="alice")
    assert (refused.rule, refused.remaining) == ("own", 0)
    assert [(limit.rule, limit.remaining) for limit in refused.limits] == [("own", 0), ("shared", 8)]
    assert sum(limiter.check(user=f"user-{n}").allowed for n in range(20)) == 8


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_several_slots_were_charged_can_be_given_back(url: str, algorithm: str) -> None:
    """By each server's own clock: they differ, by the time between one step and the next at least."""
    with Limiter(rules(algorithm, algorithm, limit=10, each=10), store=url, failure_mode="closed") as limiter:
        decision = limiter.check(user="alice", cost=4)
        limiter.give_back(decision)
        assert [limit.remaining for limit in limiter.peek(user="alice").limits] == [10, 10]
        with limiter.reserve(user="alice", cost=6) as reservation:
            assert reservation.settle(1)
        assert [limit.remaining for limit in limiter.peek(user="alice").limits] == [9, 9]


def test_groups_of_a_call_are_decided_in_order(url: str, open_limiter: Open) -> None:
    limiter = open_limiter(rules("fixed_window", each=3), store=url, failure_mode="closed")
    requests = [{"user": user} for user in ("alice", "bob", "alice", "alice", "bob", "alice", "alice", "carol")]
    allowed = [decision.allowed for decision in limiter.check_many(requests)]
    assert allowed == [True, True, True, True, True, False, False, True]
    assert remaining(limiter.peek(user="dave"), "shared") == LIMIT - 6


def test_an_idempotency_key_is_decided_once_whoever_comes_first(url: str) -> None:
    with Limiter(rules("sliding_window_log", limit=1), store=url, failure_mode="closed") as limiter:

        def check(_: int) -> Decision:
            return limiter.check(user="alice", idempotency_key="payment-1")

        with ThreadPoolExecutor(8) as threads:
            decisions = list(threads.map(check, range(40)))
        assert all(decisions)
        assert {decision.at_us for decision in decisions} == {decisions[0].at_us}
        assert not limiter.check(user="alice", idempotency_key="payment-2").allowed


def penalised(limit: int) -> Snapshot:
    terms = Penalties(enabled=True, violation_threshold=3)
    return Snapshot(rules("fixed_window", limit=limit), penalties=terms)


def test_a_client_is_blocked_for_refusals_in_other_slots(url: str, open_limiter: Open) -> None:
    limiter = open_limiter(penalised(1), store=url, failure_mode="closed")
    reasons = [limiter.check(user="alice").reason for _ in range(5)]
    assert reasons == ["within_limit", "over_limit", "over_limit", "penalty", "penalty"]
    assert limiter.check(user="bob").reason == "over_limit"
    limiter.reset(user="alice")
    assert limiter.check(user="alice").reason == "within_limit"


class Calls:
    """An observer that counts."""

    def __init__(self) -> None:
        self.groups: list[int] = []

    def called(self, seconds: float, groups: int) -> None:
        assert seconds > 0
        self.groups.append(groups)

    def failed(self, error: StoreError, seconds: float, groups: int) -> None:
        raise AssertionError(f"{groups} groups, after {seconds} s: {error}")

    def breaker(self, node: str, state: str) -> None:
        assert state == "closed", node


def test_a_batch_is_one_call_to_each_server(url: str) -> None:
    calls = Calls()
    store = open_store(url, None, observer=calls)
    with Limiter(calm(MANY), store=store) as limiter:
        limiter.check("warm")
        calls.groups.clear()
        decisions = limiter.check_many([f"user-{n}" for n in range(100)])
    store.close()
    assert {decision.reason for decision in decisions} == {"within_limit"}
    assert len(calls.groups) == 3
    assert sum(calls.groups) == 100


def test_checks_of_one_tick_are_one_call_to_each_server(url: str) -> None:
    async def main() -> list[Decision]:
        store = open_async_store(url, None, observer=calls)
        limiter = AsyncLimiter(calm(MANY), store=store)
        await asyncio.gather(*(limiter.check(f"warm-{n}") for n in range(20)))
        calls.groups.clear()
        decisions = await asyncio.gather(*(limiter.check(f"user-{n}") for n in range(100)))
        await store.close()
        return decisions

    calls = Calls()
    assert {decision.reason for decision in asyncio.run(main())} == {"within_limit"}
    assert len(calls.groups) == 3
    assert sum(calls.groups) == 100


@contextmanager
def meanwhile(action: Any) -> Iterator[None]:
    """Do something again and again in a thread."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            action()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_slots_move_under_load_without_an_error_and_without_a_check_too_many(url: str, cluster: Cluster) -> None:
    limit, users = 300, [f"user-{n}" for n in range(6)]
    slots = sorted({slot_of(name) for name in (*users, "")})  # the one that all share has an empty subject
    moved: list[int] = []

    def move() -> None:
        slot = slots[len(moved) % len(slots)]
        here = cluster.of_slot(slot)
        cluster.move(slot, cluster.masters[(cluster.masters.index(here) + 1) % 3])
        moved.append(slot)

    async def tasks() -> list[Decision]:
        """At least 60 checks of each user, and as many more as it takes until slots have moved a while."""
        decided: list[Decision] = []
        async with AsyncLimiter(both, store=url, failure_mode="closed") as limiter:
            while len(decided) < 60 * len(users) or len(moved) <= 10:
                decided += await asyncio.gather(*(limiter.check(user=user) for user in users))
        return decided

    both = [*rules("gcra", limit=limit), Rule(id="again", quota=calm(MANY, "gcra"), dimension="user")]
    with Limiter(both, store=url, failure_mode="closed") as limiter:
        with meanwhile(move), ThreadPoolExecutor(5) as threads:
            others = threads.submit(lambda: asyncio.run(tasks()))
            decisions = list(threads.map(lambda n: limiter.check(user=users[n % 6]), range(300)))
            decisions += others.result()
        assert {decision.reason for decision in decisions} <= {"within_limit", "over_limit"}
        admitted = sum(decision.allowed for decision in decisions)
        assert admitted <= limit
        assert sum(MANY - remaining(limiter.peek(user=user), "own") for user in users) == admitted
        while limiter.check(user="last").allowed:
            admitted += 1
        assert admitted == limit


def test_scripts_that_are_flushed_all_the_time_are_loaded_again(url: str, cluster: Cluster) -> None:
    def flush() -> None:
        for server in cluster.masters:
            with server.client() as client:
                client.script_flush()
        time.sleep(0.1)

    with Limiter(rules("gcra", limit=MANY), store=url, failure_mode="closed") as limiter, meanwhile(flush):
        decisions = [limiter.check(user=f"u{n}") for n in range(200)]
    assert {decision.reason for decision in decisions} == {"within_limit"}


def all_well(cluster: Cluster, open_limiter: Open) -> tuple[Any, Server, str, list[str]]:
    """A limiter that every server has answered, one of them, a subject of that one's, and one of each other's."""
    cluster.empty()
    gone, *others = cluster.masters
    dead, alive = subject_of(cluster, gone), [subject_of(cluster, server) for server in others]
    limiter = open_limiter(calm(MANY), store=f"{cluster.url}?timeout=0.5", failure_mode="closed")
    until(lambda: {limiter.check(name).reason for name in (dead, *alive)} == {"within_limit"}, "all are well")
    return limiter, gone, dead, alive


def test_a_server_that_does_not_answer_holds_up_nobody_else(cluster: Cluster, open_limiter: Open) -> None:
    limiter, gone, dead, alive = all_well(cluster, open_limiter)
    halt(gone)
    try:
        began = time.monotonic()
        decisions = [limiter.check(name) for _ in range(100) for name in (dead, *alive)]
        took = time.monotonic() - began
    finally:
        resume(gone)
    assert {decision.reason for decision in decisions[::3]} == {"fail_closed"}
    well = [decision.reason == "within_limit" for place, decision in enumerate(decisions) if place % 3]
    until(lambda: limiter.check(dead).reason == "within_limit", "it is back")
    until(cluster.healthy, "and the others know")
    assert sum(well) >= 0.9 * len(well)
    assert took < 100 * 0.2, "each of them has waited"


def test_a_batch_is_decided_by_the_servers_that_answer(cluster: Cluster, open_limiter: Open) -> None:
    limiter, gone, dead, alive = all_well(cluster, open_limiter)
    left = [limiter.peek(name).remaining for name in alive]
    halt(gone)
    try:
        until(lambda: limiter.check(dead).reason == "fail_closed", "it is away")
        decisions = limiter.check_many([alive[0], dead, alive[1], dead])
        alone = limiter.check_many([dead, dead])
    finally:
        resume(gone)
    until(lambda: limiter.check(dead).reason == "within_limit", "it is back")
    until(cluster.healthy, "and the others know")
    assert [decision.reason for decision in decisions] == ["within_limit", "fail_closed"] * 2
    assert [decision.reason for decision in alone] == ["fail_closed"] * 2
    assert [limiter.peek(name).remaining for name in alive] == [count - 1 for count in left]


def test_a_forked_child_has_connections_and_a_discovery_of_its_own(url: str) -> None:
    with Limiter(calm(MANY), store=url, failure_mode="closed") as limiter:
        assert limiter.check("alice").remaining == MANY - 1
        child = os.fork()
        if not child:
            decisions = limiter.check_many(["alice", "bob", "carol"])
            os._exit({decision.reason for decision in decisions} != {"within_limit"})
        assert os.waitpid(child, 0)[1] == 0
        assert limiter.check("alice").remaining == MANY - 3


@pytest.mark.parametrize("seed", ["nobody there", "a server that answers"])
def test_one_server_that_answers_is_enough_to_find_the_others(cluster: Cluster, open_limiter: Open, seed: str) -> None:
    hosts = f"127.0.0.1:{cluster.masters[1].port}"
    if seed == "nobody there":
        hosts = f"127.0.0.1:{free_port()},{hosts}"
    limiter = open_limiter(calm(MANY), store=f"redis+cluster://{hosts}{PATIENT}", failure_mode="closed")
    decisions = limiter.check_many([f"user-{n}" for n in range(20)])
    assert {decision.reason for decision in decisions} == {"within_limit"}


def test_a_master_that_dies_is_replaced_and_the_others_go_on() -> None:
    with Cluster(replicas=True) as cluster:
        lost, replica = cluster.masters[0], cluster.replicas[0]
        dead, alive = subject_of(cluster, lost), subject_of(cluster, cluster.masters[1])
        opened = [
            Open(kind)(calm(MANY), store=cluster.url, failure_mode="open") for kind in ("Limiter", "AsyncLimiter")
        ]
        for limiter in opened:
            until(lambda: limiter.check(dead).reason == "within_limit", "all is well")  # noqa: B023
        loads = [Load(lambda n, check=one.check: check((dead, alive)[n % 2])) for one in opened]  # type: ignore[misc]
        with loads[0], loads[1]:
            kill(lost)
            until(lambda: cluster.of_slot(slot_of(dead)) is replica, "a new master")
            promoted = time.monotonic()
            until(lambda: all(healed(load, promoted) for load in loads), "all is well again")
            took = [healed(load, promoted) for load in loads]
        for limiter in opened:
            limiter.close()
    for load in loads:
        assert not load.errors
        assert load.slowest < MARGIN
        assert {entry.allowed for entry in load.entries} == {True}
        well = [entry.reason in BY_STORE for entry in load.entries]
        assert sum(well) >= 0.45 * len(well), "the other servers' checks were not decided, either"
    assert max(took) < SOON


class Crowd:
    """Checks two subjects without a pause, each by callers of its own, until it is told to stop."""

    def __init__(self, kind: str, url: str, dead: str, alive: str) -> None:
        self.reasons: dict[str, list[str]] = {dead: [], alive: []}
        self._stop = threading.Event()
        self._given: dict[str, Any] = {"store": url, "failure_mode": "closed"}
        run = self._threads if kind == "Limiter" else lambda: asyncio.run(self._tasks())
        self._thread = threading.Thread(target=run)

    def _threads(self) -> None:
        def run(subject: str) -> None:
            while not self._stop.wait(0.002):
                self.reasons[subject].append(limiter.check(subject).reason)

        with Limiter(calm(MANY), **self._given) as limiter, ThreadPoolExecutor(4) as threads:
            list(threads.map(run, 2 * list(self.reasons)))

    async def _tasks(self) -> None:
        async def run(subject: str) -> None:
            while not self._stop.is_set():
                self.reasons[subject].append((await limiter.check(subject)).reason)
                await asyncio.sleep(0.002)

        async with AsyncLimiter(calm(MANY), **self._given) as limiter:
            await asyncio.gather(*(run(subject) for subject in 5 * list(self.reasons)))

    def __enter__(self) -> dict[str, list[str]]:
        self._thread.start()
        until(lambda: all("within_limit" in told for told in self.reasons.values()), "all is well")
        for told in self.reasons.values():
            told.clear()
        return self.reasons

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize("kind", [pytest.param("Limiter", marks=pytest.mark.extended), "AsyncLimiter"])
def test_a_shard_that_freezes_is_replaced_and_other_shards_decide_all_their_checks(kind: str) -> None:
    """Also while Redis refuses every key of the cluster: from when it gives the shard up until its replica takes over.

    By `cluster-require-full-coverage yes`, the default.
    """
    with Cluster(replicas=True) as cluster:
        lost, replica = cluster.masters[0], cluster.replicas[0]
        dead, alive = subject_of(cluster, lost), subject_of(cluster, cluster.masters[1])
        with Crowd(kind, f"{cluster.url}?timeout=3", dead, alive) as reasons:
            halt(lost)
            until(lambda: is_master(replica), "a new master")
            before = len(reasons[alive])
            until(lambda: reasons[dead][-1:] == ["within_limit"], "it decides")
            until(lambda: len(reasons[alive]) > before + 50, "others do")
    assert set(reasons[alive]) == {"within_limit"}


def healed(load: Load, moment: float) -> float:
    """How long after `moment` the store decided two checks in a row, one of each subject; 0: not yet."""
    entries = load.since(moment)
    for one, other in pairwise(entries):
        if one.reason in BY_STORE and other.reason in BY_STORE:
            return other.ended - moment
    return 0.0
