"""Idempotency keys in memory: a request that comes twice is charged once."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import pytest

from headgate import IdempotencyConflict, InvalidCheck, Quota, Rule
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import Override, User
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.integration.limiters import Open


def test_the_first_decision_is_given_again(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter("10/minute", clock=clock)
    first = limiter.check("alice", cost=3, idempotency_key="k")
    limiter.check("alice")
    clock.advance(1)
    assert limiter.check("alice", cost=3, idempotency_key="k") == first
    assert limiter.peek("alice").remaining == 6


def test_a_refusal_is_given_again_even_when_there_is_room(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter("1/minute", clock=clock)
    limiter.check("alice")
    refused = limiter.check("alice", idempotency_key="k")
    limiter.reset("alice")
    assert limiter.check("alice", idempotency_key="k") == refused
    assert limiter.check("alice", idempotency_key="new").allowed


def test_another_request_with_the_same_key_conflicts(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter("10/minute", clock=clock)
    limiter.check("alice", idempotency_key="k")
    for subject, cost, facts in (("bob", 1, {}), ("alice", 2, {}), ("alice", 1, {"ip": "192.0.2.7"})):
        with pytest.raises(IdempotencyConflict, match="'k' was used for another request") as caught:
            limiter.check(subject, cost=cost, idempotency_key="k", **facts)
        assert isinstance(caught.value, InvalidCheck)
    assert (limiter.peek("alice").remaining, limiter.peek("bob").remaining) == (9, 10)


def test_facts_that_are_none_make_no_other_request(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter("10/minute", clock=clock)
    limiter.check(user="42", tier=None, idempotency_key="k")
    limiter.check(42, idempotency_key="k")
    assert limiter.peek("42").remaining == 9


def test_five_minutes_later_the_key_is_new(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter("10/day", clock=clock)
    limiter.check("alice", idempotency_key="k")
    clock.advance(299.999_999)
    limiter.check("alice", idempotency_key="k")
    assert limiter.peek("alice").remaining == 9
    clock.advance(0.000_001)
    limiter.check("bob", idempotency_key="k")
    assert (limiter.peek("alice").remaining, limiter.peek("bob").remaining) == (9, 9)


def test_check_many_raises_a_conflict_when_all_others_are_decided(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter("10/minute", clock=clock)
    repeated = {"user": "alice", "idempotency_key": "k"}
    assert [each.remaining for each in limiter.check_many([repeated, repeated, "alice"])] == [9, 9, 8]
    with pytest.raises(IdempotencyConflict):
        limiter.check_many(["alice", {"user": "bob", "idempotency_key": "k"}, "alice"])
    assert limiter.peek("alice").remaining == 6


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_a_key_outlives_a_change_of_rules(open_limiter: Open, clock: FakeClock, before: int, after: int) -> None:
    """The rules changed between a request and its repetition: charged once, or a conflict; nothing breaks."""
    rules = [Rule(id=f"rule-{n}", quota=Quota(10, 60)) for n in range(3)]
    store = MemoryStore(clock=clock)
    open_limiter(rules[:before], store=store).check(user="alice", idempotency_key="k")
    limiter = open_limiter(rules[:after], store=store)
    with suppress(IdempotencyConflict):
        assert limiter.check(user="alice", idempotency_key="k").allowed
    assert all(status.remaining >= 9 for status in limiter.peek(user="alice").limits)


@pytest.mark.parametrize("begins", [False, True])
def test_an_override_with_a_window_of_its_own_that_expired_in_between_is_no_conflict(
    open_limiter: Open, clock: FakeClock, begins: bool
) -> None:
    store = MemoryStore(clock=clock)
    rules = [Rule(id="a", quota="10/minute")]
    expires = datetime.fromtimestamp(clock.now_us() / 1e6 + 5, UTC)
    users = [User(id="alice", overrides=[Override(rule="a", limit=500, window=3_600, expires=expires)])]
    limiter = open_limiter(Snapshot(rules, users=users), store=store, clock=clock)
    other = open_limiter(Snapshot(rules), store=store, clock=clock) if begins else limiter
    first = other.check(user="alice", cost=3, idempotency_key="k")
    assert first.remaining == (7 if begins else 497)
    if not begins:
        clock.advance(6)
    again = limiter.check(user="alice", cost=3, idempotency_key="k")
    assert (again.allowed, again.at_us) == (True, first.at_us)
    assert (again.limit, again.remaining) == ((500, 7) if begins else (10, 10))  # never more than the limit
    assert limiter.peek(user="alice").remaining == (500 if begins else 10)


def test_a_conflict_says_that_it_may_be_because_of_other_rules(open_limiter: Open, clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    open_limiter([Rule(id="a", quota="10/minute")], store=store).check(user="alice", idempotency_key="k")
    changed = open_limiter([Rule(id="a", quota="10/minute gcra")], store=store)
    with pytest.raises(IdempotencyConflict, match="or other rules applied to it then"):
        changed.check(user="alice", idempotency_key="k")
    larger = open_limiter([Rule(id="a", quota="20/hour")], store=store)
    assert larger.check(user="alice", idempotency_key="k").allowed
    assert (changed.peek(user="alice").remaining, larger.peek(user="alice").remaining) == (10, 19)


def test_limiters_with_names_of_their_own_do_not_share_answers(open_limiter: Open, clock: FakeClock) -> None:
    """The strict one must not let pass what it never counted."""
    store = MemoryStore(clock=clock)
    generous = open_limiter("1000/minute", store=store, name="reads")
    strict = open_limiter("1/minute", store=store, name="writes")
    strict.check("alice")
    assert generous.check("alice", idempotency_key="k")
    try:
        decision = strict.check("alice", idempotency_key="k")
    except IdempotencyConflict:
        return
    assert (decision.allowed, decision.limit, decision.remaining) == (False, 1, 0)


def test_answers_are_bounded_like_keys(clock: FakeClock, open_limiter: Open) -> None:
    store = MemoryStore(max_keys=100, clock=clock)
    limiter = open_limiter("1000000/day", store=store)
    for number in range(1_000):
        limiter.check("alice", idempotency_key=f"key-{number}")
    assert limiter.peek("alice").remaining == 1_000_000 - 1_000
    limiter.check("alice", idempotency_key="key-999")
    assert limiter.peek("alice").remaining == 1_000_000 - 1_000
