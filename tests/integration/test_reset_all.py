"""`reset_all`: a store forgets everything of ours, and nothing of others."""

from __future__ import annotations

import pytest
import redis

from headgate import InvalidCheck, Limiter, Rule
from headgate.rules import Snapshot
from headgate.rules.penalties import Penalties
from headgate.stores.redis.operations import SCANNED
from headgate.testing import FakeClock
from tests.integration.limiters import Open
from tests.topologies import Cluster


def test_everything_is_forgotten_in_memory(open_limiter: Open) -> None:
    forget_everything("memory://", open_limiter)


def test_everything_is_forgotten_on_redis(redis_url: str, open_limiter: Open) -> None:
    forget_everything(redis_url, open_limiter)


def test_everything_is_forgotten_on_a_cluster(cluster: Cluster, open_limiter: Open) -> None:
    forget_everything(f"{cluster.url}?timeout=5", open_limiter)


def forget_everything(url: str, open_limiter: Open) -> None:
    rules = Snapshot(
        [Rule(id="each", quota="1/hour"), Rule(id="all", quota="100/hour", dimension="global")],
        penalties=Penalties(enabled=True, violation_threshold=2),
    )
    limiter = open_limiter(rules, store=url, clock=FakeClock(1_700_000_000))
    users = [f"user {number}" for number in range(20)]  # on all servers of a cluster
    for _ in range(3):
        decisions = [limiter.check(user=user) for user in users]
    assert {decision.reason for decision in decisions} == {"penalty"}
    limiter.reset_all()
    again = [limiter.check(user=user) for user in users]
    assert all(decision.allowed for decision in again)
    assert {limit.rule: limit.remaining for limit in again[-1].limits} == {"each": 0, "all": 80}


def test_only_keys_under_the_prefix_are_forgotten(redis_url: str, redis_broom: redis.Redis) -> None:
    clock = FakeClock(1_700_000_000)
    with (
        Limiter("1/hour", store=f"{redis_url}&prefix=a_b", clock=clock) as one,
        Limiter("1/hour", store=f"{redis_url}&prefix=ab", clock=clock) as other,
    ):
        server = redis_broom
        server.set("a_friend", "kept")
        many = SCANNED * 2
        one.check_many(f"user {number}" for number in range(many))
        other.check("alice")
        one.reset_all()
        assert server.get("a_friend") == b"kept"
        assert [one.check(f"user {number}").allowed for number in (0, many - 1)] == [True, True]
        assert not other.check("alice").allowed


def test_a_store_of_others_that_cannot_says_so() -> None:
    class Forgetless:
        def check(self, _groups: object) -> list[object]:
            return []

        def refund(self, charges: object) -> None: ...

        def reset(self, checks: object, clients: object = ()) -> None: ...

        def close(self) -> None: ...

    limiter = Limiter("1/hour", store=Forgetless())  # type: ignore[arg-type]
    with pytest.raises(InvalidCheck, match="Forgetless cannot forget everything"):
        limiter.reset_all()
