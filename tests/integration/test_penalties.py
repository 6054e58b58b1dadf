"""Penalties through a limiter, in memory and on real servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import pytest

from headgate import AsyncLimiter, Decision, IdempotencyConflict, Limiter, Rule
from headgate.core.check import Check, Client, Group, Penalty, Result, Terms
from headgate.core.key import key_template
from headgate.core.quota import Quota
from headgate.rules import Exemption, Penalties, Snapshot
from headgate.stores.memory import MemoryStore
from headgate.stores.redis import script
from headgate.stores.redis.encoding import Encoder
from headgate.stores.redis.sync import RedisStore
from headgate.testing import FakeClock
from tests.conftest import TIMEOUT
from tests.kinds import each_kind
from tests.servers import Server, binaries

START: Final = 1_700_000_040  # the first moment of a minute
ON: Final = Penalties(enabled=True, detection_window="1h", violation_threshold=3, multipliers=[1, 2, 4, 8])
SEARCH: Final = Rule(id="search", quota="2/minute fixed_window", message="Slow down.", status=430)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture(scope="module", params=["memory", *each_kind()])
def any_server(request: pytest.FixtureRequest) -> Iterator[Server | None]:
    """No server for the memory store, and each kind that is at hand, in turn."""
    if request.param == "memory":
        yield None
    else:
        with Server(binaries()[request.param]) as server:
            yield server


@pytest.fixture
def url(any_server: Server | None) -> str:
    if any_server is None:
        return "memory://"
    with any_server.client() as client:
        client.flushall()
    return f"{any_server.url}?{TIMEOUT}"


@pytest.fixture
def limiter(url: str, clock: FakeClock) -> Iterator[Limiter]:
    with Limiter(Snapshot([SEARCH], penalties=ON), store=url, clock=clock) as limiter:
        yield limiter


def brief(decision: Decision) -> tuple[str, float | None]:
    return decision.reason, decision.retry_after


def use_up(limiter: Limiter, times: int = 2, **facts: Any) -> None:
    for _ in range(times):
        assert limiter.check(**facts)


def provoke(limiter: Limiter, **facts: Any) -> Decision:
    """Run into the limit until the client is blocked."""
    decision = limiter.check(**facts)
    while decision.reason != "penalty":
        decision = limiter.check(**facts)
    return decision


def test_the_escalation_by_hand(limiter: Limiter, clock: FakeClock) -> None:
    use_up(limiter, user="alice")
    assert brief(limiter.check(user="alice")) == ("over_limit", 60.0)
    assert brief(limiter.check(user="alice")) == ("over_limit", 60.0)
    for minutes in (1, 2, 4, 8, 8):
        # The refusal that begins a block already tells of it.
        began = limiter.check(user="alice", cost=3 if minutes > 1 else 1)
        if minutes == 1:
            assert brief(began) == ("penalty", 60.0)
        else:  # a cost that never fits stays never; the block is there all the same
            assert brief(began) == ("penalty", None)
        assert (began.rule, began.status, began.message, began.state) == ("search", 430, "Slow down.", "throttled")
        assert brief(limiter.check(user="alice")) == ("penalty", minutes * 60.0)
        clock.advance(minutes * 60 - 0.000_001)
        last = limiter.check(user="alice")
        assert last.reason == "penalty"
        assert last.retry_after == pytest.approx(0.000_001)
        assert (last.rule, last.status, last.limit, last.remaining) == ("search", 430, 2, 0)
        clock.advance(0.000_001)
        assert limiter.check(user="alice").reason == "within_limit"


def test_blocked_checks_charge_nothing_and_are_no_violations(limiter: Limiter, clock: FakeClock) -> None:
    use_up(limiter, user="alice")
    provoke(limiter, user="alice")
    for _ in range(50):
        assert brief(limiter.check(user="alice")) == ("penalty", 60.0)
    clock.advance(60)
    use_up(limiter, user="alice")
    assert brief(limiter.check(user="alice")) == ("penalty", 120.0)  # the second multiplier, not the last


def test_only_the_client_itself_is_blocked(limiter: Limiter) -> None:
    use_up(limiter, user="alice")
    provoke(limiter, user="alice")
    assert limiter.check(user="bob")
    assert limiter.check(user="alice", ip="192.0.2.7").reason == "penalty"  # the user says more than the address
    assert limiter.check(user="alice", api_key="k").reason == "over_limit"  # and the key more than the user


def test_violations_leave_the_detection_window(limiter: Limiter, clock: FakeClock) -> None:
    for _ in range(5):
        use_up(limiter, user="alice")
        assert limiter.check(user="alice").reason == "over_limit"
        clock.advance(1800)  # never three within an hour
    use_up(limiter, user="alice")
    limiter.check(user="alice")
    clock.advance(-0.000_001)
    assert limiter.check(user="alice").reason == "penalty"  # … until one more comes a microsecond earlier


def test_the_binding_rule_says_how_long(url: str, clock: FakeClock) -> None:
    rules = [
        Rule(id="minute", quota="2/minute fixed_window"),
        Rule(id="hour", quota="3/hour fixed_window", endpoints=["/a"]),
        Rule(id="watched", quota="1/day fixed_window", action="log_only"),
    ]
    penalties = Penalties(enabled=True, violation_threshold=1, multipliers=[2])
    with Limiter(Snapshot(rules, penalties=penalties), store=url, clock=clock) as limiter:
        use_up(limiter, user="alice", endpoint="/a")
        assert brief(limiter.check(user="alice", endpoint="/a")) == ("penalty", 120.0)
        clock.advance(120)
        assert limiter.check(user="alice", endpoint="/a")
        decision = limiter.check(user="alice", endpoint="/a")  # fits the minute, not the hour
        assert (decision.rule, *brief(decision)) == ("hour", "penalty", 7200.0)
        elsewhere = limiter.check(user="alice", endpoint="/b")  # where that rule does not apply
        assert (elsewhere.rule, elsewhere.limit, *brief(elsewhere)) == ("hour", 3, "penalty", 7200.0)


def test_a_shadow_neither_counts_nor_is_blocked(url: str, clock: FakeClock) -> None:
    rules = [
        Rule(id="real", quota="1/minute", endpoints=["/real"]),
        Rule(id="shadow", quota="1/minute fixed_window", action="log_only"),
    ]
    penalties = Penalties(enabled=True, violation_threshold=1, multipliers=[1])
    with Limiter(Snapshot(rules, penalties=penalties), store=url, clock=clock) as limiter:
        for _ in range(20):
            assert limiter.check(user="alice", endpoint="/other")
        assert limiter.check(user="alice", endpoint="/real")
        assert limiter.check(user="alice", endpoint="/real").reason == "penalty"
        assert limiter.check(user="alice", endpoint="/other").reason == "shadow"


def test_requests_without_an_identity_are_not_penalised(url: str, clock: FakeClock) -> None:
    rules = [Rule(id="all", quota="1/minute fixed_window", dimension="global")]
    with Limiter(Snapshot(rules, penalties=ON), store=url, clock=clock) as limiter:
        assert limiter.check(endpoint="/")
        assert {limiter.check(endpoint="/").reason for _ in range(9)} == {"over_limit"}
        assert [limiter.check(tenant="acme").reason for _ in range(3)] == ["over_limit", "over_limit", "penalty"]


def test_the_exempt_are_not_blocked(url: str, clock: FakeClock) -> None:
    free = Exemption(type="ip", value="10.0.0.0/8")
    with Limiter(Snapshot([SEARCH], penalties=ON, exemptions=[free]), store=url, clock=clock) as limiter:
        use_up(limiter, user="alice")
        provoke(limiter, user="alice")
        assert limiter.check(user="alice", ip="10.1.2.3").reason == "exempt"


def test_a_peek_shows_a_block_and_records_nothing(limiter: Limiter, clock: FakeClock) -> None:
    use_up(limiter, user="alice")
    for _ in range(9):
        assert limiter.peek(user="alice").reason == "over_limit"
    provoke(limiter, user="alice")
    assert brief(limiter.peek(user="alice")) == ("penalty", 60.0)
    clock.advance(60)
    assert limiter.peek(user="alice")


def test_reset_lifts_the_block_and_the_violations(limiter: Limiter) -> None:
    use_up(limiter, user="alice")
    provoke(limiter, user="alice")
    assert limiter.check(user="alice").reason == "penalty"
    limiter.reset(user="alice")
    use_up(limiter, user="alice")
    assert [limiter.check(user="alice").reason for _ in range(3)] == ["over_limit", "over_limit", "penalty"]


def test_reset_lifts_the_blocks_of_everybody_whom_the_facts_identify(limiter: Limiter) -> None:
    use_up(limiter, user="alice")
    provoke(limiter, user="alice")
    limiter.reset(user="alice", api_key="k", ip="192.0.2.7")
    assert limiter.check(user="alice")


def test_idempotency_keys_outlive_a_block(limiter: Limiter, clock: FakeClock) -> None:
    first = limiter.check(user="alice", idempotency_key="a")
    use_up(limiter, 1, user="alice")
    provoke(limiter, user="alice")
    assert limiter.check(user="alice", idempotency_key="a") == first
    refused = limiter.check(user="alice", idempotency_key="b")
    assert brief(refused) == ("penalty", 60.0)
    clock.advance(60)
    assert limiter.check(user="alice", idempotency_key="b") == refused
    assert limiter.check(user="alice").reason == "within_limit"  # which that old answer does not block
    with pytest.raises(IdempotencyConflict):
        limiter.check(user="bob", idempotency_key="b")


def test_the_answer_that_begins_a_block_is_repeated(limiter: Limiter) -> None:
    use_up(limiter, user="alice")
    limiter.check(user="alice")
    limiter.check(user="alice")
    began = limiter.check(user="alice", idempotency_key="c")
    assert brief(began) == ("penalty", 60.0)
    assert limiter.check(user="alice", idempotency_key="c") == began


@pytest.mark.parametrize("first", [True, False])
def test_an_answer_from_before_penalties_were_switched_is_not_misread(url: str, clock: FakeClock, first: bool) -> None:
    store = MemoryStore(clock=clock) if url == "memory://" else RedisStore(url, clock=clock)
    for on in (first, not first):
        limiter = Limiter(Snapshot([SEARCH], penalties=ON if on else Penalties()), store=store, clock=clock)
        if on is first:
            assert limiter.check(user="alice", idempotency_key="a")
        else:
            with pytest.raises(IdempotencyConflict):
                limiter.check(user="alice", idempotency_key="a")
        assert limiter.peek(user="alice").remaining == 1
    store.close()


def test_check_many_and_wait(limiter: Limiter, clock: FakeClock) -> None:
    many = limiter.check_many([{"user": "alice"}] * 7 + ["bob"])
    assert [d.reason for d in many] == ["within_limit"] * 2 + ["over_limit"] * 2 + ["penalty"] * 3 + ["within_limit"]
    assert not limiter.wait("alice", timeout=59)
    assert limiter.wait("alice", timeout=60)
    assert clock.now() == START + 60


def test_a_clock_that_goes_back_makes_no_block_longer(limiter: Limiter, clock: FakeClock) -> None:
    use_up(limiter, user="alice")
    provoke(limiter, user="alice")
    clock.advance(-500)
    assert brief(limiter.peek(user="alice")) == ("penalty", 60.0)
    assert brief(limiter.check(user="alice")) == ("penalty", 60.0)
    clock.advance(60)
    assert limiter.peek(user="alice").reason != "penalty"


def test_turning_penalties_off_ends_all_blocks(url: str, clock: FakeClock) -> None:
    rules = [Rule(id="a", quota="1/minute fixed_window")]
    store = MemoryStore(clock=clock) if url == "memory://" else RedisStore(url, clock=clock)
    on = Limiter(Snapshot(rules, penalties=ON), store=store, clock=clock)
    off = Limiter(Snapshot(rules), store=store, clock=clock)
    use_up(on, 1, user="alice")
    provoke(on, user="alice")
    assert off.check(user="alice").reason == "over_limit"
    store.close()


def test_a_rule_that_has_gone_is_stood_for_by_one_that_applies(url: str, clock: FakeClock) -> None:
    store = MemoryStore(clock=clock) if url == "memory://" else RedisStore(url, clock=clock)
    old = Limiter(Snapshot([SEARCH], penalties=ON), store=store, clock=clock)
    new = Limiter(Snapshot([Rule(id="new", quota="9/minute")], penalties=ON), store=store, clock=clock)
    use_up(old, user="alice")
    provoke(old, user="alice")
    decision = new.check(user="alice")
    assert (decision.rule, decision.limit, *brief(decision)) == ("new", 9, "penalty", 60.0)
    store.close()


# What only the stores themselves can show


@pytest.fixture
def store(url: str, clock: FakeClock) -> Iterator[MemoryStore | RedisStore]:
    store = MemoryStore(clock=clock) if url == "memory://" else RedisStore(url, clock=clock)
    yield store
    store.close()


def ask(store: MemoryStore | RedisStore, *limits: int, cost: int = 1, peek: bool = False) -> Result:
    """A check of a rule for each limit, per minute, two minutes, and so on."""
    checks = []
    for minutes, limit in enumerate(limits, start=1):
        quota = Quota(limit, 60 * minutes, algorithm="fixed_window")
        checks.append(Check(str(minutes), key_template("user", str(minutes), "fixed_window"), "alice", quota, cost))
    penalty = Penalty(Client("user", "alice"), Terms(3_600_000_000, 1, (1,)))
    (result,) = store.check([Group(tuple(checks), peek, None, penalty)])
    assert isinstance(result, Result)
    return result


def test_a_look_at_a_limit_that_was_lowered_is_no_violation(store: MemoryStore | RedisStore) -> None:
    ask(store, 5, cost=5)
    look = ask(store, 1, cost=0)
    assert look.outcomes[0].wait_us > 0
    assert look.block is None


def test_of_several_refusals_never_binds_first(store: MemoryStore | RedisStore) -> None:
    ask(store, 9, 9, 9, cost=9)
    block = ask(store, 9, 1, 9, cost=2).block
    assert block == (120_000_000, "2")


def test_a_peek_by_a_clock_that_went_back_leaves_the_block_as_it_is(
    store: MemoryStore | RedisStore, clock: FakeClock
) -> None:
    ask(store, 1, cost=2)
    clock.advance(-30)
    assert ask(store, 1, peek=True).block == (60_000_000, "1")
    clock.advance(30)
    assert ask(store, 1, peek=True).block == (60_000_000, "1")
    clock.advance(60)
    assert ask(store, 1, peek=True).block is None


# On real servers


def test_every_key_has_a_time_to_live_and_the_set_is_trimmed(redis_server: Server, redis_url: str) -> None:
    """By the server's own clock: a second longer than it matters."""
    penalties = Penalties(enabled=True, detection_window="1h", violation_threshold=1_000, multipliers=[3])
    with (
        Limiter(Snapshot([SEARCH], penalties=penalties), store=redis_url) as limiter,
        redis_server.client() as client,
    ):
        use_up(limiter, user="a}b")
        limiter.check_many([{"user": "a}b"}] * 999)
        violations, block = "rl:penalty:{a%7Db}:user:violations", "rl:penalty:{a%7Db}:user:block"
        assert 997 <= client.zcard(violations) <= 999  # a new minute, with two to use up, may have begun
        assert not client.exists(block)
        while limiter.check(user="a}b").reason != "penalty":
            pass
        assert client.zcard(violations) == 1_000
        assert 3_590_000 < client.pttl(violations) <= 3_601_000
        assert 170_000 < client.pttl(block) <= 181_000
        scores = [score for _, score in client.zrange(violations, 0, -1, withscores=True)]
        assert scores == sorted(scores)
        assert all(client.pttl(key) > 0 for key in client.scan_iter())


