"""Limiter and AsyncLimiter: what can be asked, and how."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate import AsyncLimiter, InvalidCheck, InvalidQuota, InvalidRule, Limiter, Quota, Rule
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.integration.limiters import Open


def test_check_charges_and_counts_down(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter("3/minute", clock=clock)
    assert [limiter.check("alice").remaining for _ in range(3)] == [2, 1, 0]
    assert not limiter.check("alice")
    assert limiter.check("bob").remaining == 2


def test_check_takes_a_cost(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter("10/minute", clock=clock)
    assert limiter.check("alice", cost=7).remaining == 3
    assert not limiter.check("alice", cost=4)
    assert limiter.check("alice", cost=3).remaining == 0


def test_time_brings_it_back(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter("2/minute fixed_window", clock=clock)
    limiter.check("alice", cost=2)
    clock.advance(59.999_999)
    assert not limiter.check("alice")
    clock.advance(0.000_001)
    assert limiter.check("alice").remaining == 1


def test_peek_never_consumes(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter("2/minute", clock=clock)
    assert [limiter.peek("alice").remaining for _ in range(5)] == [2] * 5
    assert not limiter.peek("alice", cost=3)
    limiter.check("alice", cost=2)
    peeked = limiter.peek("alice")
    assert (peeked.allowed, peeked.remaining, peeked.reason) == (False, 0, "over_limit")
    assert peeked == limiter.check("alice")


def test_reset_forgets_one_subject(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter("2/minute", clock=clock)
    for subject in ("alice", "bob"):
        limiter.check(subject, cost=2)
    limiter.reset("alice")
    assert (limiter.peek("alice").remaining, limiter.peek("bob").remaining) == (2, 0)
    limiter.reset("nobody")
    limiter.reset(user="bob")
    assert limiter.check("bob").remaining == 1


def test_check_many_decides_each_by_itself_in_order(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter("3/minute", clock=clock)
    decisions = limiter.check_many(
        iter(["alice", {"user": "alice", "cost": 3}, "bob", 42, {"user": 42, "cost": 2}, "alice"])
    )
    assert [(each.allowed, each.remaining) for each in decisions] == [
        (True, 2),
        (False, 2),
        (True, 2),
        (True, 2),
        (True, 0),
        (True, 1),
    ]
    assert limiter.check_many([]) == []


def test_check_many_charges_nobody_if_one_makes_no_sense(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter("3/minute", clock=clock)
    with pytest.raises(InvalidCheck, match=r"cost: .*-1"):
        limiter.check_many(["alice", {"user": "bob", "cost": -1}])
    assert limiter.peek("alice").remaining == 3


def test_several_quotas_must_all_pass(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter("2/second fixed_window; 3/minute fixed_window", clock=clock)
    assert [limiter.check("alice").allowed for _ in range(3)] == [True, True, False]
    clock.advance(1)
    assert [limiter.check("alice").allowed for _ in range(2)] == [True, False]
    refused = limiter.check("alice")
    assert [(each.rule, each.allowed, each.remaining) for each in refused.limits] == [
        ("default/1m", False, 0),
        ("default/1s", True, 1),  # the refusals were not charged
    ]


def test_several_quotas_may_have_the_same_window(open_limiter: Open, clock: FakeClock) -> None:
    """`100/minute` for the sum, `100/minute burst 5 gcra` for the pace."""
    limiter = open_limiter("100/minute; 100/minute burst 5 gcra", clock=clock)
    assert [limiter.check("alice").allowed for _ in range(6)] == [True] * 5 + [False]
    assert len(limiter.peek("alice").limits) == 2


@pytest.mark.parametrize(
    "rules",
    ["5 per minute", Quota(5, 60), [Rule(id="r", quota=Quota(5, "1m"))], (Rule(id="r", quota=Quota(5, "60s")),)],
    ids=["notation", "quota", "list", "tuple"],
)
def test_rules_come_in_several_forms(open_limiter: Open, clock: FakeClock, rules: Any) -> None:
    limiter = open_limiter(rules, clock=clock)
    assert limiter.check(user="alice").remaining == 4


def test_the_subject_is_the_user_and_a_number_is_its_text(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter("10/minute", clock=clock)
    limiter.check("42")
    limiter.check(user="42")
    limiter.check(42)
    limiter.check(user=42, ip=None, port=8080)
    assert limiter.peek("42").remaining == 6


def test_a_rule_applies_to_requests_that_have_its_facts(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter(
        [
            Rule(id="user", quota=Quota(10, 60)),
            Rule(id="pair", quota=Quota(10, 60), dimension="user+endpoint"),
            Rule(id="world", quota=Quota(10, 60), dimension="global"),
            Rule(id="off", quota=Quota(10, 60), enabled=False),
        ],
        clock=clock,
    )
    applied = {
        tuple(facts): {status.rule for status in limiter.check(**facts).limits}
        for facts in ({"user": "a", "endpoint": "/x"}, {"user": "a"}, {"endpoint": "/x"})
    }
    assert applied == {
        ("user", "endpoint"): {"user", "pair", "world"},
        ("user",): {"user", "world"},
        ("endpoint",): {"world"},
    }
    assert [rule.rule for rule in limiter.check(user=None, endpoint=None).limits] == ["world"]


@pytest.mark.parametrize(
    ("args", "facts", "message"),
    [
        ((), {}, r"counts by subject: call check\('alice'\)"),
        ((None,), {}, "counts by subject"),
        ((), {"user": None}, "counts by subject"),
        (("alice",), {"user": "bob"}, "user: given twice"),
        ((1.5,), {}, "subject: must be a text or a whole number, got 1.5"),
        ((b"alice",), {}, "subject: must be a text or a whole number, got b'alice'"),
        ((True,), {}, "subject: must be a text or a whole number, got True"),
        (("alice",), {"ip": ["192.0.2.7"]}, r"ip: must be a text or a whole number, got \['192.0.2.7'\]"),
        (("alice",), {"idempotency_key": ""}, "idempotency_key: must be a text, and not empty, got ''"),
        (("alice",), {"idempotency_key": 7}, "idempotency_key: must be a text, and not empty, got 7"),
    ],
)
def test_what_makes_no_sense_is_said_so(
    open_limiter: Open, args: tuple[Any, ...], facts: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidCheck, match=message):
        open_limiter("3/minute").check(*args, **facts)


@pytest.mark.parametrize("rules", [None, 5, 5.0, b"5/minute", ["5/minute"], [Rule(id="r", quota=Quota(1, 1)), None]])
def test_rules_that_are_none_are_said_so(open_limiter: Open, rules: Any) -> None:
    with pytest.raises(InvalidRule, match="rules: must be"):
        open_limiter(rules)


def test_a_notation_that_is_none_is_said_so(open_limiter: Open) -> None:
    with pytest.raises(InvalidQuota, match="cannot read 'lots' as a quota; write it like '100/minute'"):
        open_limiter("lots")


@pytest.mark.parametrize("mode", ["fail_shut", "CLOSED", "", True])
def test_an_unknown_failure_mode_is_refused(open_limiter: Open, mode: Any) -> None:
    """It must not be taken for `open`."""
    with pytest.raises(ValueError, match="failure_mode"):
        open_limiter("3/minute", failure_mode=mode)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "not a URL of a store"),
        ("localhost:6379", "not a URL of a store"),
        ("ftp://localhost", "not a URL of a store"),
        ("memory://?max_keys=many", "max_keys"),
        ("memory://?max_keys=0", "max_keys"),
        ("memory://?size=5", "size"),
        ("redis://localhost?timeout=0", "timeout"),
        ("redis://localhost?timeout=soon", "timeout"),
        ("redis://localhost:6379/cache", "the database must be a number"),
        ("redis://localhost?max_batch=1.5", "max_batch"),
        ("redis://localhost?max_in_flight=-1", "max_in_flight"),
    ],
)
def test_a_store_url_that_is_none_is_said_so(open_limiter: Open, url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_limiter("3/minute", store=url)


@pytest.mark.parametrize("store", [None, 5, object(), ["memory://"]])
def test_what_is_neither_a_url_nor_a_store_is_said_so(open_limiter: Open, store: Any) -> None:
    with pytest.raises(
        ValueError, match=r"store: must be a URL, or a store, got .*; use memory://, embedded://, redis://"
    ):
        open_limiter("3/minute", store=store)


def test_limiters_share_a_store_and_with_it_a_name(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    with Limiter("5/minute", store=store, clock=clock) as one, Limiter("5/minute", store=store) as same:
        other = Limiter("5/minute", store=store, name="other")
        one.check("alice")
        assert (same.check("alice").remaining, other.check("alice").remaining) == (3, 4)

    async def main() -> int:
        async with AsyncLimiter("5/minute", store=store) as limiter:
            return (await limiter.check("alice")).remaining

    assert asyncio.run(main()) == 2
    assert Limiter("5/minute", store=store).peek("alice").remaining == 2  # a store given stays open
