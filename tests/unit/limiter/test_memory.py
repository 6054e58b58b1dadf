"""The memory store under a limiter: bounded, whatever floods it; exact, however many threads."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from headgate import AsyncLimiter, Decision, Limiter, Quota, Rule
from headgate.core.check import Check, Group, Outcome, Result
from headgate.core.key import key_template
from headgate.rules.rule import FailureMode
from headgate.rules.snapshot import Snapshot
from headgate.rules.sources.users import CachedDirectory
from headgate.rules.users import Override, User
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.integration.limiters import ALGORITHMS

MAX_KEYS = 100
algorithms = pytest.mark.parametrize("algorithm", ALGORITHMS)


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(max_keys=MAX_KEYS, clock=clock)


@algorithms
def test_it_never_holds_more_than_max_keys(store: MemoryStore, clock: FakeClock, algorithm: str) -> None:
    limiter = Limiter(f"100/minute {algorithm}", store=store)
    users = [f"user-{number}" for number in range(10 * MAX_KEYS)]
    for user in users:
        assert limiter.check(user).reason == "within_limit"
        assert len(store) <= MAX_KEYS
    assert MAX_KEYS / 2 < sum(limiter.peek(user).remaining < 100 for user in users) <= MAX_KEYS


def test_groups_keep_to_the_bound_too(store: MemoryStore, clock: FakeClock) -> None:
    """A key that has no place in the count is never forgotten."""
    rules = [
        Rule(id="user", quota=Quota(100, 60)),
        Rule(id="ip", quota=Quota(100, 60), dimension="ip"),
        Rule(id="tenant", quota=Quota(100, 60), dimension="tenant"),
    ]
    limiter = Limiter(rules, store=store, clock=clock)
    for number in range(10 * MAX_KEYS):
        assert limiter.check(user=number, ip=number, tenant=number).reason == "within_limit"
    remembered = sum(
        status.remaining < 100
        for number in range(10 * MAX_KEYS)
        for status in limiter.peek(user=number, ip=number, tenant=number).limits
    )
    assert MAX_KEYS / 2 < remembered <= MAX_KEYS


def test_the_url_sets_the_bound() -> None:
    limiter = Limiter("1/day", store="memory://?max_keys=3", failure_mode="closed")
    assert [limiter.check(name).reason for name in "abcd"] == ["within_limit"] * 3 + ["fail_closed"]


def test_a_batch_that_there_is_room_for_in_part_is_decided_in_part() -> None:
    limiter = Limiter("1/day", store="memory://?max_keys=2", failure_mode="closed")
    reasons = [decision.reason for decision in limiter.check_many(["alice", "bob", "carol", "alice"])]
    assert reasons == ["within_limit", "within_limit", "fail_closed", "over_limit"]
    reasons = [decision.reason for decision in limiter.check_many(["carol", "dave"])]
    assert reasons == ["fail_closed", "fail_closed"]


@algorithms
def test_what_has_expired_goes_first(store: MemoryStore, clock: FakeClock, algorithm: str) -> None:
    """Keys in use keep their counts as long as there are others that no longer matter."""
    limiter = Limiter(f"100/minute {algorithm}", store=store)
    for number in range(MAX_KEYS // 2):
        limiter.check(f"old-{number}")
    clock.advance(125)  # two windows and a bit
    for number in range(MAX_KEYS // 2):
        limiter.check(f"user-{number}", cost=50)
    clock.advance(5)
    for number in range(MAX_KEYS // 2):
        assert limiter.check(f"new-{number}").reason == "within_limit"
    for number in range(MAX_KEYS // 2):
        assert limiter.peek(f"user-{number}").remaining < 60


def test_what_has_expired_under_one_rule_goes_before_what_has_not_under_another(
    store: MemoryStore, clock: FakeClock
) -> None:
    short = Limiter("100/second", store=store, name="short")
    long = Limiter("100/day", store=store, name="long")
    for number in range(MAX_KEYS // 2):
        short.check(f"user-{number}")
        long.check(f"user-{number}", cost=7)
    clock.advance(5)
    for number in range(MAX_KEYS // 2):
        assert short.check(f"new-{number}").reason == "within_limit"
    for number in range(MAX_KEYS // 2):
        assert long.peek(f"user-{number}").remaining == 93


@algorithms
def test_a_flood_of_new_keys_frees_nobody_who_is_limited(store: MemoryStore, algorithm: str) -> None:
    limiter = Limiter(f"2/day {algorithm}", store=store)
    limited = [f"limited-{number}" for number in range(MAX_KEYS // 2)]
    for name in limited * 2:
        limiter.check(name)
    for number in range(10 * MAX_KEYS):
        assert limiter.check(f"flood-{number}").reason == "within_limit"
    assert [limiter.check(name).reason for name in limited] == ["over_limit"] * len(limited)


@pytest.mark.parametrize(
    ("mode", "reason"), [("open", "fail_open"), ("closed", "fail_closed"), ("local", "local_fallback")]
)
def test_full_of_limited_keys_it_leaves_new_ones_to_the_failure_mode(
    store: MemoryStore, clock: FakeClock, mode: FailureMode, reason: str
) -> None:
    limiter = Limiter("1/day fixed_window", store=store, clock=clock, failure_mode=mode)
    names = [f"limited-{number}" for number in range(MAX_KEYS)]
    assert all(limiter.check(name).reason == "within_limit" for name in names)
    assert [limiter.check(f"new-{number}").reason for number in range(5)] == [reason] * 5
    assert [limiter.check(name).reason for name in names] == ["over_limit"] * MAX_KEYS
    clock.advance(86_400)
    assert limiter.check("new-0").reason == "within_limit"


def test_it_is_full_only_when_every_key_is_limiting(clock: FakeClock) -> None:
    """However many of those that it meets first are."""
    store = MemoryStore(max_keys=2_000, clock=clock)
    limiter = Limiter("10/day", store=store, failure_mode="closed")
    for number in range(1_000):
        limiter.check_many([f"limited-{number}"] * 10)
    for number in range(1_000):
        limiter.check(f"light-{number}")
    assert [limiter.check(f"new-{number}").reason for number in range(200)] == ["within_limit"] * 200


def test_one_expensive_check_does_not_fill_it(store: MemoryStore) -> None:
    """What somebody once paid for one check says nothing about who is limited now."""
    limiter = Limiter("1000/day", store=store, failure_mode="closed")
    limiter.check("expensive", cost=1_000)
    for number in range(2 * MAX_KEYS):
        assert limiter.check(f"user-{number}").reason == "within_limit"
    assert limiter.check("expensive").reason == "over_limit"


def test_a_group_that_finds_no_room_charges_nobody(store: MemoryStore, clock: FakeClock) -> None:
    full = Limiter("1/day", store=store, name="full")
    for number in range(MAX_KEYS - 1):
        full.check(f"limited-{number}")
    pair = Limiter(
        [Rule(id="one", quota=Quota(1, 86_400)), Rule(id="two", quota=Quota(1, 86_400), dimension="ip")],
        store=store,
        clock=clock,
        failure_mode="closed",
    )
    assert pair.check(user="alice", ip="192.0.2.7").reason == "fail_closed"
    assert [status.remaining for status in pair.peek(user="alice", ip="192.0.2.7").limits] == [1, 1]
    assert pair.check(user="alice").reason == "within_limit"


@pytest.fixture
def switching_often() -> Iterator[None]:
    """Threads take turns so often that whatever is not guarded shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


