"""Planned failovers behind Sentinel: the old master goes on accepting writes that nobody will know about.

Whoever writes to it after the promotion admits too many. Sentinels announce it, and are asked every second.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headgate import AsyncLimiter, Limiter
from tests.integration.limiters import Open, calm
from tests.integration.test_sentinel import both_loads
from tests.kinds import each_kind
from tests.servers import Server, binaries, default_binary
from tests.topologies import SERVICE, Sentinel, SentinelTrio, calls_to, halt, is_master, kill
from tests.waiting import until

LIMIT = 1_000_000
QUIET = 0.5  # seconds without a call: nobody uses a server any more
DOUBT = 3.0  # seconds: the bound is 1, on a machine that has nothing else to do (`make chaos`)


def seconds_in_doubt(old: Server, promoted: float) -> float:
    """How long after the promotion the old master was used."""
    last, calls = promoted, calls_to(old)
    while time.monotonic() < max(last, promoted) + QUIET:
        time.sleep(0.02)
        now = calls_to(old)
        if now != calls:
            last, calls = time.monotonic(), now
        assert last < promoted + DOUBT, "the old master is still used"
    return last - promoted


def check_failover(trio: SentinelTrio) -> None:
    """Fail over under load: the old master is left, though it would take more."""
    old, new = trio.servers
    with both_loads(trio.url, "closed") as loads:
        before = calls_to(old)
        trio.fail_over()
        until(lambda: is_master(new), "a new master")
        seconds_in_doubt(old, time.monotonic())
        assert is_master(old), "it was demoted meanwhile: the test has shown nothing"
        for load in loads:
            load.decided_after(time.monotonic())
        in_doubt = calls_to(old) - before
    admitted = sum(entry.reason == "within_limit" for load in loads for entry in load.entries)
    with Limiter(calm(LIMIT), store=f"{new.url}?timeout=10", failure_mode="closed") as limiter:
        counted = LIMIT - limiter.peek("alice").remaining
    assert admitted - counted <= in_doubt
    assert not [error for load in loads for error in load.errors]


@pytest.mark.parametrize("kind", each_kind())
def test_a_planned_failover_is_followed_at_once(kind: str) -> None:
    with SentinelTrio(binaries()[kind]) as trio:
        check_failover(trio)


@pytest.mark.parametrize("lose", [pytest.param(kill, marks=pytest.mark.extended), halt], ids=["killed", "frozen"])
def test_a_planned_failover_is_followed_while_a_sentinel_is_away(lose: Callable[[Server], None]) -> None:
    with SentinelTrio() as trio:
        lose(trio.sentinels[2])
        check_failover(trio)


@pytest.fixture
def pair() -> Iterator[list[Server]]:
    """Two servers that know nothing of each other."""
    with Server(default_binary()) as one, Server(default_binary()) as other:
        yield [one, other]


def name_another(sentinel: Sentinel, server: Server, password: str = "") -> None:
    """Have a Sentinel name another master, and announce nothing."""
    with sentinel.client() as client:
        if password:
            client.execute_command("AUTH", password)
        client.execute_command("SENTINEL", "REMOVE", SERVICE)
        client.execute_command("SENTINEL", "MONITOR", SERVICE, "127.0.0.1", server.port, 1)


def test_a_master_that_is_no_longer_named_is_not_written_to(pair: list[Server], open_limiter: Open) -> None:
    """Nobody announces it, the old one would take more, and the new one is no master yet: failure modes decide."""
    old, new = pair
    with new.client() as client:
        client.replicaof("127.0.0.1", str(old.port))
    with Sentinel(default_binary(), master_port=old.port, down_after_ms=60_000) as sentinel:
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/{SERVICE}/0?timeout=5"
        limiter = open_limiter(calm(LIMIT), store=url, failure_mode="closed")
        assert limiter.check("alice").reason == "within_limit"
        name_another(sentinel, new)
        until(lambda: limiter.check("alice").reason == "fail_closed", "the old one is left")
        calls = calls_to(old)
        assert {limiter.check("alice").reason for _ in range(20)} == {"fail_closed"}
        assert calls_to(old) == calls
        with new.client() as client:
            client.replicaof("NO", "ONE")
        until(lambda: limiter.check("alice").reason == "within_limit", "the new one is a master")
        assert calls_to(old) == calls


def test_sentinels_that_allow_no_subscription_are_asked(
    pair: list[Server], open_limiter: Open, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = pair
    settings = ("user watcher on >watch ~* &* +@all -subscribe",)
    with Sentinel(default_binary(), master_port=old.port, settings=settings) as sentinel:
        own = "sentinel_username=watcher&sentinel_password=watch"
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/{SERVICE}/0?timeout=5&{own}"
        limiter = open_limiter(calm(LIMIT), store=url, failure_mode="closed")
        assert limiter.check("alice").reason == "within_limit"
        assert "announces no failovers" in caplog.text
        name_another(sentinel, new)
        until(lambda: limiter.check("alice").allowed and calls_to(new), "the new one is used")


# What it takes, and gives back


@pytest.fixture(scope="module")
def trio() -> Iterator[SentinelTrio]:
    with SentinelTrio() as trio:
        yield trio


def connections(trio: SentinelTrio) -> list[int]:
    """How many connections of ours each Sentinel has."""
    counts = []
    for sentinel in trio.sentinels:
        with sentinel.client() as client:
            counts.append(sum(known["name"] == "headgate" for known in client.client_list()))
    return counts


def discoveries() -> int:
    return sum(thread.name == "headgate-discovery" for thread in threading.enumerate())


def nothing_is_left(trio: SentinelTrio) -> None:
    until(lambda: not discoveries(), "the end of the thread")
    until(lambda: connections(trio) == [0, 0, 0], "the end of its connections")


def test_one_connection_to_each_sentinel_is_enough_and_is_given_back(trio: SentinelTrio) -> None:
    with Limiter(calm(LIMIT), store=f"{trio.url}?timeout=5") as limiter:
        for _ in range(20):
            assert limiter.check("alice").reason == "within_limit"
        time.sleep(1.5)  # it has asked again meanwhile
        assert connections(trio) == [1, 1, 1]
        assert discoveries() == 1
    nothing_is_left(trio)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the checks' own connection, that nobody has closed
def test_a_limiter_that_nobody_closes_leaves_nothing(trio: SentinelTrio) -> None:
    limiter: Limiter | None = Limiter(calm(LIMIT), store=f"{trio.url}?timeout=5")
    assert limiter is not None
    assert limiter.check("alice").reason == "within_limit"
    limiter = None
    gc.collect()
    nothing_is_left(trio)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # connections of a loop that is gone
def test_an_event_loop_that_ends_takes_the_subscription_with_it(trio: SentinelTrio) -> None:
    def scenario() -> None:
        async def main(*, close: bool) -> str:
            reason = (await limiter.check("alice")).reason
            if close:
                await limiter.close()
            return reason

        limiter = AsyncLimiter(calm(LIMIT), store=f"{trio.url}?timeout=5")
        assert asyncio.run(main(close=False)) == "within_limit"
        nothing_is_left(trio)
        assert asyncio.run(main(close=True)) == "within_limit"

    scenario()
    gc.collect()  # here, where warnings are expected: its pool …
    gc.collect()  # … and then the connections, to which the finalizer of the pool referred


def test_an_event_loop_that_nobody_runs_does_not_gather_news(trio: SentinelTrio) -> None:
    with asyncio.Runner() as runner:
        limiter = AsyncLimiter(calm(LIMIT), store=f"{trio.url}?timeout=5")
        assert runner.run(limiter.check("alice")).reason == "within_limit"
        time.sleep(3.2)  # Sentinels are asked three times
        assert len(runner.get_loop()._ready) <= 1  # type: ignore[attr-defined]
        assert runner.run(limiter.check("alice")).reason == "within_limit"
        runner.run(limiter.close())
    nothing_is_left(trio)


def test_a_forked_child_listens_for_itself(trio: SentinelTrio) -> None:
    with Limiter(calm(LIMIT), store=f"{trio.url}?timeout=5", failure_mode="closed") as limiter:
        assert limiter.check("alice").reason == "within_limit"
        done, tell = os.pipe()
        child = os.fork()
        if not child:
            os.close(tell)
            reasons = [limiter.check("alice").reason for _ in range(3)]
            os.read(done, 1)
            os._exit(reasons != ["within_limit"] * 3 or discoveries() != 1)
        try:
            until(lambda: connections(trio) == [2, 2, 2], "the child's connections")
            limiter.close()
            until(lambda: connections(trio) == [1, 1, 1], "the end of the parent's alone")
        finally:
            os.close(tell)
            os.close(done)
            status = os.waitpid(child, 0)[1]
        assert status == 0
    nothing_is_left(trio)
