"""Every key ends by itself: not before its state is moot, and soon after. Nothing is written without need."""

from __future__ import annotations

import random
import time
from typing import cast

import pytest
import redis

from headgate import Decision, Limiter, Quota, Rule
from headgate.core.check import Charge, Check
from headgate.stores.redis.sync import RedisStore
from headgate.testing import FakeClock
from tests.integration.limiters import ALGORITHMS, AnyLimiter, Open, calm
from tests.servers import Server

WINDOWS = ("1ms", "7ms", "250ms", "1s", "90s", "1h", "1d", "366d")
SLACK_MS = 2_000  # that a key may outlive its meaning
NO_TTL, NO_KEY = -1, -2


def ttls(client: redis.Redis) -> dict[str, int]:
    """Every key that is there, and for how many milliseconds yet."""
    names = cast("list[bytes]", client.keys("*"))
    found = {name.decode(): client.pttl(name) for name in names}
    return {name: ttl for name, ttl in found.items() if ttl != NO_KEY}  # ended in between


def commands(client: redis.Redis) -> set[str]:
    """The commands that the server was sent since CONFIG RESETSTAT, inside scripts or not."""
    return {name.removeprefix("cmdstat_").split("|")[0] for name in client.info("commandstats")}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_key_lives_as_long_as_it_matters_and_no_longer(
    redis_server: Server, redis_url: str, algorithm: str, window: str
) -> None:
    quota = Quota(7, window, algorithm=algorithm)  # type: ignore[arg-type]
    with redis_server.client() as client, Limiter(quota, store=redis_url) as limiter:
        for cost in (1, 5, 3):  # one, most of the rest, and what is refused unless the window is over by then
            for _ in range(5):  # a stall between the two looks would let a short-lived key go
                started = time.monotonic()
                decision = limiter.check("alice", cost=cost)
                (ttl,) = ttls(client).values() or (NO_KEY,)
                took_ms = (time.monotonic() - started) * 1_000
                if took_ms < 500:
                    break
            assert decision.reset_after * 1_000 - took_ms - 1 <= ttl <= decision.reset_after * 1_000 + SLACK_MS


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket", "gcra"])
def test_a_large_burst_lives_until_it_is_refilled(redis_server: Server, redis_url: str, algorithm: str) -> None:
    quota = Quota(1, "1d", burst=10_000, algorithm=algorithm)  # type: ignore[arg-type]
    with redis_server.client() as client, Limiter(quota, store=redis_url) as limiter:
        decision = limiter.check("alice", cost=10_000)
        (ttl,) = ttls(client).values()
        assert decision.reset_after == 10_000 * 86_400
        assert decision.reset_after * 1_000 - 10_000 < ttl <= decision.reset_after * 1_000 + SLACK_MS


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_key_lives_longer_when_its_window_becomes_longer(
    redis_server: Server, redis_url: str, algorithm: str
) -> None:
    """At a time at which both windows have begun just now."""
    clock = FakeClock(0)
    for window in ("1m", "2d"):
        quota = Quota(5, window, algorithm=algorithm)  # type: ignore[arg-type]
        with redis_server.client() as client, Limiter(quota, store=redis_url, clock=clock) as limiter:
            decision = limiter.check("alice", cost=2)
            (ttl,) = ttls(client).values()
            assert ttl >= decision.reset_after * 1_000 > 1_000