def test_no_more_than_1000_violations_are_kept(redis_server: Server, redis_url: str, clock: FakeClock) -> None:
    penalties = Penalties(enabled=True, violation_threshold=1_000, multipliers=[1])
    with (
        Limiter(Snapshot([SEARCH], penalties=penalties), store=redis_url, clock=clock) as limiter,
        redis_server.client() as client,
    ):
        limiter.check_many([{"user": "alice", "cost": 3}] * 1_000)
        for _ in range(3):
            clock.advance(60)
            assert limiter.check(user="alice", cost=3).reason == "penalty"
        newest = "rl:penalty:{alice}:user:violations"
        assert client.zcard(newest) == 1_000
        assert client.zrange(newest, 0, 0) == [b"0000000000000003"]


def calls(server: Server) -> dict[str, int]:
    with server.client() as client:
        return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in client.info("commandstats").items()}


def test_a_blocked_client_costs_no_round_trip(redis_server: Server, redis_url: str, clock: FakeClock) -> None:
    with Limiter(Snapshot([SEARCH], penalties=ON), store=redis_url, clock=clock) as limiter:
        use_up(limiter, user="alice")
        provoke(limiter, user="alice")
        before = calls(redis_server)
        for _ in range(100):
            assert limiter.check(user="alice").reason == "penalty"
            assert limiter.peek(user="alice").reason == "penalty"
        assert limiter.check_many([{"user": "alice"}] * 5)[4].reason == "penalty"
        assert calls(redis_server)["evalsha"] == before["evalsha"]
        clock.advance(60)
        assert limiter.check(user="alice")
        assert calls(redis_server)["evalsha"] == before["evalsha"] + 1