THREADS = 8
EACH = 1_500
LIMIT = 10_000


@algorithms
@pytest.mark.usefixtures("switching_often")
def test_threads_together_get_exactly_the_limit(clock: FakeClock, algorithm: str) -> None:
    limiter = Limiter(Quota(LIMIT, "1d", algorithm=algorithm), clock=clock)  # type: ignore[arg-type]

    def work(_: int) -> int:
        return sum(limiter.check("alice").allowed for _ in range(EACH))

    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(work, range(THREADS))) == LIMIT
    assert limiter.peek("alice").remaining == 0


@pytest.mark.usefixtures("switching_often")
def test_threads_charge_all_rules_or_none(clock: FakeClock) -> None:
    limiter = Limiter(
        [
            Rule(id="user", quota=Quota(1_000, "1d", algorithm="gcra")),
            Rule(id="tenant", quota=Quota(3_000, "1d", algorithm="token_bucket"), dimension="tenant"),
        ],
        clock=clock,
    )

    def work(number: int) -> int:
        facts: dict[str, Any] = {"user": f"user-{number}", "tenant": "acme"}
        return sum(limiter.check(**facts).allowed for _ in range(700))

    with ThreadPoolExecutor(THREADS) as pool:
        admitted = list(pool.map(work, range(THREADS)))
    assert sum(admitted) == 3_000
    for number, count in enumerate(admitted):
        assert limiter.peek(user=f"user-{number}").remaining == 1_000 - count


