"""What a decision says, field by field."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from headgate import Decision, Quota, Rule
from headgate.testing import FakeClock
from tests.integration.limiters import Open
from tests.unit.limiter.conftest import START


def test_an_allowed_one(open_limiter: Open, clock: FakeClock) -> None:
    clock.advance(15.5)
    decision = open_limiter("10/minute fixed_window", clock=clock).check("alice", cost=2)
    assert decision.as_dict() == {
        "allowed": True,
        "limit": 10,
        "remaining": 8,
        "reset_at": START + 60,
        "reset_after": 44.5,
        "retry_after": 0.0,
        "delay": 0.0,
        "rule": "default",
        "state": "normal",
        "reason": "within_limit",
        "limits": [
            {
                "rule": "default",
                "quota": "10/1m fixed_window",
                "enforced": True,
                "allowed": True,
                "limit": 10,
                "remaining": 8,
                "reset_after": 44.5,
                "retry_after": 0.0,
                "delay": 0.0,
                "unit": "requests",
            }
        ],
    }
    assert decision


def test_a_refused_one(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter("10/minute fixed_window", clock=clock, name="login")
    limiter.check("alice", cost=9)
    clock.advance(45)
    refused = limiter.check("alice", cost=2)
    assert not refused
    assert (refused.allowed, refused.remaining, refused.retry_after, refused.delay) == (False, 1, 15.0, 0.0)
    assert (refused.rule, refused.state, refused.reason) == ("login", "throttled", "over_limit")
    assert (refused.reset_after, refused.reset_at) == (15.0, START + 60)


def test_one_that_can_never_pass(open_limiter: Open, clock: FakeClock) -> None:
    never = open_limiter("10/minute", clock=clock).check("alice", cost=11)
    assert (never.allowed, never.retry_after, never.remaining, never.reason) == (False, None, 10, "over_limit")


@pytest.mark.parametrize(
    ("used", "state"), [(1, "normal"), (79, "normal"), (80, "warning"), (100, "warning"), (101, "throttled")]
)
def test_the_state_warns_from_four_fifths(open_limiter: Open, clock: FakeClock, used: int, state: str) -> None:
    limiter = open_limiter("100/minute", clock=clock)
    limiter.check("alice", cost=used - 1)
    assert limiter.check("alice").state == state


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket", "gcra"])
def test_a_bucket_counts_down_from_its_burst(open_limiter: Open, clock: FakeClock, algorithm: str) -> None:
    decision = open_limiter(f"60/minute burst 5 {algorithm}", clock=clock).check("alice")
    assert (decision.limit, decision.remaining, decision.reset_after) == (5, 4, 1.0)


def test_a_leaky_bucket_tells_each_request_its_turn(open_limiter: Open, clock: FakeClock) -> None:
    """One leaves per second: those in front have to leave first."""
    limiter = open_limiter("60/minute burst 4 leaky_bucket", clock=clock)
    assert [limiter.check("alice").delay for _ in range(3)] == [0.0, 1.0, 2.0]
    clock.advance(1.5)
    assert limiter.check("alice", cost=2).delay == 1.5
    refused = limiter.check("alice")
    assert (refused.allowed, refused.delay, refused.retry_after) == (False, 0.0, 0.5)


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_log", "gcra", "token_bucket"])
def test_no_other_algorithm_delays(open_limiter: Open, clock: FakeClock, algorithm: str) -> None:
    limiter = open_limiter(f"60/minute {algorithm}", clock=clock)
    assert [limiter.check("alice").delay for _ in range(3)] == [0.0, 0.0, 0.0]


def test_the_binding_limit_is_the_one_with_the_least_remaining(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter("100/hour; 10/minute; 50/second", clock=clock)
    decision = limiter.check("alice", cost=3)
    assert (decision.rule, decision.limit, decision.remaining) == ("default/1m", 10, 7)
    assert [(status.rule, status.remaining) for status in decision.limits] == [
        ("default/1m", 7),
        ("default/1s", 47),
        ("default/1h", 97),
    ]


def test_of_a_refusal_it_is_the_one_that_takes_longest(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter("5/second fixed_window; 5/hour fixed_window; 100/minute", clock=clock)
    limiter.check("alice", cost=5)
    refused = limiter.check("alice")
    assert refused.rule == "default/1h"
    assert refused.retry_after == refused.limits[0].retry_after
    assert [status.allowed for status in refused.limits] == [False, False, True]
    never = limiter.check("alice", cost=6)
    assert (never.retry_after, never.limits[0].retry_after, never.limits[-1].retry_after) == (None, None, 0.0)


def test_a_shadow_counts_and_never_refuses(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter(
        [
            Rule(id="shadow", quota=Quota(1, 60), action="log_only"),
            Rule(id="real", quota=Quota(3, 60)),
        ],
        clock=clock,
    )
    decisions = [limiter.check(user="alice") for _ in range(4)]
    assert [each.reason for each in decisions] == ["within_limit", "shadow", "shadow", "over_limit"]
    assert [each.allowed for each in decisions] == [True, True, True, False]
    assert {each.rule for each in decisions} == {"real"}
    assert decisions[1].state == "normal"
    assert [(status.rule, status.enforced, status.allowed) for status in decisions[1].limits] == [
        ("real", True, True),
        ("shadow", False, False),
    ]


def test_without_a_rule_all_is_free(open_limiter: Open, clock: FakeClock) -> None:
    for limiter in (open_limiter([], clock=clock), open_limiter([Rule(id="r", quota=Quota(1, 1))], clock=clock)):
        free = limiter.check(ip="192.0.2.7")
        assert (free.allowed, free.reason, free.state, free.rule, free.limits) == (True, "no_rule", "normal", None, ())
        assert (free.limit, free.remaining, free.retry_after, free.delay) == (0, 0, 0.0, 0.0)
        assert (free.reset_after, free.reset_at) == (0.0, START)


def test_a_rules_cost_multiplies(open_limiter: Open, clock: FakeClock) -> None:
    limiter = open_limiter([Rule(id="heavy", quota=Quota(60, 60, algorithm="leaky_bucket"), cost=5)], clock=clock)
    assert limiter.check(user="alice", cost=2).remaining == 50
    assert limiter.check(user="alice").delay == 10.0


def sample(open_limiter: Open, clock: FakeClock) -> list[Decision]:
    limiter = open_limiter("2/minute; 5/hour leaky_bucket", clock=clock)
    alone = open_limiter("1/minute", clock=clock)
    return [*(limiter.check("alice") for _ in range(3)), *(alone.check("alice") for _ in range(2))]


def test_it_is_plain_data(open_limiter: Open, clock: FakeClock) -> None:
    for decision in sample(open_limiter, clock):
        assert json.loads(json.dumps(decision.as_dict())) == decision.as_dict()
        assert repr(decision).startswith(f"Decision(allowed={decision.allowed}, limit={decision.limit}, ")
        assert pickle.loads(pickle.dumps(decision)) == decision
        assert copy.deepcopy(decision) == decision


def test_equal_ones_are_equal(open_limiter: Open, clock: FakeClock) -> None:
    one, other = sample(open_limiter, clock), sample(open_limiter, clock)
    assert one == other
    assert [hash(decision) for decision in one] == [hash(decision) for decision in other]
    assert len(set(one)) == len(one)
    assert one[0] != one[1]
    assert one[0] != "allowed"


def test_it_does_not_change_with_time(open_limiter: Open, clock: FakeClock) -> None:
    """Its figures are those of the moment in which it was made, whenever they are asked for."""
    limiter = open_limiter("3/minute sliding_window_log", clock=clock)
    first = limiter.check("alice")
    early = first.as_dict()
    clock.advance(7)
    second = limiter.check("alice")
    clock.advance(70)
    limiter.check("alice", cost=3)
    assert first.as_dict() == early
    assert (second.remaining, second.reset_at) == (1, START + 67)


@pytest.mark.parametrize("name", ["remaining", "retry_after", "limits", "new"])
def test_figures_cannot_be_set(open_limiter: Open, clock: FakeClock, name: str) -> None:
    decision = open_limiter("3/minute", clock=clock).check("alice")
    with pytest.raises(AttributeError):
        setattr(decision, name, False)