def test_another_node_learns_of_a_block_by_its_first_check(
    redis_server: Server, redis_url: str, clock: FakeClock
) -> None:
    snapshot = Snapshot([SEARCH], penalties=ON)
    with (
        Limiter(snapshot, store=redis_url, clock=clock) as here,
        Limiter(snapshot, store=redis_url, clock=clock) as there,
    ):
        use_up(here, user="alice")
        provoke(here, user="alice")
        clock.advance(20)
        assert brief(there.check(user="alice")) == ("penalty", 40.0)
        before = calls(redis_server)["evalsha"]
        assert brief(there.check(user="alice")) == ("penalty", 40.0)
        assert calls(redis_server)["evalsha"] == before
        here.reset(user="alice")
        assert here.check(user="alice")
        assert brief(there.check(user="alice")) == ("penalty", 40.0)  # until the block's end, and no longer
        clock.advance(40)
        assert there.check(user="alice")


def test_blocked_clients_stay_so_while_the_server_is_away(redis_server: Server, clock: FakeClock) -> None:
    with Server(redis_server.binary) as server:
        limiter = Limiter(Snapshot([SEARCH], penalties=ON), store=f"{server.url}?{TIMEOUT}", clock=clock)
        use_up(limiter, user="alice")
        provoke(limiter, user="alice")
        server.stop()
        assert limiter.check(user="alice").reason == "penalty"
        assert limiter.check(user="bob").reason == "fail_open"
        limiter.close()