@pytest.mark.usefixtures("switching_often")
def test_threads_may_flood_it_together(store: MemoryStore) -> None:
    limiter = Limiter("2/day", store=store)
    limiter.check_many(["limited", "limited"])

    def work(thread: int) -> set[str]:
        return {limiter.check(f"user-{thread}-{number}").reason for number in range(1_000)}

    with ThreadPoolExecutor(THREADS) as pool:
        assert set().union(*pool.map(work, range(THREADS))) == {"within_limit"}
    assert len(store) <= MAX_KEYS
    assert limiter.check("limited").reason == "over_limit"


@pytest.mark.usefixtures("switching_often")
def test_a_thread_and_an_event_loop_share_a_store(store: MemoryStore) -> None:
    limiter, awaited = Limiter("10000/day", store=store), AsyncLimiter("10000/day", store=store)

    async def tasks() -> int:
        decisions = await asyncio.gather(*(awaited.check("alice") for _ in range(6_000)))
        return sum(decision.allowed for decision in decisions)

    with ThreadPoolExecutor(1) as pool:
        threads = pool.submit(lambda: sum(limiter.check("alice").allowed for _ in range(6_000)))
        assert asyncio.run(tasks()) + threads.result() == 10_000


def test_at_once_goes_by_the_failure_mode_when_there_is_no_room(clock: FakeClock) -> None:
    rules = [Rule(id="a", quota="1/minute", dimension="ip")]
    both = [*rules, Rule(id="b", quota="1/minute", dimension="ip")]
    for listed in (rules, both):
        store = MemoryStore(max_keys=len(listed), clock=clock)
        limiter = AsyncLimiter(listed, store=store, clock=clock, failure_mode="closed")
        first, second = limiter.decide({"ip": "1"}), limiter.decide({"ip": "2"})
        assert isinstance(first, Decision)
        assert isinstance(second, Decision)
        assert (first.allowed, second.allowed, second.reason) == (True, False, "fail_closed")


