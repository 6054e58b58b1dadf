"""Buckets with open reservations: what settling gives back, and what the state is without any."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from redis import Redis

from headgate import Limiter
from headgate.algorithms import ALGORITHMS, held
from headgate.core.check import Charge, Check, Group, Result
from headgate.core.key import key_template
from headgate.core.quota import BUCKETS, Quota
from headgate.stores.memory import MemoryStore
from headgate.stores.redis.sync import RedisStore
from headgate.testing import FakeClock

START = 1_700_000_000
SECOND = 1_000_000


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, clock: FakeClock, redis_url: str) -> Iterator[Any]:
    store = MemoryStore(clock=clock) if request.param == "memory" else RedisStore(redis_url, clock=clock)
    yield store
    store.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


class Bucket:
    """One key of a store. Reservations are numbered."""

    def __init__(self, store: Any, clock: FakeClock, quota: Quota) -> None:
        self.store, self.clock = store, clock
        self.template = Check("rule", key_template("user", "rule", quota.algorithm), "alice", quota)
        self.marks = count(1)

    def check(self, cost: int, mark: int = 0) -> bool:
        (result,) = self.store.check([Group((self.template._replace(cost=cost, reservation=mark),))])
        assert isinstance(result, Result)
        return result.outcomes[0].wait_us == 0

    def reserve(self, cost: int) -> Charge:
        mark = next(self.marks)
        assert self.check(cost, mark)
        return Charge(self.template._replace(cost=cost, reservation=mark), self.clock.now_us())

    def give_back(self, charge: Charge, cost: int) -> int:
        (given,) = self.store.adjust([charge._replace(check=charge.check._replace(cost=cost))])
        return int(given)

    @property
    def remaining(self) -> int:
        (result,) = self.store.check([Group((self.template._replace(cost=0),), peek=True)])
        assert isinstance(result, Result)
        return result.outcomes[0].remaining


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_a_bucket_in_use_gives_back_what_was_reserved(store: Any, clock: FakeClock, algorithm: str) -> None:
    limiter = Limiter(f"10/10s burst 30 {algorithm}", store=store, clock=clock)
    reservation = limiter.reserve("alice", cost=10)
    assert limiter.check("alice", cost=15)
    clock.advance(12)
    assert reservation.settle(0).refunded == 10
    assert limiter.peek("alice").remaining == 27


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_what_has_flowed_in_since_is_not_given_back(store: Any, clock: FakeClock, algorithm: str) -> None:
    limiter = Limiter(f"10/10s burst 30 {algorithm}", store=store, clock=clock)
    reservation = limiter.reserve("alice", cost=10)
    clock.advance(6)
    assert limiter.check("alice", cost=15)
    settlement = reservation.settle(2)
    assert (settlement.cost, settlement.reserved, settlement.refunded) == (2, 10, 4)
    assert limiter.peek("alice").remaining == 15


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_one_reservation_does_not_give_back_another(store: Any, clock: FakeClock, algorithm: str) -> None:
    """The first has long flowed in when the second is made. Both are open, and only the second was used."""
    bucket = Bucket(store, clock, Quota(100, 100, algorithm=algorithm))  # type: ignore[arg-type]
    first = bucket.reserve(50)
    clock.advance(50)
    second = bucket.reserve(50)
    assert bucket.give_back(first, 50) == 0
    assert bucket.remaining == 50
    assert bucket.give_back(second, 0) == 0
    assert bucket.remaining == 50


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_a_reset_bucket_gives_nothing_back(store: Any, clock: FakeClock, algorithm: str) -> None:
    bucket = Bucket(store, clock, Quota(100, 100, algorithm=algorithm))  # type: ignore[arg-type]
    charge = bucket.reserve(50)
    store.reset([bucket.template])
    assert bucket.check(30)
    assert bucket.give_back(charge, 50) == 0
    assert bucket.remaining == 70


@pytest.mark.extended
@pytest.mark.parametrize("algorithm", BUCKETS)
def test_the_newest_of_too_many_gives_nothing_back(store: Any, clock: FakeClock, algorithm: str) -> None:
    bucket = Bucket(store, clock, Quota(10_000, 100, algorithm=algorithm))  # type: ignore[arg-type]
    charges = [bucket.reserve(2) for _ in range(held.MAX_OPEN + 1)]
    assert [bucket.give_back(charge, 1) for charge in charges] == [1] * held.MAX_OPEN + [0]
    assert bucket.remaining == 10_000 - held.MAX_OPEN - 2


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_a_bucket_without_open_reservations_has_the_state_of_one_that_never_had_any(
    clock: FakeClock, algorithm: str, redis_url: str, redis_broom: Redis
) -> None:
    memory, redis = MemoryStore(clock=clock), RedisStore(redis_url, clock=clock)
    for store in (memory, redis):
        bucket = Bucket(store, clock, Quota(100, 100, algorithm=algorithm))  # type: ignore[arg-type]
        bucket.check(7)
        charges = [bucket.reserve(10), bucket.reserve(5)]
        assert bucket.check(1)
        for charge in charges:
            bucket.give_back(charge, 3)
    table = memory._tables.get(bucket.template.key_template)
    assert table is not None
    assert not isinstance(table.states["alice"], held.ReservedBucket)
    keys: Any = redis_broom.keys("rl:user:*:" + algorithm)
    states: Any = [redis_broom.get(key) for key in keys]
    redis.close()
    assert [len(state) for state in states] == [24 if algorithm == "gcra" else 32]


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_a_state_that_is_none_of_a_bucket_is_an_error(algorithm: str) -> None:
    """States with reservations are told by that they do not unpack: nothing else is to pass for one."""
    twin, quota = ALGORITHMS[algorithm], Quota(1, 1, algorithm=algorithm)  # type: ignore[arg-type]
    for function in (lambda: twin.admit(object(), 0, quota, 1), lambda: twin.figures(object(), 0, quota)):
        with pytest.raises(TypeError, match="expected numbers"):
            function()


@pytest.mark.extended
@pytest.mark.parametrize("algorithm", BUCKETS)
def test_with_too_many_open_each_settlement_makes_room_for_another(
    store: Any, clock: FakeClock, algorithm: str
) -> None:
    """First in, first out, with more open than a bucket tracks."""
    bucket = Bucket(store, clock, Quota(1_000_000, "1h", algorithm=algorithm))  # type: ignore[arg-type]
    charges = [bucket.reserve(2) for _ in range(held.MAX_OPEN + 100)]
    refunded = 0
    for _ in range(300):
        refunded += bucket.give_back(charges.pop(0), 1)
        charges.append(bucket.reserve(2))
    assert refunded == 300


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_a_later_charge_that_is_given_back_takes_nothing_from_a_reservation(
    store: Any, clock: FakeClock, algorithm: str
) -> None:
    bucket = Bucket(store, clock, Quota(100, "1h", algorithm=algorithm))  # type: ignore[arg-type]
    reservation = bucket.reserve(50)
    for _ in range(5):
        clock.advance(0.001)
        charge = Charge(bucket.template._replace(cost=10), clock.now_us(), 60 * 36 * SECOND)
        assert bucket.check(10)
        store.refund([charge])
    assert bucket.give_back(reservation, 50) in (49, 50)  # some microseconds' worth of it has drained
    assert bucket.remaining >= 99


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_an_earlier_charge_that_is_given_back_is_not_given_back_twice(
    store: Any, clock: FakeClock, algorithm: str
) -> None:
    """Without either, the bucket would have been empty for a while, and that time is lost."""
    bucket = Bucket(store, clock, Quota(100, "100s", algorithm=algorithm))  # type: ignore[arg-type]
    charge = Charge(bucket.template._replace(cost=50), clock.now_us(), 50 * SECOND)
    assert bucket.check(50)
    reservation = bucket.reserve(50)
    clock.advance(10)
    assert bucket.check(10)  # after ten seconds in which nothing else would have been in the bucket
    store.refund([charge])
    bucket.give_back(reservation, 50)
    assert bucket.remaining == 90
