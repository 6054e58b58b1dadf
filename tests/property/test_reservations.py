"""Settling: what is too much is given back as if it had never been charged, and what is more is charged without asking.

Compared with the oracle, which knows the whole history and can change it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.check import NEVER, Charge, Check, Group, Outcome
from headgate.core.quota import BUCKETS, MAX_REFILL_US, WINDOWS, Quota
from headgate.core.reservation import (
    LATE_US,
    PENDING_US,
    Adjustments,
    Claim,
    ClaimedAdjustments,
    ExpiredClaims,
    Record,
    ReservedLimit,
    Status,
)
from headgate.stores.memory import MemoryStore
from headgate.stores.redis.sync import RedisStore
from headgate.testing import FakeClock
from tests.oracle import Answer
from tests.property.strategies import (
    BACK,
    SECOND,
    SIX,
    Cost,
    Move,
    costs,
    examples,
    moves,
    quota_of,
    quotas,
    sequences,
    starts,
    windows,
)
from tests.property.test_oracle import oracle_of
from tests.property.world import Key, World
from tests.servers import Server

SMALL = st.integers(1, 20)
SHORT = st.one_of(st.sampled_from([SECOND, 60 * SECOND]), st.integers(1_000, 100 * SECOND))


class Act(NamedTuple):
    """Let time pass, then check, check and give back at once, reserve, settle one of those reserved, or charge without
    asking."""

    kind: Literal["check", "give back", "reserve", "settle", "force"]
    move: Move
    cost: Cost
    which: int
    share: int  # of a reservation that it really cost, in eighths


def acts(*kinds: str, back: bool = False) -> st.SearchStrategy[list[Act]]:
    moved = st.one_of(moves(), st.sampled_from(BACK)) if back else moves()
    fields = (st.sampled_from(kinds), moved, costs(), st.integers(0, 5), st.sampled_from([0, 0, 1, 4, 7, 8]))
    return sequences(st.tuples(*fields).map(lambda drawn: Act(*drawn)), 20)  # type: ignore[arg-type]


@st.composite
def moderate(draw: st.DrawFn) -> Quota:
    """Debts of one of these can still be counted by the figures of another."""
    limit, window = draw(st.one_of(st.integers(1, 10), st.integers(1, 10**9))), draw(windows())
    longest = MAX_REFILL_US * limit // window
    return quota_of("gcra", limit, window, draw(st.one_of(st.just(limit), st.integers(1, min(2 * limit, longest)))))


def answer(outcome: Outcome) -> Answer:
    wait, remaining, reset = outcome
    return Answer(None if wait == NEVER else wait, remaining, reset)


_marks = count(1)


def reserved(world: World, key: Key, cost: int) -> Charge | None:
    check = key.of(cost)._replace(reservation=next(_marks))
    outcome = world.decide([Group((check,))])[0].outcomes[0]
    return Charge(check, world.now, outcome.reset_us) if outcome.wait_us == 0 and cost else None


def adjust(store: MemoryStore | RedisStore, charge: Charge, actual: int) -> int:
    """Settle; returns what was given back."""
    record = Record(charge.check.cost, (ReservedLimit(charge, 1),))
    assert Record.decode(record.encode()) == record
    return sum(store.adjust(*record.adjustments_at(actual)))


@pytest.mark.parametrize("algorithm", SIX)
@examples(25)
@given(data=st.data())
def test_what_is_settled_for_less_is_as_if_it_had_cost_that_from_the_start(
    world: World, algorithm: str, data: st.DataObject
) -> None:
    """Exactly, whatever overlaps, and however late it is settled."""
    world.begin(data.draw(starts(), label="start"))
    quota = data.draw(quotas(algorithm, limit=SMALL), label="quota")
    store, key, oracle = world.store, world.key(quota), oracle_of(quota)
    assert isinstance(store, MemoryStore | RedisStore)
    charges: list[tuple[Charge, int]] = []
    remaining = quota.capacity
    kinds = ("check", "give back", "reserve", "reserve", "settle", "settle")
    for kind, move, cost_, which, share in data.draw(acts(*kinds)):
        world.move(move.us(quota, world.now, 0))
        cost = cost_.of(quota, remaining)
        if kind == "check":
            if key.check(cost).wait_us == 0 and cost:
                oracle.charge(world.now, cost)
        elif kind == "give back":  # as a cluster does with a request that is refused in another slot
            outcome = key.check(cost)
            if outcome.wait_us == 0 and cost:
                key.refund(cost, world.now, outcome.reset_us)
        elif kind == "reserve":
            charge = reserved(world, key, cost)
            if charge is not None:
                oracle.charge(world.now, cost)
                charges.append((charge, len(oracle.history) - 1))
        elif charges:
            charge, place = charges.pop(which % len(charges))
            actual = charge.check.cost * share // 8
            before = key.peek(0).remaining
            given = adjust(store, charge, actual)
            oracle.settle(place, actual)
            gained = key.peek(0).remaining - before
            assert given == gained if algorithm in WINDOWS else given <= gained <= given + 1
        found, ideal = key.peek(0), oracle.peek(world.now, 0)
        remaining = found.remaining
        assert answer(found)[1:] == ideal[1:]


@pytest.mark.parametrize("algorithm", SIX)
@examples(25)
@given(data=st.data())
def test_what_is_charged_without_asking_has_to_be_waited_for(world: World, algorithm: str, data: st.DataObject) -> None:
    world.begin(data.draw(starts(), label="start"))
    limit, window, burst = data.draw(st.tuples(st.integers(1, 10_000), SHORT, st.integers(1, 20_000)), label="quota")
    quota = quota_of(algorithm, limit, window, burst)  # nowhere near the century that a debt is cut off at
    store, key, oracle = world.store, world.key(quota), oracle_of(quota)
    assert isinstance(store, MemoryStore | RedisStore)
    wait, remaining = 0, quota.capacity
    for kind, move, cost_, *_ in data.draw(acts("check", "force")):
        world.move(move.us(quota, world.now, wait))
        cost = min(3 * quota.capacity, cost_.of(quota, remaining))
        if kind == "check":
            found = key.check(cost)
            assert answer(found) == oracle.check(world.now, cost)
        elif cost:
            store.adjust((), [key.of(cost)])
            oracle.charge(world.now, cost)
        for asked in (1, quota.capacity):
            found = key.peek(asked)
            assert answer(found) == oracle.peek(world.now, asked)
        wait, remaining = found.wait_us, found.remaining


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_the_case_that_refunds_of_their_own_would_get_wrong(world: World, algorithm: str) -> None:
    """Two overlap. The first is given back at once; by the time of the second, its share has long flowed back."""
    store = world.store
    assert isinstance(store, MemoryStore | RedisStore)
    world.begin(1_700_000_000 * SECOND)
    key = world.key(quota_of(algorithm, 100, 100 * SECOND))
    first, second = reserved(world, key, 50), reserved(world, key, 50)
    assert first is not None
    assert second is not None
    adjust(store, first, 0)
    world.move(50 * SECOND)
    assert key.check(30) == Outcome(0, 70, 30 * SECOND)
    adjust(store, second, 0)
    assert key.peek(0).remaining == 70  # not 100: nothing of the second was left to give back


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_a_busy_bucket_gives_back_everything(world: World, algorithm: str) -> None:
    """Many at a time, each settled for a quarter after a while, and always somebody waiting: nothing is lost."""
    store = world.store
    assert isinstance(store, MemoryStore | RedisStore)
    world.begin(1_700_000_000 * SECOND)
    key = world.key(quota_of(algorithm, 60_000, 60 * SECOND))
    oracle = oracle_of(key.quota)
    running: list[tuple[Charge, int]] = []
    assert key.check(30_000).wait_us == 0
    oracle.charge(world.now, 30_000)
    for _ in range(60):
        world.move(SECOND)
        charge = reserved(world, key, 4_000)
        if charge is not None:
            oracle.charge(world.now, 4_000)
            running.append((charge, len(oracle.history) - 1))
        if len(running) == 5:
            charge, place = running.pop(0)
            adjust(store, charge, 1_000)
            oracle.settle(place, 1_000)
        assert answer(key.peek(0)) == oracle.peek(world.now, 0)


def test_what_fits_within_a_microsecond_is_not_owed_when_the_clock_goes_back(world: World) -> None:
    """All of the burst comes back within one, so that only the part of it tells what is owed."""
    store = world.store
    assert isinstance(store, MemoryStore | RedisStore)
    world.begin(1_700_000_000 * SECOND)
    key = world.key(quota_of("gcra", 2_001, 1_000, 2))
    store.adjust((), [key.of(1)])
    assert key.peek(1) == Outcome(0, 1, 1)
    world.move(-1)
    assert key.peek(1) == Outcome(0, 1, 1)


@examples(60)
@given(start=starts(), data=st.data())
def test_twins_agree_on_settling(redis_store: RedisStore, clock: FakeClock, start: int, data: st.DataObject) -> None:
    """Whatever is settled, with a clock that goes back and quotas that change."""
    memory = MemoryStore(clock=clock)
    worlds = [World(store, clock) for store in (memory, redis_store)]
    worlds[0].begin(start)
    shapes = data.draw(st.lists(moderate(), min_size=1, max_size=2), label="quotas")
    keys = {name: Key(worlds[1], quota_of(name, 1, SECOND)) for name in SIX}
    charges: list[Charge] = []
    remaining = 1
    for kind, move, cost_, which, share in data.draw(acts("check", "reserve", "settle", "force", back=True)):
        shape = shapes[which % len(shapes)]
        worlds[0].move(move.us(shape, clock.now_us(), 0))
        for name in SIX:
            quota = quota_of(name, shape.limit, shape.window_us, shape.burst)
            check = keys[name].template._replace(quota=quota, cost=cost_.of(quota, remaining))
            if kind == "reserve":
                check = check._replace(reservation=next(_marks))
            charged = _both(worlds, check) if kind in ("check", "reserve") else None
            if charged is not None and kind == "reserve" and charged.wait_us == 0 and check.cost:
                charges.append(Charge(check, clock.now_us(), charged.reset_us))
            if kind == "force" and check.cost:
                memory.adjust((), [check])
                redis_store.adjust((), [check])
        if kind == "settle" and charges:
            charge = charges.pop(which % len(charges))
            if share == 7:  # as a charge that is no reservation's
                charge = charge._replace(check=charge.check._replace(reservation=0))
            actual = charge.check.cost * (1 if share == 7 else share) // 4
            given = [adjust(store, charge, actual) for store in (memory, redis_store)]
            assert given[0] == given[1]
        for name in SIX:
            quota = quota_of(name, shape.limit, shape.window_us, shape.burst)
            for cost in (1, quota.capacity):
                asked = keys[name].template._replace(quota=quota, cost=cost)
                remaining = _both(worlds, asked, peek=True).remaining


def _both(worlds: list[World], check: Check, *, peek: bool = False) -> Outcome:
    group = Group((check,), peek)
    memory, redis = (world.decide([group])[0].outcomes[0] for world in worlds)
    assert memory == redis, f"memory: {memory}\nredis:  {redis}\nasked: {group}"
    return memory


@examples(60)
@given(
    start=starts(),
    done=sequences(
        st.tuples(
            st.sampled_from([0, 1, SECOND, 2 * SECOND, PENDING_US - 1, PENDING_US, LATE_US - 1, LATE_US]),
            st.sampled_from(["hold", "hold", "renew", "claim", "claim", "settle", "settle", "expire"]),
            st.integers(0, 3),
            st.sampled_from([SECOND, 2 * SECOND]),
        ),
        30,
    ),
)
def test_twins_agree_on_what_is_open(
    one_server: Server, redis_store: RedisStore, clock: FakeClock, start: int, done: list[tuple[int, str, int, int]]
) -> None:
    memory = MemoryStore(clock=clock)
    with one_server.client() as client:
        client.flushall()
    worlds = [World(store, clock) for store in (memory, redis_store)]
    worlds[0].begin(start)
    key = worlds[0].key(quota_of("fixed_window", 1_000, 86_400 * SECOND))
    held: list[str] = []
    claimed: list[list[Claim]] = []  # by each store
    for us, verb, which, ttl in done:
        clock.advance(us / SECOND)
        if verb == "hold":
            held.append(f"{len(held)}")
            for store in (memory, redis_store):
                store.save_reservation(held[-1], f"record {held[-1]}", ttl)
        elif verb == "expire":
            found: list[ExpiredClaims] = [memory.claim_expired(), redis_store.claim_expired()]
            assert found[0].next_us == found[1].next_us
            claims = [sorted(one.claims, key=lambda claim: claim.reservation_id) for one in found]
            assert comparable(claims[0]) == comparable(claims[1])
            claimed += map(list, zip(*claims, strict=True))
        elif verb == "settle" and claimed:  # perhaps again
            adjustments = Adjustments(surcharges=(key.of(1),))
            one, other = claimed[-1 - which % len(claimed)]
            memory.settle([ClaimedAdjustments(one, adjustments)])
            redis_store.settle([ClaimedAdjustments(other, adjustments)])
            _both(worlds, key.of(0), peek=True)
        elif held:
            name = held[-1 - which % len(held)]
            if verb == "renew":
                renewed = [store.renew(name, f"record {name}", ttl) for store in (memory, redis_store)]
                assert renewed[0] == renewed[1]
            else:
                pairs = [store.claim_reservation(name, which) for store in (memory, redis_store)]
                either = [claim for claim in pairs if claim is not None]
                assert len(either) in (0, 2)
                assert comparable(either[:1]) == comparable(either[1:])
                assert all(claim.record == f"record {name}" for claim in either)
                claimed += [either] if either else []


def comparable(claims: Iterable[Claim]) -> list[Claim]:
    """Claims without their text, which is the store's own."""
    return [claim._replace(text="") for claim in claims]


def test_a_status_means_the_same_to_all() -> None:
    """redis/reservations.lua has the numbers."""
    assert [status.value for status in Status] == [0, 1, 2, 3]
