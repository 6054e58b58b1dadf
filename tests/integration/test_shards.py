"""Rules with shards on real servers: exact among processes, on every kind of server, and on a cluster of three."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from headgate import Limiter, Quota, Rule
from headgate.errors import IdempotencyConflict
from headgate.stores.memory import MemoryStore
from headgate.stores.redis.sync import RedisStore
from headgate.stores.redis.topology import slot_of_key
from headgate.testing import FakeClock
from tests.integration.hammer import rules_of
from tests.integration.limiters import Open, calm, calm_window
from tests.integration.test_store_observer import Noted
from tests.integration.workers import Workers
from tests.kinds import each_kind
from tests.servers import Server, binaries
from tests.topologies import Cluster, kill

FIVE = ("fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket", "gcra")
PROCESSES = 4
LIMIT = 1_001
SHARDS = 8
PATIENT = "?timeout=5"


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    workers = Workers("tests.integration.hammer", PROCESSES)
    yield workers
    workers.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module", params=[*each_kind(), "cluster"])
def servers(request: pytest.FixtureRequest) -> Iterator[Server | Cluster]:
    """Each kind of server at hand, and a cluster of three."""
    if request.param == "cluster":
        yield request.getfixturevalue("cluster")
    else:
        with Server(binaries()[request.param]) as server:
            yield server


@pytest.fixture
def url(servers: Server | Cluster) -> str:
    if isinstance(servers, Cluster):
        servers.empty()
    else:
        with servers.client() as client:
            client.flushall()
    return servers.url + PATIENT


def sharded(limit: int = 10, algorithm: str = "fixed_window", shards: int = 4) -> list[Rule]:
    return [Rule(id="r", quota=calm(limit, algorithm), shards=shards)]


@pytest.mark.parametrize("algorithm", FIVE)
def test_processes_admit_exactly_the_limit(workers: Workers, url: str, algorithm: str) -> None:
    rule = {"id": algorithm, "dimension": "user", "limit": LIMIT, "window": calm_window(), "algorithm": algorithm}
    shared: dict[str, Any] = {"url": url, "rules": [{**rule, "shards": SHARDS}], "facts": {"user": "alice"}}
    jobs = [{**shared, "tasks": 16, "checks_per_task": 20}] * PROCESSES
    counted = sum(map(Counter, workers.run(jobs)), Counter[str]())
    assert counted == {"within_limit": LIMIT, "over_limit": PROCESSES * 16 * 20 - LIMIT}
    with Limiter(rules_of(shared), store=url) as limiter:
        assert limiter.peek(user="alice").remaining == 0
        limiter.reset(user="alice")
        assert limiter.peek(user="alice").remaining == LIMIT


@pytest.mark.parametrize("algorithm", FIVE)
def test_one_node_gets_all_of_it(url: str, open_limiter: Open, algorithm: str) -> None:
    limiter = open_limiter(sharded(10, algorithm), store=url)
    assert [limiter.check("alice").allowed for _ in range(12)] == [True] * 10 + [False] * 2
    limiter.reset("alice")
    decisions = [limiter.check("alice", cost=cost) for cost in (7, 4, 3, 11, 0)]
    assert [decision.allowed for decision in decisions] == [True, False, True, False, True]
    assert [decision.remaining for decision in decisions] == [3, 3, 0, 0, 0]
    assert decisions[3].retry_after is None
    limiter.reset("alice")
    assert sum(decision.allowed for decision in limiter.check_many(["alice"] * 12)) == 10


def test_a_cluster_has_them_on_several_servers(cluster: Cluster) -> None:
    cluster.empty()
    with Limiter(sharded(64, shards=16), store=cluster.url + PATIENT) as limiter:
        for _ in range(64):
            assert limiter.check("alice")
        keys = []
        for server in cluster.servers:
            with server.client() as client:
                keys.append({key.decode() for key in client.keys("*") or []})
        assert all(keys), "a server has nothing to do"
        names = {"alice", *(f"alice#{shard}" for shard in range(1, 16))}
        assert set.union(*keys) == {f"rl:user:{{{name}}}:r:fixed_window" for name in names}


def test_what_others_hold_is_charged_all_or_nothing(url: str, open_limiter: Open) -> None:
    """A rule with shards beside one without: whoever refuses, nobody is charged."""
    rules = [
        Rule(id="many", quota=calm(8), dimension="global", shards=4),
        Rule(id="each", quota=calm(3)),
        Rule(id="shadow", quota=calm(4), dimension="global", shards=4, action="log_only"),
    ]
    limiter = open_limiter(rules, store=url)
    for user in ("alice", "bob", "carol"):
        allowed = [limiter.check(user=user).allowed for _ in range(4)]
        assert allowed == ([True] * 2 + [False] * 2 if user == "carol" else [True] * 3 + [False])
    left = {status.rule: status.remaining for status in limiter.peek(user="carol").limits}
    assert left == {"many": 0, "each": 1, "shadow": 0}
    assert limiter.peek(user="dave").rule == "many"


def test_the_first_to_be_refused_is_told_by_the_shadow(redis_url: str, open_limiter: Open) -> None:
    rules = [Rule(id="shadow", quota=calm(4), shards=4, action="log_only")]
    limiter = open_limiter(rules, store=redis_url)
    assert [limiter.check("alice").reason for _ in range(5)] == ["within_limit"] * 4 + ["shadow"]
    limiter.reset("alice")
    reasons = [decision.reason for decision in limiter.check_many([{"user": "alice", "cost": 3}] * 2)]
    assert reasons == ["within_limit", "shadow"]
    assert limiter.check("alice").reason == "within_limit"


def test_a_key_gets_the_first_answer_from_every_node(url: str) -> None:
    with Limiter(sharded(5), store=url) as one, Limiter(sharded(5), store=url) as other:
        for number in range(5):
            answers = [limiter.check("alice", idempotency_key=f"k{number}") for limiter in (one, other, one)]
            assert all(answers)
            assert len({answer.reset_at for answer in answers}) == 1
        refused = [limiter.check("alice", idempotency_key="last").allowed for limiter in (one, other)]
        assert refused == [False, False]
        assert other.peek("alice").remaining == 0
        other.give_back(answers[1])  # a repetition, which charged nothing
        assert one.peek("alice").remaining == 0
        other.give_back(answers[0])
        assert one.peek("alice").remaining == 1
        with pytest.raises(IdempotencyConflict):
            other.check("bob", idempotency_key="last")


def test_reservations_are_settled_where_they_were_charged(url: str) -> None:
    with Limiter(sharded(12), store=url) as one, Limiter(sharded(12), store=url) as other:
        whole = one.reserve("alice", cost=11)
        assert whole
        assert not other.reserve("alice", cost=2)
        assert other.settle(whole.id, 4).refunded == 7
        assert one.peek("alice").remaining == 8
        small = other.reserve("alice", cost=1)
        assert one.settle(small.id, 5).surcharged == 4
        assert one.peek("alice").remaining == 3
        expired = one.reserve("alice", cost=3, ttl=0.001)
        assert expired
        one.clock.sleep(0.01)  # the server's time is the point
        assert one.peek("alice").remaining == 3


def test_floods_of_refusals_cost_a_call_for_each_shard(redis_url: str) -> None:
    clock, noted = FakeClock(), Noted()
    store = RedisStore(f"{redis_url}&remember=1", clock=clock, observer=noted)
    limiter = Limiter(sharded(8, shards=4), store=store, clock=clock)
    assert sum(limiter.check("alice").allowed for _ in range(200)) == 8
    assert len(noted.calls) == 8 + 4
    store.close()


def test_a_shard_whose_server_is_away_is_passed_over(open_limiter: Open) -> None:
    """What the others hold is still there to be used, and not more than that."""
    with Cluster(options=("--cluster-require-full-coverage", "no")) as cluster:
        limiter = open_limiter(sharded(160, shards=16), store=f"{cluster.url}?timeout=0.5")
        limiter.check("alice")
        dead = cluster.servers[1]
        own = sum(cluster.of_slot(slot) is dead for slot in _slots())
        assert 0 < own < 16
        kill(dead)
        reasons = Counter(limiter.check("alice").reason for _ in range(400))
        assert reasons["over_limit"] == 0, "what is left at the dead server, nobody knows"
        assert 160 - own * 10 - 16 <= reasons["within_limit"] <= 160 - own * 10


def _slots() -> list[int]:
    return [slot_of_key("{alice}"), *(slot_of_key(f"{{alice#{shard}}}") for shard in range(1, 16))]


@pytest.mark.parametrize("algorithm", FIVE)
def test_memory_and_server_agree(redis_url: str, algorithm: str) -> None:
    clock = FakeClock(start=1_000.0)
    quota = Quota(11, 10, algorithm=algorithm)  # type: ignore[arg-type]
    rules = [Rule(id="r", quota=quota, shards=3)]
    here = Limiter(rules, store=MemoryStore(clock=clock), clock=clock)
    there = Limiter(rules, store=redis_url, clock=clock)
    here._store.home.start = there._store.home.start = 1
    for step in range(120):
        cost = (1, 1, 3, 1, 0, 5)[step % 6]
        assert here.check("alice", cost=cost) == there.check("alice", cost=cost)
        assert here.peek("alice", cost=cost) == there.peek("alice", cost=cost)
        clock.advance(0.37)
    there.close()
