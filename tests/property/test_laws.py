"""The laws that hold for all six algorithms, in every store (DESIGN.md, section 5), each as a test of its name.

Unlike the oracle, a law does not know what an algorithm is, only what it may never do. Where a law differs between
algorithms, the bound is stated in a function of its own.
"""

from __future__ import annotations

from itertools import accumulate
from math import ceil

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headgate.core.check import Charge, Group, Outcome
from headgate.core.key import DEFAULT_PREFIX
from headgate.core.quota import BUCKETS, Quota
from headgate.stores.redis.sync import RedisStore
from headgate.testing import FakeClock
from tests.conftest import TIMEOUT
from tests.property.strategies import (
    BACK,
    DAY,
    HOUR,
    LOG_STEPS,
    SECOND,
    SIX,
    Move,
    costs,
    examples,
    moves,
    one_step,
    quota_of,
    quotas,
    sequences,
    starts,
    steps,
)
from tests.property.world import Key, World
from tests.servers import Server

Admitted = list[tuple[int, int]]  # when, and how much, in the order of time

six = pytest.mark.parametrize("algorithm", SIX)
buckets = pytest.mark.parametrize("algorithm", BUCKETS)


def log_step(quota: Quota) -> int:
    """How far a log's stamps are apart: a large one does not tell one microsecond from the next."""
    coarse = quota.algorithm == "sliding_window_log" and quota.limit > LOG_STEPS
    return -(-quota.window_us // LOG_STEPS) if coarse else 1


def longest_wait(quota: Quota) -> int:
    """The longest that anybody ever has to wait for a cost that fits at all, in microseconds."""
    window = quota.window_us
    match quota.algorithm:
        case "fixed_window":
            return window
        case "sliding_window_log":
            return window + log_step(quota) - 1
        case "sliding_window_counter":
            return 2 * window  # to the end of this bucket, and until that one has faded
        case _:
            return -(-quota.burst * window // quota.limit)


def drain(key: Key) -> None:
    """Take all that remains, so that whatever comes next is refused."""
    key.check(key.peek(0).remaining)


# The announced wait is exact


@six
@examples(25)
@given(data=st.data())
def test_the_announced_wait_is_exact(world: World, algorithm: str, data: st.DataObject) -> None:
    world.begin(data.draw(starts(), label="start"))
    key = world.key(data.draw(quotas(algorithm), label="quota"))
    key.traffic(data.draw(steps(12), label="traffic"))
    drain(key)
    cost = max(1, min(key.quota.capacity, data.draw(costs(), label="cost").of(key.quota, 0)))
    refused = key.check(cost)
    assert 0 < refused.wait_us <= longest_wait(key.quota)
    assert_exact(key, cost, refused.wait_us)


def assert_exact(key: Key, cost: int, wait: int) -> None:
    """A check a millisecond early is refused, as is one a microsecond early; one at the announced time is not."""
    for early in (1_000, 1):
        if wait > early:
            key.world.move(wait - early)
            wait = key.check(cost).wait_us
            assert wait == early
    key.world.move(wait)
    assert key.check(cost).wait_us == 0


@six
@examples(20)
@given(data=st.data())
def test_the_announced_reset_is_exact(world: World, algorithm: str, data: st.DataObject) -> None:
    world.begin(data.draw(starts(), label="start"))
    key = world.key(data.draw(quotas(algorithm), label="quota"))
    key.traffic(data.draw(steps(12), label="traffic"))
    key.check(1)
    capacity, reset = key.quota.capacity, key.peek(0).reset_us
    assert 0 < reset <= longest_wait(key.quota)
    world.move(reset - 1)
    assert key.peek(capacity).wait_us == 1
    world.move(1)
    assert key.peek(capacity) == Outcome(0, capacity, 0)


# Never over


def assert_never_over(quota: Quota, admitted: Admitted) -> None:
    limit, window = quota.limit, quota.window_us
    match quota.algorithm:
        case "fixed_window":
            # A bucket admits N, so that a window, which touches two of them, admits 2N.
            for bucket in {at // window for at, _ in admitted}:
                assert between(admitted, bucket * window, (bucket + 1) * window) <= limit
            for at, _ in admitted:
                assert between(admitted, at, at + window) <= 2 * limit
        case "sliding_window_log":
            for at, _ in admitted:
                assert between(admitted, at, at + window) <= limit
        case "sliding_window_counter":
            # A window that begins x into a bucket: at its end, (W-x)/W of the bucket before still counts.
            for at, _ in admitted:
                into = at % window
                assert between(admitted, at, at + window) <= limit + -(-limit * into // window)
                assert between(admitted, at - into, at - into + window) <= limit
        case _:
            # In any stretch of time, what was in the bucket and what came in: B + N * time / W.
            totals = [0, *accumulate(cost for _, cost in admitted)]
            for first, (start, _) in enumerate(admitted):
                for last in range(first, len(admitted)):
                    taken = totals[last + 1] - totals[first]
                    assert (taken - quota.burst) * window <= (admitted[last][0] - start) * limit


def between(admitted: Admitted, start: int, end: int) -> int:
    """What was admitted from `start` on and before `end`."""
    return sum(cost for at, cost in admitted if start <= at < end)


@six
@examples(25)
@given(data=st.data())
def test_no_window_admits_more_than_the_algorithm_permits(world: World, algorithm: str, data: st.DataObject) -> None:
    world.begin(data.draw(starts(), label="start"))
    key = world.key(data.draw(quotas(algorithm), label="quota"))
    assert_never_over(key.quota, key.traffic(data.draw(steps(40), label="traffic")))


@six
@examples(15)
@given(data=st.data())
def test_two_processes_together_admit_no_more_than_one(one_server: Server, algorithm: str, data: st.DataObject) -> None:
    """Whatever the interleaving: each has a store of its own, and they share nothing but the server."""
    quota = data.draw(quotas(algorithm, limit=st.integers(1, 20)), label="quota")
    with_own_store = [World.on_redis(f"{one_server.url}?{TIMEOUT}") for _ in range(2)]
    start = data.draw(starts(), label="start")
    key = with_own_store[0].key(quota)
    admitted: Admitted = []
    for world in with_own_store:
        world.begin(start)
    for step, which in data.draw(sequences(st.tuples(one_step(), st.integers(0, 1)), 30), label="traffic"):
        for world in with_own_store:
            world.move(step.move.us(quota, world.now, 0))
        world, cost = with_own_store[which], step.cost.of(quota, 1)
        if world.decide([Group((key.of(cost),))])[0].outcomes[0].wait_us == 0:
            admitted.append((world.now, cost))
    for world in with_own_store:
        world.store.close()
    assert_never_over(quota, [(at, cost) for at, cost in admitted if cost])


# Time going backwards, and forward


@six
@examples(25)
@given(data=st.data())
def test_a_clock_that_goes_back_creates_nothing(world: World, algorithm: str, data: st.DataObject) -> None:
    world.begin(data.draw(starts(), label="start"))
    key = world.key(data.draw(quotas(algorithm), label="quota"))
    key.traffic(data.draw(steps(12), label="traffic"))
    before = key.peek(0).remaining
    for back in data.draw(st.lists(st.sampled_from(BACK), min_size=1, max_size=4), label="back"):
        world.move(back.us(key.quota, world.now, 0))
        assert key.peek(0).remaining <= before
        after = key.check(1)
        assert after.remaining <= max(0, before - (after.wait_us == 0))
        before = after.remaining


@six
@examples(25)
@given(data=st.data())
def test_a_clock_that_goes_back_locks_nobody_for_longer_than_ever(
    world: World, algorithm: str, data: st.DataObject
) -> None:
    world.begin(data.draw(starts(), label="start"))
    key = world.key(data.draw(quotas(algorithm), label="quota"))
    key.traffic(data.draw(steps(12), label="traffic"))
    world.move(data.draw(st.sampled_from([0, DAY]), label="forward"))
    drain(key)
    world.move(-data.draw(st.sampled_from([1, SECOND, HOUR, DAY, 40 * DAY]), label="back"))
    cost = max(1, min(key.quota.capacity, data.draw(costs(), label="cost").of(key.quota, 0)))
    wait = key.check(cost).wait_us
    assert 0 < wait <= longest_wait(key.quota)
    assert_exact(key, cost, wait)


@six
@examples(25)
@given(data=st.data())
def test_a_clock_that_jumps_about_admits_no_more_than_its_way_forward(
    world: World, algorithm: str, data: st.DataObject
) -> None:
    """An hour back and a day forward, as often as it likes: only the time that passed forward lets anybody in."""
    world.begin(data.draw(starts(), label="start"))
    key = world.key(data.draw(quotas(algorithm, limit=st.integers(1, 1_000)), label="quota"))
    limit, window = key.quota.limit, key.quota.window_us
    jumps = st.sampled_from([Move("us", -HOUR), Move("us", DAY), *BACK])
    forward = admitted = edges = 0
    for move, cost in data.draw(sequences(st.tuples(moves() | jumps, costs()), 25), label="steps"):
        before = world.now
        world.move(move.us(key.quota, before, 0))
        forward += max(0, world.now - before)
        edges += max(0, world.now // window - before // window)
        taken = cost.of(key.quota, key.peek(0).remaining)
        admitted += taken if key.check(taken).wait_us == 0 else 0
    match algorithm:
        case "fixed_window" | "sliding_window_counter":
            assert admitted <= limit * (1 + edges)
        case "sliding_window_log":
            assert admitted <= limit * (1 + forward // window)
        case _:
            assert (admitted - key.quota.burst) * window <= forward * limit


# Refund


@six
@examples(25)
@given(data=st.data())
def test_charge_then_refund_equals_never(world: World, algorithm: str, data: st.DataObject) -> None:
    world.begin(data.draw(starts(), label="start"))
    quota = data.draw(quotas(algorithm), label="quota")
    refunded, never = world.key(quota), world.key(quota)
    for step in data.draw(steps(10), label="traffic"):
        world.move(step.move.us(quota, world.now, 0))
        world.decide([Group((refunded.of(step.cost.of(quota, 1)), never.of(step.cost.of(quota, 1))))])
    cost = data.draw(costs(), label="cost").of(quota, refunded.peek(0).remaining)
    outcome = refunded.check(cost)
    if outcome.wait_us == 0:
        refunded.refund(cost, world.now, outcome.reset_us)
    for move in data.draw(st.lists(moves(), max_size=5), label="later"):
        world.move(move.us(quota, world.now, 0))
        for asked in (0, 1, quota.capacity):
            assert refunded.peek(asked) == never.peek(asked)


@six
@examples(30)
@given(data=st.data())
def test_a_refund_gives_back_no_more_than_was_lost(world: World, algorithm: str, data: st.DataObject) -> None:
    """However late: never more than there would be had the charge not been made, and never less than nothing."""
    refund_extras(world, data, quotas(algorithm, limit=st.integers(1, 20)), overlapping=False)


@six
@examples(20)
@given(data=st.data())
def test_refunds_that_overlap_give_back_no_more_than_they_cost(
    world: World, algorithm: str, data: st.DataObject
) -> None:
    """Several open charges may count one another as use of a bucket (docs/adr/0005): they take no more than that."""
    refund_extras(world, data, quotas(algorithm, limit=st.integers(1, 20)), overlapping=True)


def refund_extras(world: World, data: st.DataObject, of: st.SearchStrategy[Quota], *, overlapping: bool) -> None:
    """Charge two keys alike, and one of them more, which is refunded some time later; that one never has more."""
    world.begin(data.draw(starts(), label="start"))
    quota = data.draw(of, label="quota")
    refunded, never = world.key(quota), world.key(quota)
    charges: list[Charge] = []
    given_back = 0
    kinds = st.sampled_from(["both", "extra", "extra", "refund", "refund"])
    for kind, step, which in data.draw(sequences(st.tuples(kinds, one_step(), st.integers(0, 5)), 20), label="steps"):
        world.move(step.move.us(quota, world.now, 0))
        cost = step.cost.of(quota, refunded.peek(0).remaining)
        if kind == "both":
            world.decide([Group((refunded.of(cost), never.of(cost)))])
        elif kind == "extra" and (overlapping or not charges):
            outcome = refunded.check(cost)
            if outcome.wait_us == 0 and cost:
                charges.append(Charge(refunded.of(cost), world.now, outcome.reset_us))
        elif kind == "refund" and charges:
            before = refunded.peek(0).remaining
            charge = charges.pop(which % len(charges))
            given_back += charge.check.cost
            world.store.refund([charge])
            assert refunded.peek(0).remaining >= before
        excess = refunded.peek(0).remaining - never.peek(0).remaining
        assert excess <= (given_back if overlapping and quota.algorithm in BUCKETS else 0)


# The buckets are one another's equals, and lose nothing


@examples(50)
@given(data=st.data())
def test_the_three_buckets_agree(world: World, data: st.DataObject) -> None:
    """Tokens, a level, an arrival time: three ways to write down the same thing."""
    world.begin(data.draw(starts(), label="start"))
    shape = data.draw(quotas("gcra"), label="quota")
    keys = [world.key(quota_of(name, shape.limit, shape.window_us, shape.burst)) for name in BUCKETS]
    last = Outcome(0, shape.burst, 0)
    for step in data.draw(steps(20), label="steps"):
        world.move(step.move.us(shape, world.now, last.wait_us))
        cost = step.cost.of(shape, last.remaining)
        outcomes = [result.outcomes[0] for result in world.decide(Group((key.of(cost),)) for key in keys)]
        assert outcomes == [outcomes[0]] * 3
        last = outcomes[0]


@buckets
@examples(20)
@given(data=st.data())
def test_no_fraction_of_a_refill_is_thrown_away(world: World, algorithm: str, data: st.DataObject) -> None:
    """However often it is looked at in between, a bucket that is never full gets exactly N in every W."""
    world.begin(data.draw(starts(), label="start"))
    quota = data.draw(quotas(algorithm, limit=st.integers(1, 10_000)), label="quota")
    key = world.key(quota)
    drain(key)
    passed = taken = 0
    unit = quota.window_us / quota.limit
    for share in data.draw(sequences(st.floats(0, 3), 40), label="pauses, in units"):
        pause = ceil(share * unit)
        world.move(pause)
        passed += pause
        arrived = passed * quota.limit // quota.window_us - taken
        assume(arrived < quota.burst)  # else it was full, and what came then is lost by definition
        assert key.peek(0).remaining == arrived
        if arrived:
            assert key.check(1).wait_us == 0
            taken += 1


@six
@examples(12)
@given(data=st.data())
def test_who_always_waits_as_told_gets_exactly_the_rate(world: World, algorithm: str, data: st.DataObject) -> None:
    """N in every W, to the microsecond, for as long as one likes. The counter, an estimate, gives no more."""
    world.begin(data.draw(starts(), label="start"))
    limit = data.draw(st.integers(1, 13), label="limit")
    window = data.draw(st.integers(1_000, 100 * SECOND), label="window")
    key = world.key(quota_of(algorithm, limit, window))
    drain(key)
    start = world.now
    for count in range(1, 3 * limit + 1):
        world.move(key.peek(1).wait_us)
        assert key.check(1).wait_us == 0
        elapsed = world.now - start
        match algorithm:
            case "fixed_window":  # N at the beginning of each bucket
                assert elapsed == window - start % window + (count - 1) // limit * window
            case "sliding_window_log":  # N at a time, W apart
                assert elapsed == ((count - 1) // limit + 1) * window
            case "sliding_window_counter":
                assert count <= limit * (elapsed // window + 2)
            case _:  # one by one, W/N apart
                assert elapsed == -(-count * window // limit)


# Memory is bounded


def test_a_log_that_is_charged_and_refunded_does_not_grow(one_server: Server) -> None:
    """What was given back is not remembered: a log holds no more than its limit lets in."""
    world = World.on_redis(f"{one_server.url}?{TIMEOUT}")
    world.begin(1_700_000_000 * SECOND)
    key = world.key(quota_of("sliding_window_log", 2, DAY))
    charged: list[tuple[int, int]] = []
    for _ in range(100):
        outcome = key.check(1)
        assert outcome.wait_us == 0
        charged.append((world.now, outcome.reset_us))
        world.move(1)
        if len(charged) == 2:  # the older of the two
            key.refund(1, *charged.pop(0))
    world.store.close()
    with one_server.client() as client:
        assert client.llen(key.template.key) <= 10


@six
@examples(25)
@given(data=st.data())
def test_every_key_lives_as_long_as_it_matters_and_not_for_ever(
    one_server: Server, algorithm: str, data: st.DataObject
) -> None:
    """By the server's own clock, which is the one that its keys expire by."""
    world = World(RedisStore(f"{one_server.url}?{TIMEOUT}"), FakeClock())  # which the store is not told of
    key = world.key(data.draw(quotas(algorithm), label="quota"))
    for cost in data.draw(st.lists(costs(), max_size=4), label="costs"):
        key.check(cost.of(key.quota, key.peek(0).remaining))
    charged = key.check(1)
    with one_server.client() as client:
        left = client.pttl(f"{DEFAULT_PREFIX}:{key.template.key}")
    reset = key.peek(0).reset_us
    world.store.close()
    assume(charged.reset_us > 0)  # else it has come back already, in the microsecond since
    assert isinstance(left, int)
    assert left * 1_000 >= reset
    assert left <= longest_wait(key.quota) / 1_000 + 2_000
