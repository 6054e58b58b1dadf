"""Units on Redis: charged in one step, reserved, extended, settled, by limiters of both kinds."""

from __future__ import annotations

import asyncio

from headgate import AsyncLimiter, Limiter, Rule

RULES = [
    Rule(id="requests", quota="1000/hour gcra"),
    Rule(id="tokens", quota="100000/hour token_bucket", unit="tokens"),
    Rule(id="everybody", quota="400000/hour fixed_window", dimension="global", unit="tokens"),
    Rule(id="money", quota="500000/hour", unit="usd_micros"),
]
COST = {"requests": 1, "tokens": 300, "usd_micros": 40}


def left(limiter: Limiter, **facts: str) -> dict[str, int]:
    decision = limiter.peek(**facts, cost={"requests": 1, "tokens": 1, "usd_micros": 1})
    return {status.rule: status.remaining for status in decision.limits}


def test_many_tasks_never_take_more_than_any_unit_has(redis_url: str) -> None:
    async def run() -> int:
        async with AsyncLimiter(RULES, store=redis_url) as limiter:
            decisions = await asyncio.gather(*(limiter.check(user="alice", cost=COST) for _ in range(500)))
            plain = await asyncio.gather(*(limiter.check(user="alice") for _ in range(100)))
            assert all(plain)
            return sum(decision.allowed for decision in decisions)

    assert asyncio.run(run()) in (333, 334)  # 100,000 of 300, and what comes back in a moment
    with Limiter(RULES, store=redis_url) as limiter:
        figures = left(limiter, user="alice")
        assert figures["money"] in (500_000 - 333 * 40, 500_000 - 334 * 40)
        assert figures["requests"] <= 1000 - 433
        assert figures["everybody"] in (400_000 - 333 * 300, 400_000 - 334 * 300)


def test_a_reservation_is_extended_and_settled_by_unit(redis_url: str) -> None:
    with Limiter(RULES, store=redis_url) as limiter:
        with limiter.reserve(user="bob", cost={"requests": 1, "tokens": 4_000}) as reservation:
            assert reservation.extend(tokens=500)
            assert left(limiter, user="bob")["everybody"] == 395_500
            reservation.settle(tokens=4_100)
        figures = left(limiter, user="bob")
        assert figures["everybody"] == 395_900
        assert 95_900 <= figures["tokens"] <= 95_910
        other = limiter.reserve(user="bob", cost={"tokens": 1_000})
        with Limiter(RULES, store=redis_url) as elsewhere:
            assert elsewhere.settle(other.id, {"tokens": 10}).reserved == {"tokens": 1_000}
        assert left(limiter, user="bob")["everybody"] == 395_890
