"""Fixtures: three regions in memory, on a clock that a test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate.core.decision import Decision
from headgate.core.plan import Plan
from headgate.core.reading import WarningStates
from headgate.errors import StoreTimeout
from headgate.regions import Member, Region
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.stores.program import Program
from headgate.testing import FakeClock
from tests.integration.limiters import Open

START = 1_700_000_040.0  # when a minute begins
WEIGHTS = {"eu": 5, "us": 3, "ap": 2}


def _over_link(name: str) -> Callable[..., Any]:
    def method(self: Link, *arguments: Any) -> Any:
        self.reach()
        return getattr(self.near, name)(*arguments)

    return method


class Link:
    """Another region's store, over a link that can be cut."""

    def __init__(self, near: MemoryStore) -> None:
        self.near = near
        self.cut = False
        self.calls = 0

    def reach(self) -> None:
        self.calls += 1
        if self.cut:
            raise StoreTimeout("the link is cut")

    def compile(self, plan: Plan, states: WarningStates | None = None, told: Plan | None = None) -> Program:
        program = self.near.compile(plan, states, told)

        def check(*request: Any) -> Decision:
            self.reach()
            return program(*request)

        return check

    check, refund, reset, close = map(_over_link, ("check", "refund", "reset", "close"))
    save_reservation, renew, claim_reservation, claim_expired, settle, adjust = map(
        _over_link, ("save_reservation", "renew", "claim_reservation", "claim_expired", "settle", "adjust")
    )
    counts, read, swap = map(_over_link, ("counts", "read", "swap"))


class Regions:
    """Three regions, and limiters in them."""

    def __init__(self, opened: Open, clock: FakeClock, *, awaited: bool) -> None:
        self._open = opened
        self._awaited = awaited
        self.clock = clock
        self.stores = {name: MemoryStore(clock=clock) for name in WEIGHTS}
        self.links = {(here, there): Link(self.stores[there]) for here in WEIGHTS for there in WEIGHTS if here != there}

    def region(self, name: str, **options: Any) -> Region:
        stores: dict[str, Any] = {other: self.links[name, other] for other in WEIGHTS if other != name}
        if self._awaited:
            stores = {other: AsyncMemoryStore(link) for other, link in stores.items()}
        members = [Member(other, stores.get(other), weight) for other, weight in WEIGHTS.items()]
        return Region(name, members, central="eu", **options)

    def limiter(self, name: str, rules: Any, *, clock: FakeClock | None = None, **options: Any) -> Any:
        limiter_options = {key: options.pop(key) for key in ("failure_mode",) if key in options}
        region = self.region(name, **options)
        return self._open(rules, store=self.stores[name], clock=clock or self.clock, region=region, **limiter_options)

    def call(self, limiter: Any, method: str, **facts: Any) -> Any:
        """Call what only the limiter itself has."""
        if self._awaited:
            return limiter.run(getattr(limiter.limiter, method)(**facts))
        return getattr(limiter, method)(**facts)

    def exchange(self, limiter: Any) -> None:
        """Do what is due in the background."""
        if self._awaited:
            limiter.run(limiter.limiter._region_store.exchange())
        else:
            limiter._region_store.exchange()

    def limiters(self, rules: Any, **options: Any) -> dict[str, Any]:
        return {name: self.limiter(name, rules, **options) for name in WEIGHTS}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture(params=["Limiter", "AsyncLimiter"])
def regions(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[Regions]:
    opened = Open(request.param)
    yield Regions(opened, clock, awaited=request.param == "AsyncLimiter")
    opened.close()


Burst = Callable[[Any, int], int]


@pytest.fixture
def burst() -> Burst:
    """How many of so many checks of one limiter are allowed."""
    return lambda limiter, count: sum(limiter.check(user="alice").allowed for _ in range(count))
