"""Stores on a real server tell of their calls: how long, how many groups, and what went wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate import AsyncLimiter, Limiter
from headgate.errors import StoreError
from headgate.stores.urls import open_async_store, open_store
from headgate.telemetry.meter import Meter
from tests.kinds import each_kind
from tests.servers import Server, binaries, free_port


class Noted:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, int]] = []
        self.failures: list[tuple[str, float, int]] = []
        self.breakers: list[tuple[str, str]] = []

    def called(self, seconds: float, groups: int) -> None:
        self.calls.append((seconds, groups))

    def failed(self, error: StoreError, seconds: float, groups: int) -> None:
        self.failures.append((type(error).__name__, seconds, groups))

    def breaker(self, node: str, state: str) -> None:
        self.breakers.append((node, state))


def run_async(url: str, observer: Any, *, reset: bool = False) -> None:
    async def main() -> None:
        store = open_async_store(url, None, observer=observer)
        limiter = AsyncLimiter("5/minute", store=store)
        await limiter.check("alice")
        await limiter.check_many(["alice", "bob", "carol"])
        if reset:
            await limiter.reset("alice")
        await store.close()

    asyncio.run(main())


def run_sync(url: str, observer: Any, *, reset: bool = False) -> None:
    store = open_store(url, None, observer=observer)
    limiter = Limiter("5/minute", store=store)
    limiter.check("alice")
    limiter.check_many(["alice", "bob", "carol"])
    if reset:
        limiter.reset("alice")
    store.close()


both = pytest.mark.parametrize("run", [run_async, run_sync])


@both
def test_each_call_is_told_with_its_groups(run: Any, redis_url: str) -> None:
    noted = Noted()
    run(redis_url, noted, reset=True)
    assert [groups for _, groups in noted.calls] == [1, 3, 0]
    assert all(0 < seconds < 10 for seconds, _ in noted.calls)
    assert not noted.failures


@both
def test_failures_are_told(run: Any) -> None:
    noted = Noted()
    run(f"redis://127.0.0.1:{free_port()}/0?timeout=5", noted)
    assert [(name, groups) for name, _, groups in noted.failures] == [("StoreUnavailable", 1), ("StoreUnavailable", 3)]
    assert not noted.calls


@both
def test_a_server_that_does_not_answer_is_a_timeout(run: Any, own_server: Server) -> None:
    with own_server.client() as client:
        client.execute_command("CLIENT", "PAUSE", 10_000, "ALL")
        noted = Noted()
        run(f"{own_server.url}?timeout=0.05", noted)
    assert {name for name, _, _ in noted.failures} == {"StoreTimeout"}
    assert all(seconds >= 0.04 for _, seconds, _ in noted.failures)


@both
@pytest.mark.parametrize("kind", each_kind())
def test_a_server_without_memory_is_full_and_opens_no_breaker(run: Any, kind: str) -> None:
    with Server(binaries()[kind]) as server, server.client() as client:
        client.config_set("maxmemory", 1)
        noted, meter = Noted(), Meter()
        run(f"{server.url}?timeout=5", noted)
        run(f"{server.url}?timeout=5", meter)
    assert [(name, groups) for name, _, groups in noted.failures] == [("StoreFull", 1), ("StoreFull", 3)]
    assert {state for _, state in noted.breakers} <= {"closed", "gone"}
    assert {name: count for name, count in meter.store_errors.items() if count} == {"full": 2}


def test_checks_that_wait_in_vain_are_told_one_by_one(own_server: Server) -> None:
    async def main(noted: Noted) -> None:
        store = open_async_store(f"{own_server.url}?timeout=0.1&max_in_flight=1&max_batch=1", None, observer=noted)
        limiter = AsyncLimiter("5/minute", store=store)
        decisions = await asyncio.gather(*(limiter.check(f"user-{n}") for n in range(5)))
        assert {decision.reason for decision in decisions} == {"fail_open"}
        await store.close()

    noted = Noted()
    with own_server.client() as client:
        client.execute_command("CLIENT", "PAUSE", 10_000, "ALL")
        asyncio.run(main(noted))
    assert [name for name, _, _ in noted.failures] == ["StoreTimeout"] * 5


def test_the_meter_is_an_observer(redis_url: str) -> None:
    meter = Meter()
    run_async(redis_url, meter)
    buckets, groups = meter.store_batches.read()
    assert (buckets[-1][1], groups) == (2, 4)
    assert meter.store_calls.read()[0][-1][1] == 2


def test_memory_has_no_calls_to_tell_of() -> None:
    noted = Noted()
    run_async("memory://", noted)
    run_sync("memory://", noted)
    assert not noted.calls
    assert not noted.failures
