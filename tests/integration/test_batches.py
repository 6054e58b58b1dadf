"""Batches, and requests that are known in several ways, in real Redis: as in memory."""

from __future__ import annotations

import asyncio

import pytest

from headgate import AsyncLimiter, Decision, Limiter, Rule
from headgate.http.request_limiter import resolve
from headgate.limiter.batch import BatchedRequest, RequestPart
from headgate.rules.penalties import Penalties
from headgate.rules.snapshot import Snapshot
from headgate.testing import FakeClock
from tests.integration.limiters import Open
from tests.unit.limiter.test_batch import RULES, asks

TOGETHER = [
    RequestPart({"user": "u", "endpoint": "/a"}),
    RequestPart({"tenant": "t", "endpoint": "/b"}, 2),
    RequestPart({"endpoint": "/d", "ip": "192.0.2.1"}),
    RequestPart({"endpoint": "/d"}, 2),
    RequestPart({"endpoint": "/none"}),
]


@pytest.mark.parametrize("penalised", [False, True])
def test_they_are_decided_as_in_memory(redis_url: str, penalised: bool) -> None:
    async def story(store: str) -> list[Decision]:
        rules = Snapshot(RULES, penalties=Penalties(enabled=penalised, violation_threshold=2))
        clock = FakeClock(1_700_000_000.0)
        async with AsyncLimiter(rules, store=store, clock=clock) as limiter:
            decisions = await resolve(limiter.decide_many(asks()))
            decisions += await resolve(
                limiter.decide_many([BatchedRequest({"user": "w", "endpoint": "/a"}, 1, "key")] * 2)
            )
            for _ in range(3):
                decisions += (await resolve(limiter.decide_together(TOGETHER))).parts
                clock.advance(1)
            return decisions

    expected = asyncio.run(story("memory://"))
    assert {decision.allowed for decision in expected} == {True, False}
    assert any(decision.reason == "penalty" for decision in expected) == penalised
    assert asyncio.run(story(redis_url)) == expected


def test_a_list_of_one_plan_is_decided_as_each_by_itself(open_limiter: Open, redis_url: str) -> None:
    """In several calls, with subjects that come again and are denied."""
    requests = [{"user": f"user-{number % 7}", "cost": number % 3 + 1} for number in range(100)]
    rules = [Rule(id="own", quota="20/hour fixed_window"), Rule(id="all", quota="150/hour gcra", dimension="global")]
    clock = FakeClock()
    there = open_limiter(rules, store=f"{redis_url}&max_batch=8", clock=clock)
    here = Limiter(rules, clock=clock)
    for _ in range(2):
        found = there.check_many(requests)
        assert found == [here.check(**request) for request in requests]  # type: ignore[arg-type]
    assert not all(found)