def test_eight_tasks_at_once_count_every_violation_once(redis_server: Server, redis_url: str, clock: FakeClock) -> None:
    """Each with connections of its own. Which check is refused how is up to chance; how many are is not."""

    async def checks(limiter: AsyncLimiter) -> list[str]:
        async with limiter:
            return [(await limiter.check(user="alice")).reason for _ in range(20)]

    async def run() -> Counter[str]:
        snapshot = Snapshot([Rule(id="r", quota="30/minute gcra")], penalties=ON)
        limiters = [AsyncLimiter(snapshot, store=redis_url, clock=clock) for _ in range(8)]
        return Counter(reason for reasons in await asyncio.gather(*map(checks, limiters)) for reason in reasons)

    assert asyncio.run(run()) == {"within_limit": 30, "over_limit": 2, "penalty": 128}
    with redis_server.client() as client:
        assert client.zcard("rl:penalty:{alice}:user:violations") == 3


def test_off_they_cost_nothing(redis_server: Server, redis_url: str, clock: FakeClock) -> None:
    quota = Quota(2, 60, algorithm="fixed_window")
    check = Check("search", key_template("user", "search", "fixed_window"), "alice", quota)
    template, request = Encoder("rl").group(Group((check,)))
    command = template.command([request], None)
    assert command[2:4] == (1, "rl:user:{alice}:search:fixed_window")
    assert command[4:] == ("", 0, 1, "fixed_window", 2, 60_000_000, 2, 1, 1)
    text = script.with_text(command)[1]
    assert isinstance(text, str)
    assert "ZADD" not in text
    with Limiter([SEARCH], store=redis_url, clock=clock) as limiter, redis_server.client() as client:
        limiter.check(user="alice")
        before = calls(redis_server)
        for _ in range(20):
            limiter.check(user="alice")
        after = calls(redis_server)
        grown = {name: after[name] - before.get(name, 0) for name in after}
        ours = {name: many for name, many in grown.items() if many and not name.startswith(("client", "hello", "info"))}
        assert ours == {"evalsha": 20, "get": 20, "setrange": 1}
        assert list(client.scan_iter()) == [b"rl:user:{alice}:search:fixed_window"]