@pytest.mark.parametrize("limit", [5, 20_000])
@pytest.mark.parametrize("seconds", [0.002, -1, -0.000_5])
def test_a_log_that_begins_anew_ends_too(redis_server: Server, redis_url: str, limit: int, seconds: float) -> None:
    """All of it is over, or lies in the future: the list was deleted in between, and its time to live with it."""
    clock = FakeClock(1_000)
    quota = Quota(limit, 0.001, algorithm="sliding_window_log")
    with redis_server.client() as client, Limiter(quota, store=redis_url, clock=clock) as limiter:
        limiter.check("alice")
        clock.advance(seconds)
        limiter.check("alice")
        (ttl,) = ttls(client).values()
        assert ttl > 0


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_log"])
def test_redis_is_not_told_again_how_long_a_key_lives(redis_server: Server, redis_url: str, algorithm: str) -> None:
    with redis_server.client() as client, Limiter(calm(5, algorithm), store=redis_url) as limiter:
        limiter.check("alice")
        client.config_resetstat()
        assert limiter.check("alice").remaining == 3
        assert not commands(client) & {"set", "expire", "pexpire"}


def test_an_idempotency_key_lives_five_minutes(redis_server: Server, redis_url: str) -> None:
    with redis_server.client() as client, Limiter(calm(10), store=redis_url) as limiter:
        limiter.check("alice", idempotency_key="k")
        (ttl,) = [ttl for name, ttl in ttls(client).items() if "idempotency" in name]
        assert 290_000 < ttl <= 300_000 + SLACK_MS


def test_a_repeated_request_does_not_prolong_its_idempotency_key(redis_server: Server, redis_url: str) -> None:
    with redis_server.client() as client, Limiter(calm(10), store=redis_url) as limiter:
        limiter.check("alice", idempotency_key="k")
        (name,) = [name for name in ttls(client) if "idempotency" in name]
        client.pexpire(name, 5_000)
        limiter.check("alice", idempotency_key="k")
        assert 0 < cast("int", client.pttl(name)) <= 5_000


def test_no_key_is_left_for_ever_whatever_is_done(redis_server: Server, redis_url: str) -> None:
    """A random mix of everything that writes; then every key ends, and none before it is moot."""
    chance = random.Random(11)
    rules = [
        Rule(id=f"{dimension}-{algorithm}", dimension=dimension, quota=Quota(20, window, algorithm=algorithm))  # type: ignore[arg-type]
        for dimension in ("user", "tenant", "user+tenant", "global")
        for algorithm, window in zip(ALGORITHMS, chance.sample(WINDOWS, len(ALGORITHMS)), strict=True)
    ]
    store = RedisStore(redis_url)
    with redis_server.client() as client, Limiter(rules, store=store) as limiter:
        for turn in range(400):
            facts = {"user": chance.choice("abc"), **chance.choice([{"tenant": "x"}, {"tenant": "y"}, {}])}
            match chance.randrange(8):
                case 0 | 1 | 2:
                    limiter.check(**facts, cost=chance.randrange(6))
                case 3:
                    limiter.check(**facts, cost=chance.randrange(6), idempotency_key=f"key-{turn}")
                case 4:
                    limiter.peek(**facts, cost=chance.randrange(30))
                case 5:
                    limiter.reset(**facts)
                case 6:
                    limiter.check_many([facts | {"cost": 2}, facts, {"user": "d"}])
                case 7:
                    store.refund(some_charges(chance, rules))
            if turn % 20 == 0:
                assert NO_TTL not in ttls(client).values()
        found = ttls(client)
        assert len(found) > len(rules)
        assert NO_TTL not in found.values()
        for user in "abcd":
            for status in limiter.peek(user=user, tenant="x").limits:
                key = "rl:" + key_of(rules, status.rule, user, "x")
                if status.reset_after > 1:  # else it may be gone, and rightly so
                    assert cast("int", client.pttl(key)) >= status.reset_after * 1_000 - 1_000
    store.close()


def key_of(rules: list[Rule], name: str, user: str, tenant: str) -> str:
    (rule,) = [rule for rule in rules if rule.id == name]
    return Check(rule.id, rule.key_template, subject_of(rule, user, tenant), rule.quota).key


def subject_of(rule: Rule, user: str, tenant: str) -> str:
    return {"user": user, "tenant": tenant, "user+tenant": f"1:{user}1:{tenant}", "global": ""}[rule.dimension]


