"""Limiter and AsyncLimiter: what can be asked, and how."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headgate import (
    AsyncLimiter,
    Decision,
    InvalidCheck,
    InvalidQuota,
    InvalidRule,
    Limiter,
    Quota,
    RateLimited,
    Rule,
    StoreError,
)
from headgate.rules import Snapshot
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


@pytest.mark.parametrize("request_alone", ["alice", {"user": "alice"}, b"alice", 42, None], ids=repr)
def test_check_many_takes_a_list_and_no_single_request(
    open_limiter: Open, clock: FakeClock, request_alone: Any
) -> None:
    """`check_many("alice")` once made five checks: of "a", "l", "i", "c" and "e"."""
    limiter = open_limiter("3/minute", clock=clock)
    with pytest.raises(InvalidCheck, match=r"^requests: must be a list, such as check_many\(\['alice', "):
        limiter.check_many(request_alone)
    assert [limiter.peek(subject).remaining for subject in ("alice", "a", "user")] == [3, 3, 3]


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
    limiter.check(user=42, endpoint=None, tenant=8080)
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
    assert [rule.rule for rule in limiter.check(endpoint=None).limits] == ["world"]


@pytest.mark.parametrize(
    ("args", "facts", "message"),
    [
        ((), {}, r"counts by subject: call check\('alice'\)"),
        ((), {"usre": "alice"}, "unknown fact 'usre'; did you mean 'user'?"),
        ((None,), {}, "subject: must not be None"),
        ((), {"user": None}, "user: must not be None"),
        (("alice",), {"user": "bob"}, "user: given twice"),
        ((1.5,), {}, "subject: must be a string, an integer or a UUID, got 1.5"),
        ((b"alice",), {}, "subject: must be a string, an integer or a UUID, got b'alice'"),
        ((True,), {}, "subject: must be a string, an integer or a UUID, got True"),
        (("alice",), {"ip": ["192.0.2.7"]}, r"ip: must be a string, an integer or a UUID, got \['192.0.2.7'\]"),
        (("alice",), {"idempotency_key": ""}, "idempotency_key: must be a non-empty string, got ''"),
        (("alice",), {"idempotency_key": 7}, "idempotency_key: must be a non-empty string, got 7"),
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


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (["5/minute", "100/day"], "join notations with ';'"),
        (Rule(id="one", quota="5/minute"), "the rule 'one'; put it into a list"),
        ("rules.yaml", "a file's name must end in .toml, .* got 'rules.yaml'"),
        ("/etc/headgate/rules", "a file's name must end in .toml"),
        ("mysql://gate:secret@db/rules", "one of sqlite://, postgresql://, postgres://, got 'mysql://…'"),
    ],
)
def test_rules_in_a_form_that_nearly_is_one_get_a_hint(open_limiter: Open, rules: Any, message: str) -> None:
    with pytest.raises(InvalidRule, match=message):
        open_limiter(rules)


def test_a_notation_that_is_none_is_said_so(open_limiter: Open) -> None:
    with pytest.raises(
        InvalidQuota,
        match="cannot read 'lots' as a quota: 'lots' \\(character 1\\): expected a whole number; write",
    ):
        open_limiter("lots")


@pytest.mark.parametrize("mode", ["fail_shut", "CLOSED", "", True])
def test_an_unknown_failure_mode_is_refused(open_limiter: Open, mode: Any) -> None:
    """It must not be taken for `open`."""
    with pytest.raises(ValueError, match="failure_mode"):
        open_limiter("3/minute", failure_mode=mode)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "not a store URL"),
        ("localhost:6379", "not a store URL"),
        ("ftp://localhost", "not a store URL"),
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
        ValueError, match=r"store: must be a URL or a store, got .*; use memory://, embedded://, redis://"
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


@pytest.mark.parametrize("rules", ["3/minute", [Rule(id="r", quota="3/minute")]])
def test_nobody_is_no_subject(open_limiter: Open, rules: Any) -> None:
    limiter = open_limiter(rules)
    nobody: Any = None
    methods: list[Any] = [limiter.check, limiter.peek, limiter.wait, limiter.reserve, limiter.reset]
    for method in methods:
        with pytest.raises(InvalidCheck, match=r"^subject: must not be None"):
            method(nobody)
        for fact in ("user", "ip", "api_key", "tenant"):
            with pytest.raises(InvalidCheck, match=rf"^{fact}: must not be None: .*leave {fact} out"):
                method(**{fact: None, "endpoint": "/"})
    with pytest.raises(InvalidCheck, match=r"^subject: must not be None"):
        limiter.check_many(["alice", nobody])
    assert limiter.peek("alice").remaining == 3


@pytest.mark.parametrize("rules", ["3/minute", [Rule(id="r", quota="3/minute")]])
def test_a_mistyped_fact_is_refused_also_when_it_is_none(open_limiter: Open, rules: Any) -> None:
    limiter = open_limiter(rules)
    methods: list[Any] = [limiter.check, limiter.peek, limiter.wait, limiter.reserve, limiter.reset]
    for method in methods:
        with pytest.raises(InvalidCheck, match=r"^unknown fact 'usr'; did you mean 'user'"):
            method(usr=None)
        with pytest.raises(InvalidCheck, match=r"^unknown fact 'usr'"):
            method("alice", usr=None)
    with pytest.raises(InvalidCheck, match=r"^unknown fact 'usr'"):
        limiter.check_many(["alice", {"usr": None}])
    assert limiter.check("alice", tier=None).remaining == 2  # a known fact may be unknown of a request


def test_a_uuid_is_its_text(open_limiter: Open) -> None:
    limiter: Any = open_limiter("3/minute")
    number = UUID(int=7)
    limiter.check(number)
    limiter.check(user=number)
    assert limiter.peek(str(number)).remaining == 1


def test_facts_are_declared_for_a_limiter(open_limiter: Open) -> None:
    limiter = open_limiter([Rule(id="r", quota="3/minute", dimension="plan")], facts=["plan"])
    assert limiter.check(plan="free").rule == "r"
    with pytest.raises(InvalidRule, match="facts: declare them with the rules"):
        open_limiter(Snapshot([]), facts=["plan"])
    with pytest.raises(InvalidRule, match="facts: must be"):
        open_limiter([], facts=[""])


def test_facts_are_declared_for_a_file(open_limiter: Open, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('[headgate]\nfacts = ["a"]\n[[rules]]\nid = "r"\nlimit = 1\nwindow = 1\ndimension = "a+b"\n')
    with pytest.raises(InvalidRule, match="unknown fact 'b'"):
        open_limiter(path)
    assert open_limiter(path, facts=["b"]).check(a=1, b=2).rule == "r"


def test_refusals_are_told_to_the_hook(open_limiter: Open) -> None:
    told: list[tuple[Any, ...]] = []
    limiter = open_limiter("1/minute", on_refused=lambda decision, facts: told.append((decision.rule, dict(facts))))
    for _ in range(2):
        limiter.check("alice")
    limiter.check_many(["alice", {"user": "alice", "endpoint": "/x"}])
    limiter.wait("alice", timeout=0)
    limiter.reserve("alice")
    limiter.peek("alice")
    alice = ("default", {"user": "alice"})
    assert told == [alice, alice, ("default", {"user": "alice", "endpoint": "/x"}), alice, alice]


def test_a_refused_slot_and_a_refused_function_are_told_to_the_hook() -> None:
    told: list[str | None] = []
    limiter = Limiter("1 concurrent", on_refused=lambda decision, _: told.append(decision.rule))
    with limiter.acquire("alice"), pytest.raises(RateLimited):
        limiter.acquire("alice")
    limited = limiter.limit("1/minute", name="function")(lambda: None)
    limited()
    with pytest.raises(RateLimited):
        limited()
    assert told == ["default", "function"]


@pytest.mark.parametrize("name", ["", 5, None, "a\nb"])
@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_an_invalid_name_of_a_limiter_is_reported_as_the_name(kind: Any, name: Any) -> None:
    for rules in ["1/minute", [Rule(id="r", quota="1/minute")]]:
        with pytest.raises(InvalidRule, match=r"^name: must be a non-empty string .*, got "):
            kind(rules, name=name)
    with pytest.raises(InvalidRule, match=r"^name: must be a non-empty string .*, got "):
        kind("1/minute").sibling("2/minute", name=name)


class OnlyNow:
    """A clock that cannot sleep."""

    def now_us(self) -> int:
        return 0


@pytest.mark.parametrize("wrong", [time.time, FakeClock, OnlyNow(), 0, "system"])
@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_a_limiter_says_at_once_what_a_clock_is(kind: Any, wrong: Any) -> None:
    with pytest.raises(InvalidRule, match=r"^clock: must be an object with now_us\(\), .*FakeClock\(\), got "):
        kind("1/minute", clock=wrong)


def test_a_hook_may_be_async_and_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str | None] = []

    async def hook(decision: Decision, _: object) -> None:
        await asyncio.sleep(0)
        told.append(decision.rule)
        raise RuntimeError("boom")

    async def main() -> list[bool]:
        limiter = AsyncLimiter("1/minute", on_refused=hook)
        return [(await limiter.check("alice")).allowed for _ in range(2)]

    assert asyncio.run(main()) == [True, False]
    assert told == ["default"]
    assert "on_refused raised for rule 'default'" in caplog.text
    with pytest.raises(InvalidRule, match="on_refused: must not be async for a Limiter"):
        Limiter("1/minute", on_refused=hook)
    with pytest.raises(InvalidRule, match="on_refused: must be a function"):
        Limiter("1/minute", on_refused="log")  # type: ignore[arg-type]


def test_memory_is_always_ready(open_limiter: Open) -> None:
    assert open_limiter("1/minute", require_store=True).ready() is True


def test_a_store_that_does_not_answer_is_told_at_start(open_limiter: Open) -> None:
    with pytest.raises(StoreError):
        open_limiter("1/minute", store="redis://127.0.0.1:1/0?timeout=0.2&connect_timeout=0.2", require_store=True)
    limiter = open_limiter("1/minute", store="redis://127.0.0.1:1/0?timeout=0.2&connect_timeout=0.2")
    with pytest.raises(StoreError):
        limiter.ready()


def test_a_store_that_answers_is_ready(open_limiter: Open, redis_url: str) -> None:
    limiter = open_limiter("1/minute", store=redis_url, require_store=True)
    assert limiter.ready() is True
