"""Programs on one server: everything that Headgate writes begins with the store's prefix, and only names are shared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from headgate import AsyncLimiter, Limiter, RateLimited, Rule
from headgate.regions import Member, Region
from headgate.rules.penalties import Penalties
from headgate.rules.snapshot import Snapshot
from headgate.rules.sources.database import DatabaseSource
from headgate.rules.users import Override, User
from headgate.stores.memory import MemoryStore
from tests.conftest import TIMEOUT
from tests.integration.limiters import ALGORITHMS, AnyLimiter, Awaited, Open, calm
from tests.servers import Server
from tests.topologies import Cluster, SentinelTrio
from tests.waiting import LATEST, until

PREFIX = "prod:shop-a"
SHARDS = 3

RULES = [
    *(Rule(id=f"by-{name}", quota=calm(50, name)) for name in ALGORITHMS),
    Rule(id="sharded", quota=calm(60, "fixed_window"), shards=SHARDS),
    Rule(id="leased", quota=calm(1_000, "gcra"), sync="leased"),
    Rule(id="local", quota=calm(50), failure_mode="local"),
    Rule(id="everybody", quota=calm(1_000), dimension="global"),
]
USERS = [User(id="override", overrides=[Override(rule="by-gcra", limit=7, window="1h")])]
EXPECTED = {
    *(f":by-{name}:{name}" for name in ALGORITHMS),
    *(f"#{shard}}}:sharded" for shard in range(1, SHARDS)),
    *("}:leased:", "}:local:", ":global:{", "}:by-gcra:gcra:1h"),
    *(":idempotency:{", ":nodes:{nodes}", ":penalty:{bob}:user:block", ":penalty:{bob}:user:violations"),
    *("{reservations}:open", "{reservations}:late", "{reservations}:records", ":refunds"),
    *("}:nodes/nodes:", "}:nodes/GET%20%2F:", "}:nodes/tests.integration.test_prefix."),
}


def use(limiter: Any, method: str, *args: Any, **options: Any) -> Any:
    """Call a method of a limiter of either kind."""
    if isinstance(limiter, Awaited):
        return limiter.run(getattr(limiter.limiter, method)(*args, **options))
    return getattr(limiter, method)(*args, **options)


def exercise(open_limiter: Open, url: str) -> AnyLimiter:
    """Have a store keep something of every kind. Nothing may fail: what does is decided by mode `closed`.

    Returns a limiter that looks for reservations that have expired when it settles one.
    """

    def open_one(rules: Any) -> Any:
        return open_limiter(rules, store=url, failure_mode="closed", name="nodes")

    everything: AnyLimiter = open_one(Snapshot(RULES, users=USERS))
    everything.check(user="to be reset")
    everything.reset(user="to be reset")
    for user in ("alice", "override"):
        assert everything.check(user=user).reason == "within_limit"
        assert everything.check(user=user, idempotency_key=f"order of {user}").reason == "within_limit"
    many = everything.check_many([{"user": "alice"}, {"user": "carol", "cost": 2}, {"user": "a b{c}"}])
    assert {decision.reason for decision in many} == {"within_limit"}
    use(everything, "give_back", everything.check(user="alice"))
    use(everything, "correct", everything.check(user="alice", cost=3), 1)
    reserve_some(everything)

    penalised = open_one(
        Snapshot([Rule(id="once", quota=calm(1))], penalties=Penalties(enabled=True, violation_threshold=1))
    )
    assert [penalised.check(user="bob").reason for _ in range(3)] == ["within_limit", "penalty", "penalty"]

    notation = open_one(calm(1))
    assert [notation.check("alice").reason for _ in range(2)] == ["within_limit", "over_limit"]
    own = notation.limiter if isinstance(notation, Awaited) else notation
    assert asked(notation, own.sibling(calm(1), name="GET /"), "alice").reason == "within_limit"
    decorate(notation, own)
    return everything


def reserve_some(limiter: Any) -> None:
    """Reservations that stay open, that expire at once, and that are settled with less and with more."""
    use(limiter, "reserve", user="alice", cost=2)
    use(limiter, "reserve", user="alice", cost=2, ttl=0.001)
    for cost in (1, 5):
        assert limiter.settle(use(limiter, "reserve", user="alice", cost=2).id, cost)


def asked(limiter: Any, sibling: Any, subject: str) -> Any:
    return limiter.run(sibling.check(subject)) if isinstance(limiter, Awaited) else sibling.check(subject)


def decorate(limiter: Any, own: Limiter | AsyncLimiter) -> None:
    if isinstance(own, Limiter):

        @own.limit(calm(1))
        def called_here() -> None: ...

        called_here()
        with pytest.raises(RateLimited):
            called_here()
    else:

        @own.limit(calm(1))
        async def called() -> None: ...

        limiter.run(called())
        with pytest.raises(RateLimited):
            limiter.run(called())


def keys_of(*servers: Server) -> set[str]:
    """The keys of all databases of all servers."""
    found = set()
    for server in servers:
        with server.client() as client:
            for database in client.info("keyspace"):
                with redis.Redis(port=server.port, db=int(database.removeprefix("db"))) as one:
                    found |= {key.decode() for key in one.scan_iter()}
    return found


def assert_all_begin_with_it(limiter: AnyLimiter, keys: Callable[[], set[str]], expected: set[str] = EXPECTED) -> None:
    """Wait until there is a key of every kind; all of them have to have the prefix."""
    missing = set(expected)

    def all_are_there() -> bool:
        limiter.settle("no such reservation", 0)  # gives back those that have expired
        found = keys()
        assert {key for key in found if not key.startswith(f"{PREFIX}:")} == set()
        missing.intersection_update(part for part in expected if not any(part in key for key in found))
        return not missing

    try:
        until(all_are_there)
    except AssertionError as error:
        raise AssertionError(f"there is no key with {sorted(missing)} in {sorted(keys())}") from error


@contextmanager
def confined(server: Server) -> Iterator[str]:
    """A user of the server who may touch nothing without the prefix: what tries is an error."""
    with server.client() as client:
        rights = ("resetkeys", f"~{PREFIX}:*", "resetchannels", f"&{PREFIX}:*", "+@all")
        client.execute_command("ACL", "SETUSER", "gate", "on", ">secret", *rights)
        yield f"redis://gate:secret@127.0.0.1:{server.port}/0?prefix={PREFIX}&{TIMEOUT}"
        client.execute_command("ACL", "DELUSER", "gate")


@pytest.mark.usefixtures("redis_url")
def test_nothing_is_written_without_the_prefix(redis_server: Server, open_limiter: Open) -> None:
    with confined(redis_server) as url:
        limiter = exercise(open_limiter, url)
        assert_all_begin_with_it(limiter, lambda: keys_of(redis_server))
        open_limiter.close()


@pytest.mark.usefixtures("redis_url")
def test_what_regions_write_has_it_too(redis_server: Server, open_limiter: Open) -> None:
    rules = [
        Rule(id=mode, quota=calm(100), dimension="user", regions=mode)
        for mode in ("central", "quota", "quota_auto", "synced")
    ]
    with confined(redis_server) as url:
        far = url.replace("/0?", "/1?")
        region = Region("eu", [Member("eu"), Member("us", far)], central="us", interval=0.1)
        limiter = open_limiter(rules, store=url, region=region, failure_mode="closed")

        def keys() -> set[str]:
            assert limiter.check(user="alice").reason == "within_limit"
            return keys_of(redis_server)

        assert_all_begin_with_it(limiter, keys, {":central:", ":quota:", ":quota_auto:", ":synced:", ":shares"})
        open_limiter.close()


@pytest.mark.usefixtures("redis_url")
def test_the_channel_of_rule_changes(redis_server: Server, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/rules.db"
    with (
        confined(redis_server) as url,
        closing(DatabaseSource(database, redis=url)) as source,
        closing(DatabaseSource(database, redis=url, poll=60)) as other,
        redis_server.client() as client,
    ):
        until(lambda: client.pubsub_numsub(f"{PREFIX}:rules") == [(f"{PREFIX}:rules".encode(), 2)], "both listen")
        assert client.pubsub_channels() == [f"{PREFIX}:rules".encode()]
        with source.changes() as changes, changes.begin("a test") as change:
            change.create_rule(RULES[0])
        until(lambda: len(other.holder.current.rules) == 1, "the other hears of it")


def test_behind_sentinel(open_limiter: Open) -> None:
    with SentinelTrio() as trio:
        limiter = exercise(open_limiter, f"{trio.url}?prefix={PREFIX}&{TIMEOUT}")
        assert_all_begin_with_it(limiter, lambda: keys_of(trio.master()))
        open_limiter.close()


def test_on_a_cluster(cluster: Cluster, open_limiter: Open) -> None:
    cluster.empty()
    limiter = exercise(open_limiter, f"{cluster.url}?prefix={PREFIX}&{TIMEOUT}")
    assert_all_begin_with_it(limiter, lambda: keys_of(*cluster.masters))


def test_embedded(tmp_path: Path, open_limiter: Open) -> None:
    limiter = exercise(open_limiter, f"embedded://{tmp_path}/c?prefix={PREFIX}&{TIMEOUT}")
    with redis.Redis(unix_socket_path=f"{tmp_path}/c/server.sock") as client:
        assert_all_begin_with_it(limiter, lambda: {key.decode() for key in client.scan_iter()})
    open_limiter.close()


RULE = [Rule(id="search", quota=calm(5))]


def test_programs_with_prefixes_of_their_own_share_nothing(redis_url: str, open_limiter: Open) -> None:
    shops = [
        open_limiter(RULE, store=f"{redis_url}&prefix={prefix}") for prefix in ("shop-a", "shop-b", "shop-a", "rl")
    ]
    plain = open_limiter(RULE, store=redis_url)
    assert [shops[0].check("alice", idempotency_key="one").remaining for _ in range(2)] == [4, 4]
    assert [shop.peek("alice").remaining for shop in (*shops, plain)] == [4, 5, 4, 5, 5]
    assert shops[1].check("alice", idempotency_key="one", cost=2).remaining == 3  # no conflict with the other's
    shops[1].reset("alice")
    assert [shop.peek("alice").remaining for shop in (*shops, plain)] == [4, 5, 4, 5, 5]
    assert plain.check("alice").remaining == shops[3].peek("alice").remaining == 4
    shops[2].reset("alice")
    assert shops[0].peek("alice").remaining == 5


def test_a_reservation_is_one_of_its_prefix(redis_url: str, open_limiter: Open) -> None:
    one, other = (open_limiter(RULE, store=f"{redis_url}&prefix={prefix}") for prefix in ("shop-a", "shop-b"))
    reserved = use(one, "reserve", "alice", cost=3)
    assert not other.settle(reserved.id, 1)
    assert one.settle(reserved.id, 1)
    assert one.peek("alice").remaining == 4


def test_nodes_are_counted_within_a_prefix(redis_url: str, open_limiter: Open) -> None:
    local = [Rule(id="r", quota=calm(5), failure_mode="local")]
    limiters: list[Any] = [
        open_limiter(local, store=f"{redis_url}&prefix={prefix}") for prefix in ("shop-a", "shop-a", "shop-b")
    ]

    def nodes() -> list[int]:
        for limiter in limiters:
            limiter.check(user="alice")
        engines = [getattr(one, "limiter", one)._engine for one in limiters]
        return [engine.fallback.shares.standing.nodes for engine in engines]

    until(lambda: nodes() == [2, 2, 1], "they know of each other")


def test_a_limits_own_nodes_are_those_of_its_limiter_and_its_name(redis_server: Server, redis_url: str) -> None:
    async def main() -> None:
        shops = [
            AsyncLimiter([], store=redis_url, name=name, failure_mode="local")
            for name in ("shop-a", "shop-b", "shop-a")
        ]
        routes = [shop.sibling("5/day", name="GET /") for shop in shops]

        async def nodes() -> list[int]:
            for limiter in routes:
                await limiter.check("alice")
            return [limiter._engine.fallback.shares.standing.nodes for limiter in routes]

        deadline = asyncio.get_running_loop().time() + LATEST
        while (found := await nodes()) != [2, 1, 2]:
            assert asyncio.get_running_loop().time() < deadline, found
            await asyncio.sleep(0.05)
        names = {key for key in keys_of(redis_server) if ":nodes:" in key}
        assert names == {f"rl:nodes:{{shop-{letter}%2FGET%2520%252F}}" for letter in "ab"}
        for shop in shops:
            await shop.close()

    asyncio.run(main())


def route(limiter: Any, subject: str) -> int:
    """Check a limit that a limiter makes for its route `GET /`; what remains."""
    own = getattr(limiter, "limiter", limiter)
    remaining: int = asked(limiter, own.sibling("5/day", name="GET /"), subject).remaining
    return remaining


@pytest.fixture(params=["shared memory", "one server"])
def store(request: pytest.FixtureRequest, redis_url: str) -> str | MemoryStore:
    return redis_url if request.param == "one server" else MemoryStore()


def test_limiters_of_different_names_have_routes_of_their_own(store: Any, open_limiter: Open) -> None:
    one, other, same = (open_limiter([], store=store, name=name) for name in ("shop-a", "shop-b", "shop-a"))
    assert [route(one, "alice"), route(one, "alice"), route(other, "alice"), route(same, "alice")] == [4, 3, 4, 2]


def test_a_limit_of_a_limiters_own_is_never_a_rule_of_the_same_id(store: Any, open_limiter: Open) -> None:
    rules = [Rule(id=name, quota="5/day") for name in ("GET /", "shop-a", "shop-a/GET /", "shop-a/shop-a")]
    notation = open_limiter("5/day", store=store, name="shop-a")
    assert notation.check("alice").remaining == route(notation, "alice") == 4
    assert [status.remaining for status in open_limiter(rules, store=store).peek("alice").limits] == [5] * 4
    assert open_limiter("5/day", store=store, name="shop-a").check("alice").remaining == 3
    assert open_limiter("5/day", store=store, name="shop-b").check("alice").remaining == 4