def test_at_once_finds_the_store_well_again(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    limiter = AsyncLimiter("1/minute fixed_window", store=MemoryStore(max_keys=1, clock=clock), clock=clock)

    def reason(user: str) -> str:
        decision = limiter.decide({"user": user})
        assert isinstance(decision, Decision)
        return decision.reason

    assert [reason("a"), reason("b")] == ["within_limit", "fail_open"]
    clock.advance(60)
    assert [reason("b"), reason("b")] == ["within_limit", "over_limit"]
    assert [record.levelname for record in caplog.records] == [
        "ERROR",
        "WARNING",
    ]  # when, and until when


def test_nothing_is_at_once_that_may_have_to_wait(clock: FakeClock) -> None:
    async def main() -> None:
        limiter = AsyncLimiter("5/minute", clock=clock)
        await limiter.reserve("alice")
        decision = limiter.decide({"user": "alice"})
        assert not isinstance(decision, Decision)  # what has expired is given back first
        assert (await decision).remaining == 3

    asyncio.run(main())


def test_a_user_who_is_at_hand_is_checked_at_once(clock: FakeClock) -> None:
    async def main() -> None:
        rules = [Rule(id="free", quota="1/minute"), Rule(id="pro", quota="9/minute", tiers=["pro"])]
        directory = CachedDirectory(lambda ids: {one: User(id=one, tier="pro") for one in ids})
        with closing(directory):
            limiter = AsyncLimiter(Snapshot(rules, directory=directory), clock=clock)
            first = limiter.decide({"user": "alice"})
            assert not isinstance(first, Decision)  # the directory has to be asked
            assert len((await first).limits) == 2
            decision = limiter.decide({"user": "alice"})
            assert isinstance(decision, Decision)
            assert [limit.remaining for limit in decision.limits] == [0, 8]

    asyncio.run(main())


def test_a_key_is_not_forgotten_because_its_rule_was_once_asked_with_a_shorter_window(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    year, second = (Quota(1, window, algorithm="fixed_window") for window in (31_536_000, 1))

    def ask(quota: Quota, subject: str, where: str = "a", *, peek: bool = False) -> Outcome:
        check = Check(where, key_template("user", where, "fixed_window"), subject, quota)
        (result,) = store.check([Group((check,), peek)])
        assert isinstance(result, Result)
        return result.outcomes[0]

    ask(year, "alice")
    ask(second, "alice", peek=True)
    ask(year, "alice", peek=True)
    clock.advance(2)
    for number in range(5):  # each looks for keys that no longer matter
        ask(year, f"user-{number}", "b")
    assert ask(year, "alice", peek=True).remaining == 0


@pytest.mark.parametrize("path", ["/limited", "/unlimited"])
def test_a_check_leaves_nothing_to_the_garbage_collector(clock: FakeClock, path: str) -> None:
    limiter = Limiter([Rule(id="r", quota="5/minute", endpoints=["/limited"])], clock=clock)
    limiter.check(user="alice", endpoint=path)
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            limiter.check(user="alice", endpoint=path)
        assert gc.collect() < 100
    finally:
        gc.enable()


def limiter_with_own_limit(store: MemoryStore, clock: FakeClock, quota: str) -> Limiter:
    """A rule by user, of which alice has a hundred times the limit."""
    rule = Rule(id="r", quota=quota, dimension="user")
    own = User(id="alice", overrides=[Override(rule="r", limit=100 * rule.quota.limit)])
    return Limiter(Snapshot([rule], users=[own]), store=store, clock=clock)


@algorithms
def test_the_sweep_keeps_what_is_left_of_a_larger_own_limit(clock: FakeClock, algorithm: str) -> None:
    """A bucket that holds more than others can is not full."""
    limiter = limiter_with_own_limit(MemoryStore(clock=clock), clock, f"10/hour {algorithm}")
    assert limiter.check(user="alice", cost=500).remaining == 500
    for number in range(MAX_KEYS):
        limiter.check(user=number)
    assert limiter.peek(user="alice").remaining == 500


@algorithms
def test_the_sweep_keeps_what_a_larger_own_limit_would_have_forgotten(clock: FakeClock, algorithm: str) -> None:
    """A bucket that would be full again at alice's rate is not full at its own."""
    limiter = limiter_with_own_limit(MemoryStore(clock=clock), clock, f"10/hour {algorithm}")
    assert limiter.check(user="bob", cost=10).remaining == 0
    clock.advance(60)
    limiter.check(user="alice")  # a new key, which begins a sweep
    assert limiter.peek(user="bob").remaining == 0


@algorithms
def test_a_full_store_evicts_no_limited_client_because_others_have_more(
    store: MemoryStore, clock: FakeClock, algorithm: str
) -> None:
    limiter = limiter_with_own_limit(store, clock, f"10/hour {algorithm}")
    for number in range(MAX_KEYS):
        assert limiter.check(user=number, cost=10).remaining == 0
    assert limiter.check(user="alice").reason == "fail_open"
    assert {limiter.peek(user=number).remaining for number in range(MAX_KEYS)} == {0}


@algorithms
def test_quotas_that_no_longer_matter_are_forgotten(store: MemoryStore, clock: FakeClock, algorithm: str) -> None:
    """A limit that was once lower does not fill the store for ever."""
    rule = Rule(id="r", quota=f"1/minute {algorithm}", dimension="user")
    limiter = Limiter(Snapshot([rule]), store=store, clock=clock)
    limiter.check(user="bob")
    limiter.holder.swap(Snapshot([replace(rule, quota=Quota.parse(f"100/minute {algorithm}"))]))
    for _ in range(2):
        for number in range(MAX_KEYS):
            limiter.check(user=number)
        clock.advance(180)
    for number in range(3 * MAX_KEYS):
        assert limiter.check(user=number).reason == "within_limit"
