"""Rules that count other things than requests, in one check."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import pytest

from headgate import AsyncLimiter, IdempotencyConflict, InvalidCheck, Limiter, RateLimited, Rule
from headgate.core.cost import Cost, divide_cost
from headgate.rules.snapshot import Snapshot
from headgate.testing import FakeClock

RULES = [
    Rule(id="requests", quota="10/minute fixed_window"),
    Rule(id="tokens", quota="1000/minute fixed_window", unit="tokens"),
    Rule(id="money", quota="500/minute token_bucket", unit="usd_micros", cost=2),
]


@pytest.fixture
def limiter() -> Limiter:
    return Limiter(RULES, clock=FakeClock(1_000_020.0))


def left(limiter: Limiter, user: str = "alice") -> dict[str, int]:
    decision = limiter.peek(user=user, cost={"requests": 1, "tokens": 1, "usd_micros": 1})
    return {status.unit: status.remaining for status in decision.limits}


def test_each_rule_is_charged_by_its_own_unit_in_one_step(limiter: Limiter) -> None:
    assert limiter.check(user="alice", cost={"requests": 1, "tokens": 400, "usd_micros": 20})
    assert left(limiter) == {"requests": 9, "tokens": 600, "usd_micros": 460}
    refused = limiter.check(user="alice", cost={"requests": 1, "tokens": 601, "usd_micros": 20})
    assert (refused.allowed, refused.rule) == (False, "tokens")
    assert left(limiter) == {"requests": 9, "tokens": 600, "usd_micros": 460}


def test_a_rule_whose_unit_is_not_named_neither_is_charged_nor_refuses(limiter: Limiter) -> None:
    assert limiter.check(user="alice", cost={"tokens": 1000})
    assert not limiter.check(user="alice", cost={"tokens": 1})
    decision = limiter.check(user="alice", cost=10)
    assert decision.allowed
    assert [status.rule for status in decision.limits] == ["requests"]
    assert not limiter.check(user="alice")
    assert limiter.check(user="alice", cost={"usd_micros": 1})
    assert limiter.check(user="alice", cost={"parsecs": 12}).reason == "no_rule"
    assert left(limiter) == {"requests": 0, "tokens": 0, "usd_micros": 498}


def test_a_unit_that_no_rule_counts_is_logged_once(limiter: Limiter, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headgate")
    for user in ("alice", "bob"):
        for _ in range(2):
            assert limiter.check(user=user, cost={"requests": 1, "tokesn": 5})
            assert limiter.check(user=user, cost={"requests": 1, "tokens": 1, "input_tokens": 1, "parsecs": 12})
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "no rule counts the unit 'tokesn', so it is not charged; did you mean 'tokens'?"),
        ("INFO", "no rule counts the unit 'input_tokens', so it is not charged"),
        ("INFO", "no rule counts the unit 'parsecs', so it is not charged"),
    ]


def test_a_unit_is_not_logged_again_when_rules_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headgate")
    snapshot = None
    for rules in (RULES[:1], RULES, RULES[:1]):
        snapshot = Snapshot(rules, previous=snapshot)
        snapshot.plan({"user": "alice"}, FakeClock()).price({"requests": 1, "tokens": 1})
    assert [record.getMessage() for record in caplog.records] == [
        "no rule counts the unit 'tokens', so it is not charged"
    ]


def test_a_plain_cost_means_requests(limiter: Limiter) -> None:
    limiter.check(user="alice", cost=3)
    limiter.check(user="alice", cost={"requests": 2})
    limiter.check("alice")
    assert left(limiter) == {"requests": 4, "tokens": 1000, "usd_micros": 500}


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ({}, "cost: must name at least one unit, as in {'requests': 1, 'tokens': 4000}, got {}"),
        ({"tokens": -1}, "cost: tokens: must be a whole number from 0 to 2^53-1, got -1"),
        ({"tokens": True}, "cost: tokens: must be a whole number from 0 to 2^53-1, got True"),
        ({"to kens": 1}, "cost: must name units like 'requests' or 'tokens', got 'to kens'"),
        ({1: 1}, "cost: must name units like 'requests' or 'tokens', got 1"),
        ({"usd_micros": 2**53 - 1}, f"cost: {2**53 - 1} times 2 of rule 'money' is above 2^53-1"),
        (True, "cost: must be a whole number from 0 to 2^53-1, got True"),
        ("5", "cost: must be a whole number from 0 to 2^53-1, got '5'"),
    ],
)
def test_a_cost_that_makes_no_sense_charges_nothing(limiter: Limiter, cost: Any, message: str) -> None:
    with pytest.raises(InvalidCheck) as raised:
        limiter.check(user="alice", cost=cost)
    assert str(raised.value) == message
    assert left(limiter) == {"requests": 10, "tokens": 1000, "usd_micros": 500}


def test_many_requests_and_waits_have_units_too() -> None:
    clock = FakeClock(1_000_020.0)
    limiter = Limiter(RULES, clock=clock)
    first, second = limiter.check_many([{"user": "alice", "cost": {"tokens": 900}}, {"user": "alice", "cost": 2}])
    assert first
    assert second
    assert left(limiter) == {"requests": 8, "tokens": 100, "usd_micros": 500}
    assert not limiter.wait(user="alice", cost={"tokens": 200}, timeout=1)
    assert limiter.wait(user="alice", cost={"tokens": 200}, timeout=60)


def test_a_repeated_key_with_other_units_is_a_conflict(limiter: Limiter) -> None:
    cost = {"requests": 1, "tokens": 5}
    limiter.check(user="alice", cost=cost, idempotency_key="k")
    limiter.check(user="alice", cost=dict(reversed(cost.items())), idempotency_key="k")
    assert left(limiter) == {"requests": 9, "tokens": 995, "usd_micros": 500}
    with pytest.raises(IdempotencyConflict):
        limiter.check(user="alice", cost={"requests": 1, "tokens": 6}, idempotency_key="k")


def test_a_reservation_is_settled_unit_by_unit(limiter: Limiter) -> None:
    reservation = limiter.reserve(user="alice", cost={"requests": 1, "tokens": 400, "usd_micros": 50})
    assert left(limiter) == {"requests": 9, "tokens": 600, "usd_micros": 400}
    settlement = reservation.settle(tokens=320, usd_micros=60)
    assert settlement.reason == "settled"
    assert settlement.refunded == {"requests": 0, "tokens": 80, "usd_micros": 0}
    assert settlement.surcharged == {"requests": 0, "tokens": 0, "usd_micros": 10}
    assert left(limiter) == {"requests": 9, "tokens": 680, "usd_micros": 380}
    assert reservation.settle(tokens=1).reason == "gone"


def test_a_reservation_is_settled_by_its_id_and_refunded_whole(limiter: Limiter) -> None:
    first = limiter.reserve(user="alice", cost={"requests": 1, "tokens": 400})
    assert limiter.settle(first.id, {"tokens": 100})
    assert left(limiter) == {"requests": 9, "tokens": 900, "usd_micros": 500}
    second = limiter.reserve(user="alice", cost={"requests": 1, "tokens": 400})
    assert second.refund()
    assert left(limiter) == {"requests": 9, "tokens": 900, "usd_micros": 500}


def test_what_was_not_reserved_cannot_be_settled(limiter: Limiter) -> None:
    reservation = limiter.reserve(user="alice", cost={"tokens": 400})
    with pytest.raises(InvalidCheck, match="cost: requests was not reserved, only tokens=400"):
        reservation.settle(300)
    with pytest.raises(InvalidCheck, match="give a number, a mapping, or units by name"):
        reservation.settle()
    assert reservation.settle(tokens=300)


def test_an_extension_takes_more_before_it_is_used(limiter: Limiter) -> None:
    with limiter.reserve(user="alice", cost={"requests": 1, "tokens": 400}) as reservation:
        assert reservation.extend(tokens=500)
        assert reservation.reserved == {"requests": 1, "tokens": 900}
        assert left(limiter) == {"requests": 9, "tokens": 100, "usd_micros": 500}
        assert not reservation.extend(tokens=200)
        assert left(limiter) == {"requests": 9, "tokens": 100, "usd_micros": 500}
        settlement = reservation.settle(tokens=450)
    assert settlement.reserved == {"requests": 1, "tokens": 900}
    assert left(limiter) == {"requests": 9, "tokens": 550, "usd_micros": 500}


def test_a_block_that_ends_settles_what_was_reserved_and_extended(limiter: Limiter) -> None:
    with limiter.reserve(user="alice", cost={"tokens": 100}) as reservation:
        reservation.extend(tokens=50)
    assert left(limiter)["tokens"] == 850
    with suppress(RuntimeError), limiter.reserve(user="alice", cost={"tokens": 100}) as reservation:
        reservation.extend(tokens=50)
        raise RuntimeError
    assert left(limiter)["tokens"] == 850


def test_a_reservation_with_extensions_that_is_never_settled_expires() -> None:
    clock = FakeClock(1_000_020.0)
    limiter = Limiter(RULES, clock=clock)
    limiter.reserve(user="alice", cost={"tokens": 100}, ttl=5).extend(tokens=50)
    assert left(limiter)["tokens"] == 850
    clock.advance(6)
    assert left(limiter)["tokens"] == 1000


def test_all_of_it_awaited() -> None:
    async def run() -> None:
        async with AsyncLimiter(RULES, clock=FakeClock(1_000_020.0)) as limiter:
            async with await limiter.reserve(user="alice", cost={"requests": 1, "tokens": 400}) as reservation:
                assert await reservation.extend(tokens=500)
                await reservation.settle(tokens=450)
            decision = await limiter.peek(user="alice", cost={"requests": 1, "tokens": 1})
            assert {status.unit: status.remaining for status in decision.limits} == {"requests": 9, "tokens": 550}

    asyncio.run(run())


def test_a_reset_forgets_every_unit(limiter: Limiter) -> None:
    limiter.check(user="alice", cost={"requests": 1, "tokens": 400, "usd_micros": 20})
    limiter.reset(user="alice")
    assert left(limiter) == {"requests": 10, "tokens": 1000, "usd_micros": 500}


@pytest.mark.parametrize(
    ("cost", "reserved", "shares"),
    [
        (0, [5, {"tokens": 3}], [0, 0]),
        (7, [5, 5], [5, 2]),
        (12, [5, 5], [5, 7]),
        ({"tokens": 7}, [{"requests": 1, "tokens": 4}, {"tokens": 2}], [{"tokens": 4}, {"tokens": 3}]),
        ({"tokens": 1}, [{"tokens": 4}, {"tokens": 2}], [{"tokens": 1}, {"tokens": 0}]),
        ({"requests": 0}, [1, {"tokens": 2}], [0, {"tokens": 2}]),
    ],
)
def test_what_it_cost_is_divided_among_reservations(cost: Cost, reserved: list[Cost], shares: list[Cost]) -> None:
    assert divide_cost(cost, [(place, own) for place, own in enumerate(reserved)]) == list(enumerate(shares))


def test_slots_belong_to_requests_and_units_are_charged_with_them() -> None:
    rules = [*RULES, Rule(id="slots", quota="1 concurrent")]
    limiter = Limiter(rules, clock=FakeClock(1_000_020.0))
    with limiter.acquire(user="alice", cost={"requests": 1, "tokens": 400}):
        with pytest.raises(RateLimited):
            limiter.acquire(user="alice", cost={"requests": 1, "tokens": 1})
        with limiter.reserve(user="alice", cost={"tokens": 100}) as reservation:
            reservation.settle(tokens=40)
    assert left(Limiter(RULES, store=limiter._here, clock=limiter.clock)) == {
        **{"requests": 9, "tokens": 560, "usd_micros": 500},
    }
