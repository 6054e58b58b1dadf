"""Clocks that jump: back creates no tokens and locks nobody up, forward refills once; and whose clock it is."""

from __future__ import annotations

import time

import pytest

from headgate import Decision, Limiter, Quota
from headgate.testing import FakeClock
from tests.integration.limiters import ALGORITHMS, DAY, HOUR, Open, calm
from tests.servers import Server

LIMIT = 10
WINDOW = 60
START = 1_700_000_017.25
LONGEST_WAIT = {name: 2 * WINDOW if name == "sliding_window_counter" else WINDOW for name in ALGORITHMS}
algorithms = pytest.mark.parametrize("algorithm", ALGORITHMS)


class Twins:
    """The same quota and the same clock, in memory and on a server: whatever is asked, they agree."""

    def __init__(self, algorithm: str, url: str, start: float = START) -> None:
        self.clock = FakeClock(start)
        quota = Quota(LIMIT, WINDOW, algorithm=algorithm)  # type: ignore[arg-type]
        self._limiters = [Limiter(quota, store=store, clock=self.clock) for store in ("memory://", url)]

    def check(self, cost: int = 1) -> Decision:
        memory, redis = (limiter.check("alice", cost=cost) for limiter in self._limiters)
        assert memory == redis
        return redis

    def peek(self) -> Decision:
        memory, redis = (limiter.peek("alice") for limiter in self._limiters)
        assert memory == redis
        return redis

    def admitted(self) -> int:
        """How many are let in now, of more than there can be."""
        return sum(self.check().allowed for _ in range(2 * LIMIT))

    def close(self) -> None:
        for limiter in self._limiters:
            limiter.close()


@pytest.fixture
def twins(redis_url: str, algorithm: str) -> Twins:
    return Twins(algorithm, redis_url)


@pytest.mark.parametrize("seconds", [HOUR, DAY, 1, 0.000_001])
@pytest.mark.parametrize("used", [1, 3, LIMIT])
@algorithms
def test_back_creates_no_tokens(twins: Twins, algorithm: str, used: int, seconds: float) -> None:
    twins.check(used)
    twins.clock.advance(-seconds)
    assert twins.admitted() <= LIMIT - used
    twins.close()


@pytest.mark.parametrize("seconds", [HOUR, DAY])
@pytest.mark.parametrize("used", [3, LIMIT])
@algorithms
def test_back_locks_nobody_up(twins: Twins, algorithm: str, used: int, seconds: float) -> None:
    twins.check(used)
    twins.clock.advance(-seconds)
    twins.admitted()
    refused = twins.check()
    assert refused.retry_after is not None
    assert 0 < refused.retry_after <= LONGEST_WAIT[algorithm]
    assert 0 < refused.reset_after <= LONGEST_WAIT[algorithm]
    twins.clock.advance(refused.retry_after)
    assert twins.check()
    twins.clock.advance(LONGEST_WAIT[algorithm])
    assert twins.peek().remaining == LIMIT
    assert twins.admitted() == LIMIT
    twins.close()


@algorithms
def test_back_and_never_asked_until_it_is_later_again(twins: Twins, algorithm: str) -> None:
    """A jump that nobody saw changes nothing."""
    twins.check(LIMIT)
    twins.clock.advance(-HOUR)
    twins.clock.advance(HOUR)
    assert twins.admitted() == 0
    twins.close()


@algorithms
def test_forward_refills_once(twins: Twins, algorithm: str) -> None:
    twins.check(LIMIT)
    twins.clock.advance(DAY)
    assert twins.peek().remaining == LIMIT
    assert twins.admitted() == LIMIT
    twins.close()


@pytest.mark.parametrize("used", [3, LIMIT])
@algorithms
def test_forward_a_day_and_back_again(twins: Twins, algorithm: str, used: int) -> None:
    twins.check(LIMIT)
    twins.clock.advance(DAY)
    twins.check(used)
    twins.clock.advance(-DAY)
    assert twins.admitted() <= LIMIT - used
    refused = twins.check()
    assert refused.retry_after is not None
    assert refused.retry_after <= LONGEST_WAIT[algorithm]
    twins.close()


@algorithms
def test_a_peek_by_a_clock_that_went_back_changes_nothing(twins: Twins, algorithm: str) -> None:
    twins.check(LIMIT)
    before = twins.peek()
    twins.clock.advance(-HOUR)
    assert not twins.peek()
    twins.clock.advance(HOUR)
    assert twins.peek() == before
    twins.close()


@algorithms
def test_a_fake_clock_that_starts_at_zero_may_go_back_too(redis_url: str, algorithm: str) -> None:
    """`FakeClock()` starts at 0: an hour earlier is an hour before 1970, which is a time like any other."""
    twins = Twins(algorithm, redis_url, start=0.0)
    twins.check(3)
    twins.clock.advance(-HOUR)
    assert twins.admitted() <= LIMIT - 3
    refused = twins.check()
    assert (refused.reason, refused.remaining) == ("over_limit", 0)
    twins.close()


@algorithms
def test_the_servers_clock_decides_and_not_the_clients(
    redis_server: Server,
    redis_url: str,
    open_limiter: Open,
    monkeypatch: pytest.MonkeyPatch,
    algorithm: str,
) -> None:
    """A client that is more than a whole window ahead gets no new quota, and tells the server's time."""
    quota = calm(5, algorithm)
    true, ahead = open_limiter(quota, store=redis_url), open_limiter(quota, store=redis_url)
    true.check("alice", cost=3)
    before = true.peek("alice")
    real_time, real_time_ns, off = time.time, time.time_ns, 400 * DAY
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real_time() + off)
        patch.setattr(time, "time_ns", lambda: real_time_ns() + off * 1_000_000_000)
        decision = ahead.check("alice", cost=2)
        refused = ahead.check("alice")
    with redis_server.client() as client:
        seconds, microseconds = client.time()
    now = seconds + microseconds / 1_000_000
    assert (decision.allowed, decision.remaining) == (True, 0)
    assert (refused.allowed, refused.reason) == (False, "over_limit")
    for each in (before, decision, refused):
        assert now - 30 < each.reset_at - each.reset_after <= now
    assert true.peek("alice").remaining == 0
