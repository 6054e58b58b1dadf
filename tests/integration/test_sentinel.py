"""A master behind Sentinel: whoever is the master decides, and until there is one, failure modes do. Nothing raises."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from headgate import AsyncLimiter, Limiter
from tests.integration.limiters import Open, calm
from tests.integration.load import BY_STORE, Load
from tests.servers import Server, default_binary, free_port
from tests.topologies import SERVICE, Sentinel, SentinelTrio, halt, is_master, kill, resume
from tests.waiting import until

LIMIT = 1_000_000
STALLED = 0.7  # seconds, on a busy machine: a probe would come after 0.85
SOON = 1.5  # seconds: the bound is 1, on a machine that has nothing else to do (`make chaos`)
MARGIN = 1.0  # seconds in which a check with a deadline of 200 ms has returned, on a busy one


@pytest.fixture(scope="module")
def trio() -> Iterator[SentinelTrio]:
    """For tests that leave it as it is."""
    with SentinelTrio() as trio:
        yield trio


@pytest.fixture
def own_trio() -> Iterator[SentinelTrio]:
    with SentinelTrio() as trio:
        yield trio


@contextmanager
def both_loads(url: str, failure_mode: str) -> Iterator[list[Load]]:
    """A Limiter and an AsyncLimiter that check all the time; the store decides when it begins."""
    with ExitStack() as stack:
        loads = []
        for kind in ("Limiter", "AsyncLimiter"):
            opened = Open(kind)
            stack.callback(opened.close)
            limiter = opened(calm(LIMIT), store=url, failure_mode=failure_mode)
            until(lambda: limiter.check("alice").reason == "within_limit", "a decision by the store")  # noqa: B023
            loads.append(Load(lambda _, check=limiter.check: check("alice")))  # type: ignore[misc]
        for load in loads:
            stack.enter_context(load)
        yield loads


def test_a_master_that_is_killed_is_replaced_without_an_error(own_trio: SentinelTrio) -> None:
    """And when it comes back, still as a master by its own account, it is not believed."""
    master, replica = own_trio.master(), own_trio.replica()
    with both_loads(own_trio.url, "open") as loads:
        kill(master)
        until(lambda: is_master(replica), "a new master")
        promoted = time.monotonic()
        took = [load.decided_after(promoted) for load in loads]
        strict = time.monotonic()
        master.start()
        time.sleep(0.5)
    with master.client() as client:
        assert not client.keys("rl:*")
    for load in loads:
        assert not load.errors
        assert load.slowest < MARGIN
        assert {entry.reason for entry in load.entries} <= {*BY_STORE, "fail_open"}
        assert {entry.allowed for entry in load.entries} == {True}
        late = [entry for entry in load.since(strict) if entry.reason == "fail_open"]
        assert len(late) <= len(load.since(strict)) / 10, "not strict after all"
    assert max(took) < SOON


def test_a_new_master_that_stalls_at_first_is_used_as_soon_as_it_answers(own_trio: SentinelTrio) -> None:
    """It may be busy with whoever comes after its promotion. A probe a second later would be the next chance."""
    master, replica = own_trio.servers
    with both_loads(own_trio.url, "open") as loads:
        kill(master)
        until(lambda: is_master(replica), "a new master")
        halt(replica)
        time.sleep(0.15)
        resume(replica)
        awake = time.monotonic()
        took = [load.decided_after(awake) for load in loads]
    assert max(took) < STALLED


def test_a_master_that_becomes_a_replica_is_left_for_the_new_one(own_trio: SentinelTrio) -> None:
    """Without having been away: it answers that it is read-only. By hand, as Sentinel takes its time over this."""
    master, replica = own_trio.master(), own_trio.replica()
    with both_loads(own_trio.url, "closed") as loads, replica.client() as new, master.client() as old:
        new.replicaof("NO", "ONE")
        for sentinel in own_trio.sentinels:
            with sentinel.client() as client:
                client.execute_command("SENTINEL", "REMOVE", SERVICE)
                client.execute_command("SENTINEL", "MONITOR", SERVICE, "127.0.0.1", replica.port, 2)
        old.replicaof("127.0.0.1", str(replica.port))
        demoted = time.monotonic()
        took = [load.decided_after(demoted) for load in loads]
    for load in loads:
        assert not load.errors
        assert load.slowest < MARGIN
    assert max(took) < SOON


def test_a_sentinel_that_is_away_is_passed_over(trio: SentinelTrio, open_limiter: Open) -> None:
    url = trio.url.replace("sentinel://", f"sentinel://127.0.0.1:{free_port()},") + "?timeout=5"
    limiter = open_limiter(calm(LIMIT), store=url, failure_mode="closed")
    assert limiter.check("alice").reason == "within_limit"


def test_a_service_that_nobody_knows_costs_no_time(trio: SentinelTrio, open_limiter: Open) -> None:
    limiter = open_limiter(calm(LIMIT), store=trio.url.replace(SERVICE, "unheard-of"), failure_mode="closed")
    began = time.monotonic()
    assert {limiter.check("alice").reason for _ in range(100)} == {"fail_closed"}
    assert time.monotonic() - began < 100 * 0.2 / 4  # a quarter of what each waiting for its deadline would take


def test_no_sentinel_at_all_is_a_fault_like_any_other(open_limiter: Open) -> None:
    url = f"redis+sentinel://127.0.0.1:{free_port()}/{SERVICE}/0"
    limiter = open_limiter(calm(LIMIT), store=url, failure_mode="closed")
    assert {limiter.check("alice").reason for _ in range(10)} == {"fail_closed"}


def test_servers_and_sentinels_have_users_and_passwords_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    acl = ("--user", "gate", "on", ">right", "~rl:*", "+@all", "--requirepass", "master")
    with Server(default_binary(), acl) as server:
        settings = (
            f"sentinel auth-pass {SERVICE} master",
            "requirepass watch",
            "user watcher on >watch resetchannels &+* -@all +sentinel +client +hello +subscribe",
        )
        with Sentinel(default_binary(), master_port=server.port, settings=settings) as sentinel:
            hosts = f"127.0.0.1:{sentinel.port}"
            own = "sentinel_username=watcher&sentinel_password=watch"
            url = f"redis+sentinel://gate:right@{hosts}/{SERVICE}/0?timeout=5&{own}"
            with Limiter(calm(LIMIT), store=url, failure_mode="closed") as limiter:
                assert limiter.check("alice").reason == "within_limit"
            assert "announces no failovers" not in caplog.text
            for wrong in (url.replace(":right@", ":wrong@"), url.replace("=watch", "=nobody")):
                with Limiter(calm(LIMIT), store=wrong, failure_mode="closed") as limiter:
                    assert limiter.check("alice").reason == "fail_closed"

            async def main() -> str:
                async with AsyncLimiter(calm(LIMIT), store=url, failure_mode="closed") as limiter:
                    return (await limiter.check("alice")).reason

            assert asyncio.run(main()) == "within_limit"
