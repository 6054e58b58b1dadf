"""What responses say of limits, read back with somebody else's parser of structured fields (RFC 9651)."""

from __future__ import annotations

import pickle
from typing import Any

import http_sf
import pytest

from headgate import Decision, Limiter, Quota, Rule
from headgate.http.headers import Charged, fields_of, render, string
from headgate.rules import Override, Snapshot, User
from headgate.testing import FakeClock

START = 1_700_000_000.25


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


def told(*decisions: Decision, cost: int = 1) -> dict[str, str]:
    fields = fields_of([Charged(decision, cost) for decision in decisions])
    assert len(dict(fields)) == len(fields), "a field twice"
    return dict(fields)


def items(text: str) -> list[tuple[Any, dict[str, Any]]]:
    parsed: Any = http_sf.parse(text.encode(), tltype="list")
    return [(item, dict(parameters)) for item, parameters in parsed]


def test_the_fields_of_an_allowed_request(clock: FakeClock) -> None:
    rule = Rule(id="search-free", quota=Quota(100, 3600, algorithm="fixed_window"), dimension="ip")
    fields = told(Limiter([rule], clock=clock).check(ip="192.0.2.7"))
    whole_hour = 1_700_002_800
    assert fields == {
        "X-RateLimit-Limit": "100",
        "X-RateLimit-Remaining": "99",
        "X-RateLimit-Reset": str(whole_hour),
        "RateLimit-Policy": '"search-free";q=100;w=3600',
        "RateLimit": '"search-free";r=99;t=2800',
    }


def test_the_fields_of_a_refusal(clock: FakeClock) -> None:
    limiter = Limiter("1/10s gcra", clock=clock)
    limiter.check("alice")
    clock.advance(0.5)
    fields = told(limiter.check("alice"))
    assert fields["X-RateLimit-Remaining"] == "0"
    assert fields["Retry-After"] == "10"  # 9.5, rounded up
    assert fields["RateLimit"] == '"default";r=0;t=10'
    assert fields["X-RateLimit-Reset"] == "1700000011"  # 1700000010.25


def test_retry_after_is_on_refusals_only_and_missing_when_no_waiting_helps(clock: FakeClock) -> None:
    limiter = Limiter("5/minute", clock=clock)
    assert "Retry-After" not in told(limiter.check("alice"))
    assert "Retry-After" not in told(limiter.check("alice", cost=6), cost=6)


def test_the_cost_when_it_is_not_one(clock: FakeClock) -> None:
    decision = Limiter("5/minute", clock=clock).check("alice", cost=3)
    assert told(decision, cost=3)["X-RateLimit-Cost"] == "3"
    assert "X-RateLimit-Cost" not in told(decision, cost=1)


def test_a_warning_from_80_percent_on(clock: FakeClock) -> None:
    limiter = Limiter("10/minute", clock=clock)
    assert "X-RateLimit-Warning" not in told(limiter.check("alice", cost=7))
    assert told(limiter.check("alice"))["X-RateLimit-Warning"] == '"default";r=2;q=10'


MIXED = [
    Rule(id="req", quota="10/minute fixed_window"),
    Rule(id="tok", unit="tokens", quota="1000/minute fixed_window"),
    Rule(id="usd", unit="usd_micros", quota="10000/minute fixed_window"),
]


def test_the_warning_names_the_first_limit_in_warning_not_the_one_with_the_least_remaining(clock: FakeClock) -> None:
    limiter = Limiter(MIXED, clock=clock)
    cost = {"requests": 1, "tokens": 900, "usd_micros": 9_500}
    fields = told(limiter.check("alice", cost=cost))
    assert fields["X-RateLimit-Limit"] == "10"
    assert fields["X-RateLimit-Warning"] == '"tok";r=100;q=1000'  # before `usd`, in the order of the fields