def some_charges(chance: random.Random, rules: list[Rule]) -> list[Charge]:
    """Things to undo, of which some have never been done."""
    now_us = time.time_ns() // 1_000
    return [
        Charge(
            Check(
                rule.id,
                rule.key_template,
                subject_of(rule, chance.choice("abc"), "x"),
                rule.quota,
                chance.randrange(1, 4),
            ),
            now_us - chance.choice([0, 10, 1_000, 1_000_000]),
        )
        for rule in chance.sample(rules, 5)
    ]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_charges_nothing_writes_nothing(
    redis_server: Server, redis_url: str, open_limiter: Open, algorithm: str
) -> None:
    limiter = open_limiter(calm(5, algorithm), store=redis_url)
    with redis_server.client() as client:
        assert limiter.peek("alice").remaining == 5
        assert limiter.check("alice", cost=0).remaining == 5
        assert limiter.check("alice", cost=6).retry_after is None
        assert ttls(client) == {}
        limiter.check("alice", cost=5)
        (name,) = ttls(client)
        before = client.dump(name)
        peeked = limiter.peek("alice")
        assert client.dump(name) == before
        refused = limiter.check("alice")
        assert (peeked.allowed, refused.allowed) == (False, False)
        assert refused.reset_at == pytest.approx(peeked.reset_at, abs=0.000_01)


def test_a_refused_group_writes_nothing(redis_server: Server, redis_url: str, open_limiter: Open) -> None:
    limiter = open_limiter(
        [
            Rule(id="strict", quota=calm(1), dimension="tenant"),
            *(Rule(id=f"lax-{name}", quota=calm(1_000, name)) for name in ALGORITHMS),
        ],
        store=redis_url,
    )
    with redis_server.client() as client:
        assert limiter.check(tenant="acme")
        before = set(ttls(client))
        refused = limiter.check(tenant="acme", user="alice")
        assert not refused
        assert set(ttls(client)) == before
        lax = [status for status in refused.limits if status.rule != "strict"]
        assert [(status.allowed, status.remaining) for status in lax] == [(True, 1_000)] * len(ALGORITHMS)


def test_reset_forgets_one_subject_and_no_other(redis_server: Server, redis_url: str, open_limiter: Open) -> None:
    limiter = open_limiter([Rule(id=f"by-{name}", quota=calm(10, name)) for name in ALGORITHMS], store=redis_url)
    neighbours = ("alic", "alice2", "Alice", "alice:", "alice*", "*", "", "bob")
    for user in ("alice", *neighbours):
        limiter.check(user=user, cost=4)
    with redis_server.client() as client:
        before = set(ttls(client))
        client.config_resetstat()
        limiter.reset(user="alice")
        used = commands(client)
        gone = before - set(ttls(client))
    assert used <= {"del", "unlink", "config", "info", "client"}
    assert gone == {f"rl:user:{{alice}}:by-{name}:{name}" for name in ALGORITHMS}
    assert remaining(limiter, "alice") == [10] * len(ALGORITHMS)
    for user in neighbours:
        assert remaining(limiter, user) == [6] * len(ALGORITHMS)


def remaining(limiter: AnyLimiter, user: str) -> list[int]:
    decision: Decision = limiter.peek(user=user)
    return [status.remaining for status in decision.limits]


def test_the_keyspace_is_never_searched(redis_server: Server, redis_url: str, open_limiter: Open) -> None:
    limiter = open_limiter([Rule(id=name, quota=calm(3, name)) for name in ALGORITHMS], store=redis_url)
    with redis_server.client() as client:
        client.config_resetstat()
        for _ in range(5):
            limiter.check(user="alice", cost=2)
            limiter.check(user="bob", idempotency_key="k")
            limiter.peek(user="alice")
            limiter.reset(user="alice")
        used = commands(client)
    assert not used & {"keys", "scan", "flushdb", "flushall", "randomkey", "dbsize", "sort"}
    assert "evalsha" in used
