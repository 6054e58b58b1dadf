"""Idempotency keys on a real server: a request that is sent twice is charged once, whoever sends it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from headgate import AsyncLimiter, Decision, IdempotencyConflict, Limiter, Rule
from headgate.testing import FakeClock
from tests.integration.limiters import ALGORITHMS, Open, calm

FIVE_MINUTES = 300.0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_first_answer_is_given_again(redis_url: str, open_limiter: Open, algorithm: str) -> None:
    here = open_limiter(calm(10, algorithm), store=redis_url)
    elsewhere = open_limiter(calm(10, algorithm), store=redis_url)
    first = here.check("alice", cost=3, idempotency_key="k")
    here.check("alice")
    assert elsewhere.check("alice", cost=3, idempotency_key="k") == first
    assert here.peek("alice").remaining == 6


def test_a_refusal_is_given_again_too(redis_url: str, open_limiter: Open) -> None:
    limiter = open_limiter(calm(10), store=redis_url)
    limiter.check("alice", cost=10)
    refused = limiter.check("alice", cost=2, idempotency_key="k")
    assert not refused
    limiter.reset("alice")
    assert limiter.check("alice", cost=2, idempotency_key="k") == refused
    assert limiter.peek("alice").remaining == 10


def test_another_request_with_the_same_key_is_a_conflict(redis_url: str, open_limiter: Open) -> None:
    limiter = open_limiter(calm(10), store=redis_url)
    limiter.check("alice", idempotency_key="k")
    with pytest.raises(IdempotencyConflict, match="'k'"):
        limiter.check("bob", idempotency_key="k")
    with pytest.raises(IdempotencyConflict, match="'k'"):
        limiter.check("alice", cost=2, idempotency_key="k")
    assert (limiter.peek("alice").remaining, limiter.peek("bob").remaining) == (9, 10)


def test_five_minutes_later_the_key_is_new(redis_url: str, open_limiter: Open) -> None:
    clock = FakeClock(1_700_000_000)
    limiter = open_limiter("10/30d", store=redis_url, clock=clock)
    limiter.check("alice", idempotency_key="k")
    clock.advance(FIVE_MINUTES - 0.001)
    limiter.check("alice", idempotency_key="k")
    assert limiter.peek("alice").remaining == 9
    clock.advance(0.001)
    limiter.check("alice", cost=2, idempotency_key="k")
    assert limiter.peek("alice").remaining == 7


def test_a_conflict_concerns_only_the_one_who_has_it(redis_url: str) -> None:
    async def main() -> Sequence[Decision | BaseException]:
        async with AsyncLimiter(calm(10), store=redis_url) as limiter:
            await limiter.check("alice", idempotency_key="k")
            return await asyncio.gather(
                limiter.check("bob"),
                limiter.check("mallory", idempotency_key="k"),
                limiter.check("carol", cost=4),
                limiter.check("alice", idempotency_key="k"),
                return_exceptions=True,
            )

    bob, mallory, carol, alice = asyncio.run(main())
    assert isinstance(mallory, IdempotencyConflict)
    answers = [decision.remaining for decision in (bob, carol, alice) if isinstance(decision, Decision)]
    assert answers == [9, 6, 9]


def rules(count: int) -> list[Rule]:
    """So many rules; the same ids, whatever the count."""
    return [Rule(id=f"rule-{n}", quota=calm(10 + n)) for n in range(count)]


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_a_key_outlives_a_change_of_rules(redis_url: str, open_limiter: Open, before: int, after: int) -> None:
    """The rules changed between a request and its repetition: charged once, and nobody else gets a wrong answer."""
    open_limiter(rules(before), store=redis_url).check(user="alice", idempotency_key="k")
    limiter = open_limiter(rules(after), store=redis_url)
    try:
        repeated, other = limiter.check_many([{"user": "alice", "idempotency_key": "k"}, {"user": "bob", "cost": 2}])
    except IdempotencyConflict:
        other = limiter.peek(user="bob")
    else:
        assert repeated.allowed
    assert [status.rule for status in other.limits] == [rule.id for rule in rules(after)]
    assert [status.remaining for status in other.limits] == [8 + n for n in range(after)]
    assert all(status.remaining >= 9 for status in limiter.peek(user="alice").limits)


def test_callers_beside_a_stale_answer_are_answered(redis_url: str) -> None:
    """The same in one tick: no caller waits for ever because another's answer could not be read."""

    async def main() -> Sequence[Decision | BaseException]:
        async with AsyncLimiter(rules(3), store=redis_url) as limiter, asyncio.timeout(5):
            return await asyncio.gather(
                limiter.check(user="alice", idempotency_key="k"),
                limiter.check(user="bob", cost=2),
                return_exceptions=True,
            )

    with Limiter(rules(1), store=redis_url) as limiter:
        limiter.check(user="alice", idempotency_key="k")
    alice, bob = asyncio.run(main())
    assert isinstance(alice, Decision | IdempotencyConflict)
    assert isinstance(bob, Decision)
    assert [status.remaining for status in bob.limits] == [8, 9, 10]


def test_two_limiters_with_names_of_their_own_do_not_share_answers(redis_url: str, open_limiter: Open) -> None:
    """The key is a request's, not the whole server's: the second limiter must not let pass what it never counted."""
    generous = open_limiter(calm(1_000), store=redis_url, name="reads")
    strict = open_limiter(calm(1), store=redis_url, name="writes")
    strict.check("alice")
    assert generous.check("alice", idempotency_key="k")
    try:
        decision = strict.check("alice", idempotency_key="k")
    except IdempotencyConflict:
        return
    assert (decision.allowed, decision.limit, decision.remaining) == (False, 1, 0)