def test_the_warning_stays_when_a_soft_limit_is_over(clock: FakeClock) -> None:
    soft = Rule(id="soft", unit="tokens", quota="100/day fixed_window", action="annotate")
    decision = Limiter([soft, *MIXED], clock=clock).check("alice", cost={"requests": 1, "tokens": 900})
    assert decision.state == "annotated"
    fields = told(decision)
    assert fields["X-RateLimit-Warning"] == '"tok";r=100;q=1000'
    assert fields["X-RateLimit-Annotation"] == '"soft"'


def test_a_soft_limit_alone_is_no_warning(clock: FakeClock) -> None:
    soft = Rule(id="soft", quota="1/day fixed_window", action="annotate")
    limiter = Limiter([soft, *MIXED], clock=clock)
    limiter.check("alice")
    decision = limiter.check("alice")
    assert decision.state == "annotated"
    assert "X-RateLimit-Warning" not in told(decision)


def test_the_warning_of_several_decisions_names_the_limit_in_warning(clock: FakeClock) -> None:
    calm = Limiter("5/minute fixed_window", clock=clock).check("alice")
    near = Limiter(MIXED, clock=clock).check("alice", cost={"requests": 1, "tokens": 900})
    fields = told(calm, near)
    assert fields["X-RateLimit-Limit"] == "5"
    assert fields["X-RateLimit-Warning"] == '"tok";r=100;q=1000'


def test_a_pickled_decision_keeps_its_warning(clock: FakeClock) -> None:
    limiter = Limiter("10/10s token_bucket", clock=clock)
    assert limiter.check("alice", cost=8).state == "warning"
    clock.advance(1)
    decision = limiter.peek("alice")  # 70 % used: still in warning
    assert told(pickle.loads(pickle.dumps(decision))) == told(decision)
    assert told(decision)["X-RateLimit-Warning"] == '"default";r=3;q=10'


@pytest.mark.parametrize("unit", ["requests", "tokens"])
def test_a_concurrency_limit_is_told_with_its_unit(clock: FakeClock, unit: str) -> None:
    rule = Rule(id="slots", unit=unit, quota="600 concurrent")
    with Limiter([rule], clock=clock).acquire("alice", cost={unit: 300}) as slot:
        fields = told(slot.decision)
    assert items(fields["RateLimit-Policy"]) == [("slots", {"q": 600, "qu": f"concurrent-{unit}"})]
    assert items(fields["RateLimit"])[0][1]["r"] == 300


def test_one_item_for_each_rule_the_most_restrictive_first(clock: FakeClock) -> None:
    rules = [
        Rule(id="wide", quota="1000/hour", dimension="ip"),
        Rule(id="narrow", quota="10/second", dimension="ip"),
        Rule(id="middle", quota="100/minute", dimension="ip"),
    ]
    fields = told(Limiter(rules, clock=clock).check(ip="192.0.2.7"))
    assert [item for item, _ in items(fields["RateLimit"])] == ["narrow", "middle", "wide"]
    assert items(fields["RateLimit-Policy"]) == [
        ("narrow", {"q": 10, "w": 1}),
        ("middle", {"q": 100, "w": 60}),
        ("wide", {"q": 1000, "w": 3600}),
    ]
    assert fields["X-RateLimit-Limit"] == "10"


def test_rules_that_are_tried_out_are_not_told_of(clock: FakeClock) -> None:
    shadow = Rule(id="shadow", quota="1/hour", dimension="ip", action="log_only")
    limiter = Limiter([shadow], clock=clock)
    assert told(limiter.check(ip="192.0.2.7")) == told(limiter.check(ip="192.0.2.7")) == {}
    both = Limiter([shadow, Rule(id="real", quota="10/hour", dimension="ip")], clock=clock)
    assert [item for item, _ in items(told(both.check(ip="192.0.2.7"))["RateLimit"])] == ["real"]


def test_no_limit_no_fields(clock: FakeClock) -> None:
    assert told(Limiter([], clock=clock).check(ip="192.0.2.7")) == {}
    assert told() == {}


