"""Rules with shards, against an oracle for each shard: nothing is admitted that one of them would not, and nothing is
refused for which they have room together."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Decision, Limiter, Quota, Rule
from headgate.core.check import Charge, OutcomeOf
from headgate.core.quota import BUCKETS
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.oracle import Oracle
from tests.property.strategies import edge_step, examples, quotas, sequences, steps

FIVE = ("fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket", "gcra")
NODES = 3


def oracles_of(quota: Quota, shards: int) -> list[Oracle]:
    """The parts that docs/reference/rules.md promises."""

    def part(number: int, place: int) -> int:
        return number // shards + (place < number % shards)

    if quota.algorithm in BUCKETS:
        return [
            Oracle(quota.algorithm, quota.limit, quota.window_us * shards, part(quota.burst, place))
            for place in range(shards)
        ]
    return [Oracle(quota.algorithm, part(quota.limit, place), quota.window_us, 0) for place in range(shards)]


def calm(quota: Quota) -> bool:
    """Whether it is full again within 30 years: then every part is, within what a quota may take."""
    return quota.refill[0] < 10**15


def rate(oracle: Oracle) -> Fraction:
    return Fraction(oracle.limit, oracle.window)


def charges_of(decision: Decision) -> dict[int, Charge]:
    """By shard."""
    (outcome,) = decision.outcomes
    assert isinstance(outcome, OutcomeOf)
    return {
        int(charge.check.key_template.partition("*#")[2].partition("}")[0] or 0): charge for charge in outcome.charges
    }


@pytest.mark.parametrize("algorithm", FIVE)
@examples(120)
@given(data=st.data())
def test_all_that_is_left_is_admitted_and_nothing_else(algorithm: str, data: st.DataObject) -> None:
    tight = data.draw(st.booleans(), label="tight")
    limit, window = st.integers(2, 20), st.integers(1_000, 1_013) if tight else st.integers(10**5, 10**8)
    quota = data.draw(
        quotas(algorithm, limit=limit, window=window).filter(lambda quota: quota.capacity > 1 and calm(quota)),
        label="quota",
    )
    shards = data.draw(st.integers(2, min(quota.limit, quota.capacity, 7)), label="shards")
    oracles = oracles_of(quota, shards)
    assert sum(oracle.capacity for oracle in oracles) == quota.capacity
    assert sum(map(rate, oracles)) == Fraction(quota.limit, quota.window_us)
    clock, taken = FakeClock(), data.draw(sequences(edge_step(), 30) if tight else steps(), label="steps")
    store = MemoryStore(clock=clock)
    rules = [Rule(id="r", quota=quota, shards=shards)]
    nodes = [Limiter(rules, store=store, clock=clock) for _ in range(NODES)]
    for place, node in enumerate(nodes):
        node._store.home.start = place
    wait, remaining = 0, quota.capacity
    for step in taken:
        clock._now_us += max(0, step.move.us(quota, clock.now_us(), wait))
        now, node = clock.now_us(), nodes[data.draw(st.integers(0, NODES - 1), label="node")]
        cost = step.cost.of(quota, remaining)
        left = [oracle.peek(now, 0).remaining for oracle in oracles]
        looked = node.peek("alice", cost=cost)
        assert looked.remaining == sum(left)
        assert looked.allowed == (cost <= sum(left))
        long_way = data.draw(st.booleans(), label="long way")
        decision = node.check_many([{"user": "alice", "cost": cost}])[0] if long_way else node.check("alice", cost=cost)
        assert decision.allowed == looked.allowed
        assert decision.limit == quota.capacity
        assert decision.retry_after == looked.retry_after
        if decision.allowed and cost:
            charges = charges_of(decision)
            assert sum(charge.check.cost for charge in charges.values()) == cost
            for place, charge in charges.items():
                assert oracles[place].check(now, charge.check.cost).allowed
        remaining = node.peek("alice", cost=0).remaining
        assert remaining == sum(oracle.peek(now, 0).remaining for oracle in oracles)
        if decision.allowed:
            wait = 0
            continue
        assert decision.remaining == remaining
        if decision.retry_after is None:
            assert cost > quota.capacity
            continue
        wait = round(decision.retry_after * 1_000_000)
        waits = [oracle.peek(now, 1).wait for oracle in oracles]
        assert cost > 1 or wait == min(one for one in waits if one is not None)
        assert sum(oracle.peek(now + wait, 0).remaining for oracle in oracles) >= cost, "it is still too early then"


@pytest.mark.parametrize("algorithm", FIVE)
@examples(60)
@given(data=st.data())
def test_what_is_given_back_is_where_it_was(algorithm: str, data: st.DataObject) -> None:
    some = quotas(algorithm, limit=st.integers(4, 40), window=st.integers(10**6, 10**8))
    quota = data.draw(some.filter(calm), label="quota")
    shards = data.draw(st.integers(1, min(quota.limit, quota.capacity, 7)), label="shards")
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    limiter = Limiter([Rule(id="r", quota=quota, shards=shards)], store=store, clock=clock)
    for cost in data.draw(st.lists(st.integers(0, quota.capacity), max_size=4), label="before"):
        limiter.check("alice", cost=cost)
    before = limiter.peek("alice", cost=0)
    way = data.draw(st.sampled_from(["give_back", "correct", "reserve"]), label="way")
    cost = data.draw(st.integers(0, before.remaining), label="cost")
    actual = 0 if way == "give_back" else data.draw(st.integers(0, cost), label="actual")
    if way == "reserve":
        reservation = limiter.reserve("alice", cost=cost)
        assert reservation
        limiter.settle(reservation.id, actual)
    else:
        decision = limiter.check("alice", cost=cost)
        assert decision
        if way == "correct":
            limiter.correct(decision, actual)
        else:
            limiter.give_back(decision)
    assert limiter.peek("alice", cost=0).remaining == before.remaining - actual
