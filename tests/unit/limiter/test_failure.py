"""When the store cannot decide: the failure modes, on a store that fails to order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from headgate import AsyncLimiter, Limiter, Quota, Rule, StoreError, StoreFull, StoreTimeout, StoreUnavailable
from headgate.core.check import Answer, Charge, Check, Client, Group
from headgate.core.decision import Decision
from headgate.core.plan import Plan
from headgate.core.reading import WarningStates
from headgate.stores.memory import MemoryStore
from headgate.stores.memory.program import MemoryProgram
from headgate.testing import FakeClock


class Flaky(MemoryStore):
    """Fails as often as it is told to, and counts how often it was asked."""

    def __init__(self, clock: FakeClock, error: StoreError | None = None) -> None:
        super().__init__(clock=clock)
        self.failures = 0
        self.asked = 0
        self.error = error or StoreUnavailable("no route to host")

    def check(self, groups: Sequence[Group]) -> list[Answer]:
        self._ask()
        return super().check(groups)

    def compile(self, plan: Plan, states: WarningStates | None = None, told: Plan | None = None) -> MemoryProgram:
        program = super().compile(plan, states, told)

        def check(*request: Any) -> Decision:
            self._ask()
            return program(*request)

        return check

    def _ask(self) -> None:
        self.asked += 1
        assert self.asked <= 1_000, "asked again and again, without a pause"
        if self.failures > 0:
            self.failures -= 1
            raise self.error

    def refund(self, charges: Sequence[Charge]) -> None:
        raise NotImplementedError

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        super().reset(checks, clients)


RULES = [Rule(id="r", quota=Quota(2, 60, algorithm="fixed_window"), dimension="ip")]
ALWAYS = 10**9


@pytest.fixture
def store(clock: FakeClock) -> Flaky:
    return Flaky(clock)


def limiter_on(store: Flaky, clock: FakeClock, mode: Any) -> Limiter:
    return Limiter(RULES, store=store, clock=clock, failure_mode=mode)


@pytest.mark.parametrize(
    "error", [StoreUnavailable("x"), StoreTimeout("x"), StoreFull("x"), StoreError("x")], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize(
    ("mode", "allowed", "reason", "state"),
    [
        ("open", [True] * 4, "fail_open", "normal"),
        ("closed", [False] * 4, "fail_closed", "throttled"),
        ("local", [True, True, False, False], "local_fallback", None),
    ],
)
def test_each_mode_decides_in_its_way(
    store: Flaky,
    clock: FakeClock,
    error: StoreError,
    mode: str,
    allowed: list[bool],
    reason: str,
    state: str | None,
) -> None:
    store.failures, store.error = ALWAYS, error
    limiter = limiter_on(store, clock, mode)
    decisions = [limiter.check(ip="192.0.2.7") for _ in range(4)]
    assert [each.allowed for each in decisions] == allowed
    assert {each.reason for each in decisions} == {reason}
    if state is not None:
        assert {each.state for each in decisions} == {state}


def test_the_default_is_open(store: Flaky, clock: FakeClock) -> None:
    store.failures = 1
    assert Limiter(RULES, store=store, clock=clock).check(ip="192.0.2.7").reason == "fail_open"


def test_local_counts_come_back_with_time_and_reset(store: Flaky, clock: FakeClock) -> None:
    limiter = limiter_on(store, clock, "local")
    store.failures = ALWAYS
    assert [limiter.check(ip="192.0.2.7").allowed for _ in range(3)] == [True, True, False]
    clock.advance(60)
    assert [limiter.check(ip="192.0.2.7").allowed for _ in range(3)] == [True, True, False]
    limiter.reset(ip="192.0.2.7")
    assert limiter.check(ip="192.0.2.7").allowed
    assert limiter.peek(ip="192.0.2.7").reason == "local_fallback"


def test_when_there_is_no_room_for_local_counts_either_nothing_raises(
    store: Flaky, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.limiter.fallback.MemoryStore", partial(MemoryStore, max_keys=1))
    limiter = limiter_on(store, clock, "local")
    store.failures = ALWAYS
    assert [limiter.check(ip="192.0.2.7").allowed for _ in range(3)] == [True, True, False]
    assert limiter.check(ip="192.0.2.8").reason in ("local_fallback", "fail_open", "fail_closed")


def test_one_line_at_the_outage_and_one_at_its_end(
    store: Flaky, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="headgate")
    limiter = limiter_on(store, clock, "open")
    for _ in range(2):
        store.failures = 5
        for _ in range(10):
            limiter.check(ip="192.0.2.7")
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"] * 2
    assert "no route to host" in caplog.records[0].getMessage()


def test_a_batch_that_failed_is_followed_by_the_news_that_the_store_is_back(
    store: Flaky, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The short way does not tell: after a failure, the long way is taken once more."""
    limiter = Limiter("100/minute", store=store, clock=clock)
    store.failures = 1
    limiter.check_many(["alice", "bob"])
    assert limiter.check("alice").reason == "within_limit"
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_requests_without_a_rule_say_nothing_of_the_store(
    store: Flaky, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = limiter_on(store, clock, "open")
    store.failures = ALWAYS
    for _ in range(3):
        limiter.check(ip="192.0.2.7")
        limiter.check(user="alice")
    told = [record.levelname for record in caplog.records if "no rule applies" not in record.getMessage()]
    assert told == ["ERROR"]


def test_a_refusal_by_failure_names_the_rule(store: Flaky, clock: FakeClock) -> None:
    """Which rule refused me? Also when it did because its store is down."""
    store.failures = 1
    refused = limiter_on(store, clock, "closed").check(ip="192.0.2.7")
    assert (refused.reason, refused.rule) == ("fail_closed", "r")


def test_wait_gives_up_on_a_store_that_stays_away(store: Flaky, clock: FakeClock) -> None:
    """It does not ask again and again without a pause."""
    store.failures = ALWAYS
    refused = limiter_on(store, clock, "closed").wait(ip="192.0.2.7", timeout=1)
    assert (refused.allowed, refused.reason) == (False, "fail_closed")


async def checked(limiter: AsyncLimiter) -> str:
    async with limiter:
        return (await limiter.check(ip="192.0.2.7")).reason


def test_an_async_limiter_fails_alike(store: Flaky, clock: FakeClock) -> None:
    for mode, reason in (("open", "fail_open"), ("closed", "fail_closed"), ("local", "local_fallback")):
        store.failures = 1
        limiter = AsyncLimiter(RULES, store=store, clock=clock, failure_mode=mode)  # type: ignore[arg-type]
        assert asyncio.run(checked(limiter)) == reason


def test_an_outage_that_a_batch_ran_into_is_over_when_a_check_by_subject_is_answered(clock: FakeClock) -> None:
    store = Flaky(clock)
    limiter = Limiter("5/minute", store=store, clock=clock)
    store.failures = 1
    assert [one.reason for one in limiter.check_many(["alice", "bob"])] == ["fail_open", "within_limit"]
    store.failures = 1
    assert limiter.check_many(["bob"])[0].reason == "fail_open"
    assert limiter._engine.outage.lasts
    assert limiter.check("alice").reason == "within_limit"
    assert not limiter._engine.outage.lasts
