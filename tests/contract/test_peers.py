"""Every store of ours can be read by other regions: counts, and pages that are written once."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from headgate.core.plan import Plan
from headgate.core.quota import Quota
from headgate.stores.protocol import (
    AsyncCompilingStore,
    AsyncPeerStore,
    CompilingStore,
    Counted,
    LedgerPage,
    PeerStore,
    Swap,
)
from headgate.testing.contract import LIMIT, START, WINDOW, Contract
from tests.contract.places import InAsyncMemory, InMemory, OnAsyncCluster, OnAsyncRedis, OnCluster, OnRedis

MICROSECONDS = 1_000_000


class PeerContract(Contract):
    def ask(self, method: str, *arguments: Any) -> Any:
        own = getattr(self.store, method, None)
        if own is not None:
            return own(*arguments)
        store: Any = self.store
        return store._run(getattr(store._store, method)(*arguments))

    def test_it_is_a_peer(self) -> None:
        assert isinstance(getattr(self.store, "_store", self.store), PeerStore | AsyncPeerStore)

    @pytest.mark.parametrize("counter", ["fixed_window", "sliding_window_counter"])
    def test_counts_are_of_this_window_and_the_one_before(self, counter: str) -> None:
        alice, bob = self._check(counter, cost=2), self._check(counter, subject="bob")
        self._ask(alice)
        self._ask(alice)
        assert self.ask("counts", [alice, bob]) == [Counted(START * MICROSECONDS, 4), None]
        self.clock.advance(WINDOW)
        self._ask(alice._replace(cost=1))
        previous = 4 if counter == "sliding_window_counter" else 0
        (counted,) = self.ask("counts", [alice])
        assert counted == Counted((START + WINDOW) * MICROSECONDS, 1, previous)

    def test_counts_are_not_charged(self) -> None:
        alice = self._check("fixed_window")
        for _ in range(2 * LIMIT):
            self.ask("counts", [alice])
        assert self._ask(alice).remaining == LIMIT - 1

    def test_a_page_is_written_if_nobody_has_written_it_since(self) -> None:
        one, two = self.name("one"), self.name("two")
        now_us = START * MICROSECONDS
        assert self.ask("read", [one, two]) == [LedgerPage(now_us, None), LedgerPage(now_us, None)]
        assert self.ask("swap", [Swap(one, None, "a", 10 * MICROSECONDS)]) == [True]
        swaps = [
            Swap(one, None, "b", MICROSECONDS),
            Swap(two, None, "ü", MICROSECONDS),
            Swap(one, "a", "c", MICROSECONDS),
        ]
        assert self.ask("swap", swaps) == [False, True, True]
        assert [page.text for page in self.ask("read", [one, two])] == ["c", "ü"]

    def test_nothing_is_asked_for_nothing(self) -> None:
        assert self.ask("read", []) == self.ask("swap", []) == self.ask("counts", []) == []

    def name(self, name: str) -> str:
        return self._check("gcra", subject=name).key + ":page"


class ShortPeerContract(PeerContract):
    """Of those that compile plans."""

    @pytest.mark.parametrize("counter", ["fixed_window", "sliding_window_counter"])
    def test_a_program_may_tell_of_a_larger_limit(self, counter: str) -> None:
        store: Any = getattr(self.store, "_store", self.store)
        assert isinstance(store, CompilingStore | AsyncCompilingStore)
        told = self._check(counter)
        asked = told._replace(quota=Quota(LIMIT - 3, WINDOW, algorithm=counter))  # type: ignore[arg-type]
        program: Any = store.compile(Plan((asked,)), None, Plan((told,)))

        async def decide() -> Any:  # in an event loop, which programs of async stores need
            decision = program((told.subject,), (1,))
            return await decision if inspect.isawaitable(decision) else decision

        for used in range(1, LIMIT):
            run: Any = self.store._run if store is not self.store else asyncio.run  # type: ignore[attr-defined]
            decision = run(decide())
            assert (decision.limit, decision.remaining) == (LIMIT, max(0, LIMIT - 3 - used))
            assert decision.allowed == (used <= LIMIT - 3)
            assert decision.plan.limits == (told,)


class TestMemory(InMemory, ShortPeerContract):
    def test_pages_expire(self) -> None:
        name = self.name("one")
        self.ask("swap", [Swap(name, None, "a", 10 * MICROSECONDS)])
        self.clock.advance(10)
        assert self.ask("read", [name])[0].text is None


class TestAsyncMemory(InAsyncMemory, PeerContract): ...


class TestRedis(OnRedis, ShortPeerContract): ...


class TestAsyncRedis(OnAsyncRedis, ShortPeerContract): ...


class TestRedisOfCluster(OnCluster, ShortPeerContract): ...


class TestAsyncRedisOfCluster(OnAsyncCluster, ShortPeerContract): ...