def test_a_bucket_is_told_with_the_time_that_it_takes_to_fill(clock: FakeClock) -> None:
    fields = told(Limiter("10/second burst 25", clock=clock).check("alice"))
    assert fields["X-RateLimit-Limit"] == "25"
    assert items(fields["RateLimit-Policy"]) == [("default", {"q": 25, "w": 3})]  # 2.5 s: never more than is true


def test_windows_below_a_second_are_told_as_one(clock: FakeClock) -> None:
    fields = told(Limiter("10/250ms", clock=clock).check("alice"))
    assert items(fields["RateLimit-Policy"]) == [("default", {"q": 10, "w": 1})]


def test_figures_are_integers_that_structured_fields_can_hold(clock: FakeClock) -> None:
    fields = told(Limiter(f"{2**53 - 1}/hour", clock=clock).check("alice"))
    assert items(fields["RateLimit"])[0][1]["r"] == 999_999_999_999_999
    assert items(fields["RateLimit-Policy"])[0][1]["q"] == 999_999_999_999_999
    assert fields["X-RateLimit-Limit"] == str(2**53 - 1)


@pytest.mark.parametrize(
    ("rule", "item"),
    [
        ('say "hi"', 'say "hi"'),
        ("back\\slash", "back\\slash"),
        ("suche-für-alle", "suche-f%C3%BCr-alle"),
        ("a\nb\tc", "a%0Ab%09c"),
        ("🚦", "%F0%9F%9A%A6"),
        ("100%", "100%"),
    ],
)
def test_whatever_a_rule_is_called(rule: str, item: str) -> None:
    parsed: Any = http_sf.parse(string(rule).encode(), tltype="item")
    assert parsed[0] == item


def test_two_decisions_on_one_request(clock: FakeClock) -> None:
    wide = Limiter([Rule(id="app", quota="100/minute", dimension="ip")], clock=clock).check(ip="192.0.2.7")
    route = Limiter("5/minute", name="route", clock=clock)
    fields = told(wide, route.check("alice"))
    assert (fields["X-RateLimit-Limit"], fields["X-RateLimit-Remaining"]) == ("5", "4")
    assert [item for item, _ in items(fields["RateLimit"])] == ["route", "app"]
    route.check("alice", cost=4)
    refused = told(wide, route.check("alice"))
    assert refused["Retry-After"] == "40"  # the next minute, and a moment


def test_overrides_are_what_the_client_is_told(clock: FakeClock) -> None:
    snapshot = Snapshot(
        [Rule(id="search", quota="10/minute")], users=[User(id="alice", overrides=[Override(rule="search", limit=50)])]
    )
    assert told(Limiter(snapshot, clock=clock).check("alice"))["RateLimit-Policy"] == '"search";q=50;w=60'


def test_each_order_of_the_limits_has_its_own_policy(clock: FakeClock) -> None:
    rules = [Rule(id=name, quota="9/hour fixed_window", dimension=name) for name in ("ip", "user", "tenant")]
    limiter = Limiter(rules, clock=clock)
    for name in ("user", "ip", "ip", "tenant", "tenant", "tenant"):
        limiter.check(**{name: "x"})  # type: ignore[arg-type]
        decision = limiter.peek(ip="x", user="x", tenant="x")
        policies = dict(render(decision))[b"ratelimit-policy"].decode()
        assert policies == ", ".join(f'"{status.rule}";q=9;w=3600' for status in decision.limits)


def test_limits_that_share_a_space_are_told_as_they_are(clock: FakeClock) -> None:
    limiters = [Limiter(f"{limit}/minute", clock=clock) for limit in (5, 9, 5, 9)]
    fields = [dict(render(limiter.check("alice"))) for limiter in limiters]
    assert [one[b"x-ratelimit-limit"] for one in fields] == [b"5", b"9", b"5", b"9"]
    assert fields[1][b"ratelimit-policy"] == b'"default";q=9;w=60'
