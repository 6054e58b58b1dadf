"""What is written out by hand is what `as_dict` says, for every kind of decision."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from headgate import Decision, Limiter, Quota, Rule
from headgate.core.check import Check, Outcome
from headgate.core.quota import BUCKETS, WINDOWS
from headgate.rules import Exemption, Penalties, Snapshot
from headgate.service.http.decisions import encode_decision
from headgate.testing import FakeClock
from tests.decisions import combine


def same(decision: Decision) -> None:
    assert json.loads(encode_decision(decision)) == decision.as_dict()


@pytest.mark.parametrize("algorithm", WINDOWS + BUCKETS)
def test_of_every_algorithm_from_the_first_to_the_refused(algorithm: str) -> None:
    clock = FakeClock(start=1_700_000_000.123456)
    limiter = Limiter(f"5/minute {algorithm}", clock=clock)
    seen = set()
    for _ in range(7):
        decision = limiter.check("alice")
        same(decision)
        seen.add((decision.state, decision.reason))
        clock.advance(0.7)
    assert {("normal", "within_limit"), ("warning", "within_limit"), ("throttled", "over_limit")} <= seen
    same(limiter.check("alice", cost=10**9))


def made() -> Iterator[tuple[str, Decision]]:
    """Decisions of other kinds, each with the reason that it must have."""
    clock = FakeClock(start=1_000_000)
    rules = [
        Rule(id='100 % "böse"', quota="3/minute", dimension="user"),
        Rule(id="global", quota="2/hour gcra", dimension="global", endpoints=["/two"]),
        Rule(id="tried", quota="1/hour", dimension="user", endpoints=["/tried"], action="log_only"),
        Rule(id="paced", quota="1/second burst 9 leaky_bucket", dimension="user", endpoints=["/paced"]),
    ]
    limiter = Limiter(Snapshot(rules, exemptions=[Exemption(type="user", value="boss")]), clock=clock)
    yield "within_limit", limiter.check(user="a")
    yield "within_limit", limiter.check(user="b", endpoint="/two")
    yield "exempt", limiter.check(user="boss")
    yield "no_rule", limiter.check(ip="192.0.2.7")
    yield "within_limit", limiter.check(user="c", endpoint="/tried")
    yield "shadow", limiter.check(user="c", endpoint="/tried")
    yield "within_limit", limiter.check(user="d", endpoint="/paced")
    yield "within_limit", limiter.check(user="d", endpoint="/paced")
    yield "over_limit", limiter.check(user="e", endpoint="/two", cost=4)
    yield "no_rule", Limiter(Snapshot(rules, unmatched="refuse"), clock=clock).check(ip="192.0.2.7")
    penalties = Penalties(enabled=True, violation_threshold=1)
    strict = Limiter(Snapshot([Rule(id="r", quota="1/minute")], penalties=penalties), clock=clock)
    strict.check(user="a")
    yield "penalty", strict.check(user="a")
    yield "penalty", strict.check(user="a")
    check = Check("r", "r", "", Quota.parse("5/minute"))
    yield "fail_closed", combine((check,), (Outcome(1_000_000, 0, 1_000_000),), clock.now_us(), reason="fail_closed")
    yield "fail_open", Decision.of(True, clock.now_us(), reason="fail_open")


@pytest.mark.parametrize(("reason", "decision"), list(made()))
def test_of_every_reason(reason: str, decision: Decision) -> None:
    assert decision.reason == reason
    same(decision)


def test_one_quota_of_two_rules() -> None:
    quota = Quota.parse("5/minute")
    for _ in range(2):
        for name in ("one", "two"):
            decision = Limiter([Rule(id=name, quota=quota)]).check(user="alice")
            assert json.loads(encode_decision(decision))["rule"] == name
