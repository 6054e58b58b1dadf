"""Leased rules, by limiters of both kinds, on a store whose calls are counted and may fail."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headgate import AsyncLimiter, Decision, Limiter, Quota, Rule, StoreUnavailable
from headgate.core.check import Check, Group, Result
from headgate.features.leases.status import LeaseStatus
from headgate.rules.penalties import Penalties
from headgate.rules.snapshot import Snapshot
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.integration.limiters import Awaited
from tests.remote import AsyncRemote, AsyncShortRemote, Remote, ShortRemote
from tests.unit.limiter.conftest import START

ALGORITHMS = ("fixed_window", "sliding_window_counter", "token_bucket", "leaky_bucket", "gcra")


class Node:
    """A limiter of either kind, and a clock that stands still while it is asked."""

    def __init__(self, kind: str, remote: Remote, clock: FakeClock, rules: Any) -> None:
        self.clock = clock
        self._closed = False
        self.limiter: Any
        if kind == "Limiter":
            self.limiter = self._asked = Limiter(rules, store=remote, clock=clock)
        else:
            store = AsyncShortRemote(remote) if isinstance(remote, ShortRemote) else AsyncRemote(remote)
            self.limiter = Awaited(rules, store=store, clock=clock)
            self._asked = self.limiter.limiter

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.limiter.close()

    def status(self) -> LeaseStatus:
        status: LeaseStatus = self._asked.leases()
        return status

    def check(self, count: int = 1, *, gap: float = 0.001, **facts: Any) -> list[Decision]:
        """So many checks, one after the other."""
        decisions = []
        for _ in range(count):
            self.clock.advance(gap)
            decisions.append(self.limiter.check(**({"user": "alice"} | facts)))
        return decisions

    def warm(self, count: int = 40) -> None:
        """Have it hold something."""
        assert all(self.check(count))
        assert self.status().outstanding > 0


class Opened:
    """Opens nodes on one store, and closes them at the end."""

    def __init__(self, kind: str, remote: Remote, clock: FakeClock) -> None:
        self._options = (kind, remote, clock)
        self._nodes: list[Node] = []

    def __call__(self, *rules: Rule, snapshot: Snapshot | None = None) -> Node:
        node = Node(*self._options, snapshot or list(rules))
        self._nodes.append(node)
        return node

    def close(self) -> None:
        for node in self._nodes:
            node.close()


@pytest.fixture(params=[Remote, ShortRemote])
def remote(request: pytest.FixtureRequest, clock: FakeClock) -> Remote:
    opened: Remote = request.param(MemoryStore(clock=clock))
    return opened


@pytest.fixture(params=["Limiter", "AsyncLimiter"])
def open_node(request: pytest.FixtureRequest, remote: Remote, clock: FakeClock) -> Iterator[Opened]:
    opened = Opened(request.param, remote, clock)
    yield opened
    opened.close()


@pytest.fixture
def open_sync(remote: Remote, clock: FakeClock) -> Iterator[Opened]:
    opened = Opened("Limiter", remote, clock)
    yield opened
    opened.close()


def rule(limit: int = 1_000, window: float = 60.0, algorithm: str = "fixed_window", **fields: Any) -> Rule:
    return Rule(id="leased", quota=Quota(limit, window, algorithm=algorithm), sync="leased", **fields)  # type: ignore[arg-type]


def remaining(remote: Remote, one: Rule, subject: str = "alice") -> int:
    """In the store, without what is leased."""
    (result,) = remote.memory.check([Group((Check(one.id, one.key_template, subject, one.quota),), peek=True)])
    assert isinstance(result, Result)
    return result.outcomes[0].remaining


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_many_checks_take_few_calls_and_never_more_than_the_limit(
    open_node: Opened, remote: Remote, clock: FakeClock, algorithm: str
) -> None:
    one = rule(1_000, 3_600, algorithm)
    node = open_node(one)
    decisions = node.check(1_250, gap=0.0005)
    refilled = 0 if "window" in algorithm else 1  # what flows in meanwhile
    assert 1_000 <= sum(map(bool, decisions)) <= 1_000 + refilled
    assert remote.calls <= 0.1 * len(decisions)
    status = node.status()
    assert status.checks == len(decisions)
    assert status.calls_per_check <= 0.1
    assert status.fetched <= 1_000
    assert status.hits + remote.calls >= 1_250


def test_seldom_asked_keys_go_the_exact_way(open_node: Opened, remote: Remote, clock: FakeClock) -> None:
    one = rule()
    node = open_node(one)
    decisions = node.check(10, gap=1.0)
    assert [decision.remaining for decision in decisions] == list(range(999, 989, -1))
    assert remote.calls == 10
    assert remaining(remote, one) == 990
    assert node.status().fetches == 0


def test_in_memory_there_is_nothing_to_lease(clock: FakeClock) -> None:
    with Limiter([rule()], clock=clock) as limiter:
        for _ in range(100):
            limiter.check("alice")
        assert limiter.leases() == LeaseStatus()
        assert limiter.peek("alice").remaining == 900


def test_decisions_from_a_lease_have_the_figures(open_node: Opened, remote: Remote, clock: FakeClock) -> None:
    node = open_node(rule())
    node.warm()
    hits = node.status().hits
    decision = node.check()[0]
    assert node.status().hits == hits + 1
    assert (decision.allowed, decision.reason, decision.state, decision.rule) == (
        True,
        "within_limit",
        "normal",
        "leased",
    )
    assert (decision.limit, decision.retry_after) == (1_000, 0.0)
    assert decision.remaining == 1_000 - 41  # nobody else has come
    assert decision.reset_at == START + 60


def test_remaining_counts_what_is_held_for_peeks_too(open_node: Opened, remote: Remote, clock: FakeClock) -> None:
    one = rule()
    node = open_node(one)
    node.warm()
    peeked = node.limiter.peek(user="alice")
    assert peeked.remaining == 960
    assert remaining(remote, one) == 960 - node.status().outstanding


def test_a_refusal_is_the_store_s_and_is_remembered_for_a_moment(
    open_node: Opened, remote: Remote, clock: FakeClock
) -> None:
    node = open_node(rule(100))
    node.check(150, gap=0.0002)
    calls = remote.calls
    decisions = node.check(20)
    assert not any(decisions)
    assert remote.calls == calls
    assert [decision.retry_after for decision in decisions] == [
        pytest.approx(START + 60 - decision.at_us / 1_000_000) for decision in decisions
    ]
    clock.advance(0.06)
    assert not node.check()[0]
    assert remote.calls == calls + 1
    assert node.limiter.wait(user="alice")
    assert clock.now() >= START + 60


def test_what_is_not_used_is_given_back(open_node: Opened, remote: Remote, clock: FakeClock) -> None:
    one = rule()
    node = open_node(one)
    node.warm()
    held = node.status().outstanding
    assert remaining(remote, one) == 960 - held
    for _ in range(3):
        clock.advance(0.1)
        node.limiter.check(user=f"user-{clock.now()}")
    assert node.status().outstanding == 0
    assert node.status().returned == held
    assert remaining(remote, one) == 960


def test_closing_gives_everything_back(open_node: Opened, remote: Remote, clock: FakeClock) -> None:
    one = rule()
    node = open_node(one)
    node.warm()
    node.close()
    assert remaining(remote, one) == 960
    assert (node.status().outstanding, node.status().stranded) == (0, 0)


def test_slices_do_not_outlive_their_window(open_node: Opened, remote: Remote, clock: FakeClock) -> None:
    one = rule(200, 1.0)
    node = open_node(one)
    clock.advance(0.9)
    node.check(90, gap=0.001)
    assert node.status().outstanding > 0
    clock.advance(0.01)  # the next second
    admitted = sum(map(bool, node.check(400, gap=0.0005)))
    assert admitted == 200


@pytest.mark.parametrize("first", ["leased", "exact"])
def test_with_an_exact_rule_it_is_all_or_nothing(
    open_node: Opened, remote: Remote, clock: FakeClock, first: str
) -> None:
    leased, exact = rule(), Rule(id="exact", quota=Quota(50, 60, algorithm="fixed_window"), dimension="user")
    node = open_node(*((leased, exact) if first == "leased" else (exact, leased)))
    decisions = node.check(80)
    assert sum(map(bool, decisions)) == 50
    refused = decisions[-1]
    assert {status.rule: status.allowed for status in refused.limits} == {"leased": True, "exact": False}
    assert {status.rule: status.remaining for status in refused.limits} == {"leased": 950, "exact": 0}
    node.close()
    assert remaining(remote, leased) == 950
    assert remaining(remote, exact) == 0


def test_two_leased_rules_are_charged_together(open_node: Opened, remote: Remote, clock: FakeClock) -> None:
    user = rule(60)
    everybody = Rule(id="all", quota=Quota(1_000, 60, algorithm="fixed_window"), dimension="global", sync="leased")
    node = open_node(user, everybody)
    assert sum(map(bool, node.check(200))) == 60
    node.close()
    assert (remaining(remote, user), remaining(remote, everybody, "")) == (0, 940)
    assert node.status().calls_per_check < 0.5


def test_a_shadow_that_is_leased_refuses_nobody(open_node: Opened, remote: Remote, clock: FakeClock) -> None:
    node = open_node(rule(30, action="log_only"))
    decisions = node.check(60)
    assert all(decisions)
    assert [decision.reason for decision in decisions] == ["within_limit"] * 30 + ["shadow"] * 30


def test_costs_are_taken_in_whole_and_what_never_fits_is_told(
    open_node: Opened, remote: Remote, clock: FakeClock
) -> None:
    node = open_node(rule(500))
    decisions = node.check(120, cost=7)
    assert sum(map(bool, decisions)) == 500 // 7
    assert node.check(cost=501)[0].retry_after is None
    assert node.check(cost=0)[0].remaining == 500 % 7


def test_an_idempotency_key_goes_the_exact_way(open_node: Opened, remote: Remote, clock: FakeClock) -> None:
    node = open_node(rule())
    node.warm()
    held, calls = node.status().outstanding, remote.calls
    first, again = (node.check(idempotency_key="k")[0] for _ in range(2))
    assert first == again
    assert remote.calls == calls + 2
    assert node.status().outstanding == held


def test_a_reservation_goes_the_exact_way_and_settles_to_what_it_cost(open_sync: Opened, remote: Remote) -> None:
    one = rule()
    node = open_sync(one)
    node.warm()
    reservation = node.limiter.reserve(user="alice", cost=100)
    assert reservation.settle(30)
    node.close()
    assert remaining(remote, one) == 1_000 - 40 - 30


def test_penalties_are_the_store_s_business(open_node: Opened) -> None:
    penalties = Penalties(enabled=True, violation_threshold=1, multipliers=(1,))
    node = open_node(snapshot=Snapshot([rule(20)], penalties=penalties))
    assert [decision.reason for decision in node.check(22)[19:]] == ["within_limit", "penalty", "penalty"]


def test_a_reset_forgets_what_is_held(open_node: Opened, remote: Remote, clock: FakeClock) -> None:
    one = rule()
    node = open_node(one)
    node.warm()
    node.limiter.reset(user="alice")
    assert node.status().outstanding == 0
    assert remaining(remote, one) == 1_000
    assert node.check()[0].remaining == 999
    node.close()
    assert remaining(remote, one) == 999  # what was charged before is not given back


def test_without_the_store_what_is_leased_is_spent_and_then_the_failure_mode_decides(
    open_node: Opened, remote: Remote, clock: FakeClock
) -> None:
    node = open_node(rule(failure_mode="closed"))
    node.warm()
    held = node.status().outstanding
    remote.error = StoreUnavailable("no route to host")
    reasons = [decision.reason for decision in node.check(held + 5, gap=0.0001)]
    assert reasons == ["within_limit"] * held + ["fail_closed"] * 5
    remote.error = None
    assert node.check()[0].reason == "within_limit"


def test_what_cannot_be_given_back_is_stranded_and_told(open_node: Opened, remote: Remote, clock: FakeClock) -> None:
    node = open_node(rule())
    node.warm()
    held = node.status().outstanding
    remote.error = StoreUnavailable("no route to host")
    node.close()
    assert (node.status().stranded, node.status().returned) == (held, 0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seconds", [0.5, 5.0])  # until answers arrive again: before and after a slice ends
def test_a_slice_whose_answer_was_lost_comes_back(
    open_node: Opened, remote: Remote, clock: FakeClock, algorithm: str, seconds: float
) -> None:
    one = rule(100_000, 3_600, algorithm)
    node = open_node(one)
    node.warm()
    remote.loses = True
    checks = 40
    while node.status().unanswered == 0:
        assert all(node.check(20, gap=0.002))
        checks += 20
    lost = node.status().unanswered
    clock.advance(seconds)
    remote.loses = False
    for _ in range(40):
        clock.advance(0.05)
        assert all(node.check(1))
        checks += 1
    assert (node.status().unanswered, node.status().stranded) == (0, 0)
    assert lost > 0
    node.close()
    flowed = 0 if algorithm.endswith(("window", "counter")) else round(100_000 * (seconds + 5) / 3_600)
    assert 100_000 - checks <= remaining(remote, one) <= 100_000 - checks + flowed


def test_closing_asks_for_lost_slices_once_more(open_node: Opened, remote: Remote) -> None:
    one = rule(100_000, 3_600)
    node = open_node(one)
    node.warm()
    remote.loses = True
    checks = 40
    while node.status().unanswered == 0:
        assert all(node.check(20, gap=0.002))
        checks += 20
    remote.loses = False
    node.close()
    assert (node.status().stranded, remaining(remote, one)) == (0, 100_000 - checks)


def test_a_lost_slice_is_not_given_back_after_a_reset(open_node: Opened, remote: Remote, clock: FakeClock) -> None:
    one = rule(100_000, 3_600)
    node = open_node(one)
    node.warm()
    remote.loses = True
    while node.status().unanswered == 0:
        assert all(node.check(20, gap=0.002))
    lost = node.status().unanswered
    remote.loses = False
    node.limiter.reset(user="alice")
    clock.advance(1)
    node.check(3)
    node.close()
    assert node.status().stranded >= lost
    assert remaining(remote, one) == 100_000 - 3


def test_a_change_of_the_limit_is_followed_at_once(open_node: Opened, remote: Remote, clock: FakeClock) -> None:
    node = open_node(rule(1_000))
    node.warm()
    other = open_node(rule(1_000))
    other.warm()
    assert remaining(remote, rule(1_000)) < 960
    smaller = rule(100)
    node._asked._engine.holder.swap(Snapshot([smaller], version="2"))
    admitted = sum(map(bool, node.check(100)))
    assert admitted <= 20  # 80 were let in before
    assert node.status().outstanding == 0


def test_batches_use_leases(open_node: Opened, remote: Remote, clock: FakeClock) -> None:
    node = open_node(rule())
    node.warm()
    hits = node.status().hits
    decisions = node.limiter.check_many([{"user": "alice"}] * 3)
    assert (len(decisions), all(decisions), node.status().hits) == (3, True, hits + 3)
    remote.error = StoreUnavailable("no route to host")
    mixed = node.limiter.check_many([{"user": "alice"}, {"user": "bob"}])
    assert [decision.reason for decision in mixed] == ["within_limit", "fail_open"]


def test_memory_is_bounded(open_sync: Opened) -> None:
    node = open_sync(rule())
    node.limiter._leasing._leases._table.max_keys = 64
    node.warm()
    for number in range(1_000):
        assert node.check(user=f"user-{number}")[0].remaining == 999
        assert node.status().keys <= 64


def test_a_forked_child_does_not_spend_its_parent_s_slices(open_sync: Opened) -> None:
    node = open_sync(rule())
    node.warm()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        os._exit(0 if node.status().outstanding == 0 and node.status().keys == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert node.status().outstanding > 0


def test_a_cancelled_caller_takes_no_slice_with_it(remote: Remote, clock: FakeClock) -> None:
    async def main() -> None:
        limiter = AsyncLimiter([rule()], store=AsyncRemote(remote), clock=clock)
        for _ in range(2):
            await limiter.check(user="alice")
        while limiter.leases().fetches == 0:
            clock.advance(0.003)
            call = asyncio.create_task(limiter.check(user="alice"))
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])
            await asyncio.sleep(0.001)
        assert limiter.leases().outstanding == limiter.leases().fetched > 0
        await limiter.close()

    asyncio.run(main())


def test_a_thread_gives_back_what_nobody_uses_and_ends(remote: Remote) -> None:
    one = rule(window=3_600)
    remote.memory = MemoryStore()
    with Limiter([one], store=remote) as limiter:
        deadline = time.monotonic() + 10
        while limiter.leases().fetched == 0 and time.monotonic() < deadline:
            limiter.check(user="alice")
        assert limiter.leases().fetched > 0
        while limiter.leases().outstanding and time.monotonic() < deadline:
            time.sleep(0.02)
        assert limiter.leases().outstanding == 0
        status = limiter.leases()
        assert remaining(remote, one) == 1_000 - status.checks
