"""What a refused client reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate import Decision, Limiter, Rule
from headgate.errors import StoreUnavailable
from headgate.http.headers import Charged
from headgate.http.limits import Limits
from headgate.http.problem import RefusalResponse, problem, refusal
from headgate.rules.snapshot import Snapshot
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock


class Down(MemoryStore):
    """A store that cannot decide."""

    def check(self, *_: Any) -> Any:
        raise StoreUnavailable("no route to host")

    def compile(self, *_: Any) -> Any:
        return self.check


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000)


def refused(limiter: Limiter, times: int = 1) -> Decision:
    for _ in range(times):
        limiter.check(ip="192.0.2.7")
    decision = limiter.check(ip="192.0.2.7")
    assert not decision.allowed
    return decision


def test_a_refusal(clock: FakeClock) -> None:
    message = "Rate limit exceeded. Upgrade to Premium."
    rule = Rule(id="search-free", quota="1/10s fixed_window", dimension="ip", message=message)
    decision = refused(Limiter([rule], clock=clock))
    assert problem(decision) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": message,
        "violated-policies": ["search-free"],
        "retry_after": 10,
        "decision_id": decision.id,
    }


def test_a_rule_without_a_message_says_when_to_come_again(clock: FakeClock) -> None:
    limiter = Limiter([Rule(id="r", quota="1/10s fixed_window", dimension="ip")], clock=clock)
    assert problem(refused(limiter))["detail"] == "Rate limit exceeded. Try again in 10 seconds."
    clock.advance(9.5)
    assert problem(refused(limiter, 0))["detail"] == "Rate limit exceeded. Try again in 1 second."


def test_what_can_never_pass_is_told_so(clock: FakeClock) -> None:
    told = problem(Limiter("5/minute", clock=clock).check("alice", cost=6))
    assert told["retry_after"] is None
    assert "can ever hold" in told["detail"]


def test_only_the_rules_that_refuse_are_violated(clock: FakeClock) -> None:
    rules = [
        Rule(id="wide", quota="100/minute", dimension="ip"),
        Rule(id="narrow", quota="1/minute", dimension="ip", status=420),
        Rule(id="shadow", quota="1/hour", dimension="ip", action="log_only"),
    ]
    told = problem(refused(Limiter(rules, clock=clock)))
    assert (told["violated-policies"], told["status"]) == (["narrow"], 420)


def test_a_store_that_is_down_and_a_rule_that_is_closed(clock: FakeClock) -> None:
    rule = Rule(id="r", quota="1/minute", dimension="ip", failure_mode="closed")
    limiter = Limiter([rule], store=Down(), clock=clock)
    decision = limiter.check(ip="192.0.2.7")
    told = problem(decision)
    assert told["type"].endswith("#temporary-reduced-capacity")
    assert (told["status"], told["retry_after"]) == (503, 1)
    assert "violated-policies" not in told
    limits = Limits(limiter, {})
    limits.charged.append(Charged(decision))
    assert dict(limits.fields)["Retry-After"] == "1"


def test_the_whole_answer(clock: FakeClock) -> None:
    limiter = Limiter([Rule(id="r", quota="1/minute", dimension="ip")], clock=clock)
    limits = Limits(limiter, {"ip": "192.0.2.7"})
    limits.charged.append(Charged(refused(limiter)))
    answer = refusal(limits)
    content = dict(answer.content)
    assert content["Content-Type"] == "application/problem+json"
    assert content["Content-Length"] == str(len(answer.body))
    assert json.loads(answer.body) == problem(limits.decision)
    assert "X-RateLimit-Decision-Id" not in content


def test_the_id_of_the_decision_is_a_header_where_the_rules_ask_for_it(clock: FakeClock) -> None:
    snapshot = Snapshot([Rule(id="r", quota="1/minute", dimension="ip")], decision_header=True)
    limiter = Limiter(snapshot, clock=clock)
    limits = Limits(limiter, {"ip": "192.0.2.7"})
    limits.charged.append(Charged(refused(limiter)))
    answer = refusal(limits)
    assert dict(answer.content)["X-RateLimit-Decision-Id"] == json.loads(answer.body)["decision_id"]


@pytest.mark.parametrize(
    ("status", "line"), [(429, "429 Too Many Requests"), (420, "420 Refused"), (403, "403 Forbidden")]
)
def test_the_status_line(status: int, line: str) -> None:
    assert RefusalResponse(status, [], b"").line == line
