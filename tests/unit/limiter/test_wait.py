"""wait: sleeps until it is allowed, or gives up as soon as waiting is in vain."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate import AsyncLimiter, InvalidCheck, Limiter, Quota, Rule
from headgate.testing import FakeClock
from tests.integration.limiters import Open
from tests.unit.limiter.conftest import START

QUOTA = "1/minute fixed_window"


def test_it_sleeps_no_longer_than_it_must(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter(QUOTA, clock=clock)
    clock.advance(15)
    assert limiter.wait("alice").allowed
    assert clock.now() == START + 15
    assert limiter.wait("alice").allowed
    assert clock.now() == START + 60
    assert limiter.wait("alice", timeout=60).allowed
    assert clock.now() == START + 120


@pytest.mark.parametrize("timeout", [0, 0.5, 59.999_999])
def test_it_gives_up_at_once_if_the_time_is_too_short(open_limiter: Open, clock: FakeClock, timeout: float) -> None:
    limiter = open_limiter(QUOTA, clock=clock)
    limiter.check("alice")
    refused = limiter.wait("alice", timeout=timeout)
    assert (refused.allowed, refused.retry_after, clock.now()) == (False, 60, START)


def test_it_gives_up_at_once_on_what_never_fits(open_limiter: Open, clock: FakeClock) -> None:
    refused = open_limiter(QUOTA, clock=clock).wait("alice", cost=2)
    assert (refused.allowed, refused.retry_after, clock.now()) == (False, None, START)


def test_it_takes_facts_and_a_cost(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter([Rule(id="r", quota=Quota(4, 60, algorithm="gcra"), dimension="ip")], clock=clock)
    limiter.check(ip="192.0.2.7", cost=4)
    assert limiter.wait(ip="192.0.2.7", cost=2, timeout=30).allowed
    assert clock.now() == START + 30


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), float("-inf")])
def test_a_timeout_is_no_less_than_zero(open_limiter: Open, timeout: float) -> None:
    with pytest.raises(InvalidCheck, match=f"timeout: .*{timeout!r}"):
        open_limiter(QUOTA).wait("alice", timeout=timeout)


@pytest.mark.parametrize("timeout", ["1", True, [1]])
def test_a_timeout_is_a_number(open_limiter: Open, timeout: Any) -> None:
    with pytest.raises(InvalidCheck, match=r"timeout: must be 0 or more seconds, or None, got"):
        open_limiter(QUOTA).wait("alice", timeout=timeout)


def test_an_infinite_timeout_waits_as_long_as_it_takes(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter(QUOTA, clock=clock)
    limiter.check("alice")
    assert limiter.wait("alice", timeout=float("inf")).allowed
    assert clock.now() == START + 60


class Contested(FakeClock):
    """Somebody else takes each chance for which a sleeper wakes up, a few times."""

    def __init__(self) -> None:
        super().__init__(START)
        self.rival: Limiter | None = None
        self.steals = 2

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.rival is not None and self.steals > 0:
            self.steals -= 1
            assert self.rival.check("alice")


def test_it_tries_again_when_somebody_was_faster() -> None:
    clock = Contested()
    with Limiter(QUOTA, clock=clock) as limiter:
        limiter.check("alice")
        clock.rival = limiter
        assert limiter.wait("alice").allowed
        assert clock.now() == START + 180


def test_it_counts_all_of_its_sleeps_against_the_timeout() -> None:
    clock = Contested()
    with Limiter(QUOTA, clock=clock) as limiter:
        limiter.check("alice")
        clock.rival = limiter
        assert not limiter.wait("alice", timeout=150)
        assert clock.now() == START + 120


def test_tasks_that_wait_do_not_hold_up_the_others() -> None:
    """By the real clock: twenty tasks in line for one a millisecond."""

    async def main() -> list[Any]:
        async with AsyncLimiter("1/ms gcra") as limiter:
            return await asyncio.gather(*(limiter.wait("alice", timeout=30) for _ in range(20)))

    assert all(asyncio.run(main()))
