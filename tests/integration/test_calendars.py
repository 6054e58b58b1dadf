"""Calendars on Redis: the twin counts as memory does, and its own clock picks the window."""

from __future__ import annotations

import random

import pytest

from headgate import Limiter, Rule
from headgate.testing import FakeClock

NOTATIONS = [
    *(
        "7/calendar day tz Europe/Berlin",
        "7/calendar week anchor sunday",
        "7/calendar month tz America/New_York anchor 31",
    ),
    *("7/calendar year tz Asia/Kathmandu", "7/calendar day tz Australia/Lord_Howe anchor 5"),
]
SPRING = 1_774_659_600.0  # 2026-03-28 02:00 in Berlin, a day before clocks change


@pytest.mark.parametrize("notation", NOTATIONS)
def test_memory_and_redis_agree_step_by_step(redis_url: str, notation: str) -> None:
    chance = random.Random(notation)
    clock = FakeClock(SPRING)
    here, there = Limiter(notation, clock=clock), Limiter(notation, clock=clock, store=redis_url)
    with here, there:
        for _ in range(300):
            cost = chance.choice([0, 1, 1, 2, 5, 8])
            operation = chance.choice(["check", "check", "check", "peek", "reserve"])
            if operation == "reserve":
                actual = chance.randrange(8)
                held = [one.reserve("u", cost=min(cost, 7)) for one in (here, there)]
                settled = [one.settle(actual) for one in held]
                assert settled[0] == settled[1]
            else:
                decisions = [getattr(one, operation)("u", cost=cost) for one in (here, there)]
                assert decisions[0] == decisions[1]
            clock.advance(chance.choice([0, 1, 3_600, 30_000, 86_400, 20 * 86_400]))


def test_the_servers_clock_picks_among_the_boundaries_that_travel(redis_url: str) -> None:
    """A client whose clock is most of a day slow counts in the same day as all others."""
    rule = Rule(id="daily", quota="5/calendar day")
    with Limiter([rule], store=redis_url) as right:
        now = right.check(user="u").at_us / 1e6
        slow = Limiter([rule], store=redis_url)
        slow._engine.clock = FakeClock(now - 80_000)
        with slow:
            decision = slow.check(user="u")
            assert decision.remaining == 3
            assert decision.reset_at == pytest.approx((now // 86_400 + 1) * 86_400, abs=0.001)


def test_a_calendar_fails_over_to_a_share_of_its_own(redis_url: str) -> None:
    clock = FakeClock(SPRING)
    with Limiter("4/calendar month", clock=clock, store=redis_url, failure_mode="local") as limiter:
        assert [limiter.check("u").allowed for _ in range(5)] == [True, True, True, True, False]
        limiter.reset("u")
        assert limiter.check("u").remaining == 3
