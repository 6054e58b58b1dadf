"""Decision: how outcomes combine, and which limit binds."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limiter
from headgate.core.check import NEVER, Check, Outcome
from headgate.core.decision import Decision
from headgate.core.key import key_template
from headgate.core.plan import Plan
from headgate.core.quota import Quota
from headgate.testing import FakeClock
from tests.decisions import combine

NOW_US = 1_700_000_000_000_000
SECOND = 1_000_000


def check(rule: str, *, limit: int = 10, enforced: bool = True, algorithm: str = "fixed_window") -> Check:
    return Check(rule, key_template("user", rule, algorithm), "", Quota(limit, 60, algorithm=algorithm), 1, enforced)  # type: ignore[arg-type]


def test_within_limits_the_least_remaining_binds() -> None:
    decision = combine(
        (check("wide", limit=100), check("tight")), (Outcome(0, 70, 9 * SECOND), Outcome(0, 4, 5 * SECOND)), NOW_US
    )
    assert decision
    assert (decision.rule, decision.limit, decision.remaining) == ("tight", 10, 4)
    assert (decision.reset_after, decision.reset_at) == (5.0, 1_700_000_005.0)
    assert (decision.retry_after, decision.delay, decision.reason) == (0.0, 0.0, "within_limit")
    assert [status.rule for status in decision.limits] == ["tight", "wide"]


FIGURES = st.tuples(st.just(0), st.integers(0, 3), st.integers(0, 3))


@given(st.integers(1, 4).flatmap(lambda count: st.lists(st.tuples(*[FIGURES] * count), min_size=1)))
def test_the_order_of_limits_depends_on_this_decision_alone(decided: list[tuple[tuple[int, int, int], ...]]) -> None:
    plan = Plan(tuple(check(str(at)) for at in range(len(decided[0]))))
    for figures in decided:  # decisions of one plan, one after the other
        decision = Decision.of(True, NOW_US, plan, tuple(Outcome(*one) for one in figures))
        ranks = [(remaining, -reset, at) for at, (_, remaining, reset) in enumerate(figures)]
        assert decision.order == tuple(at for _, _, at in sorted(ranks))


def test_of_several_refusals_the_longest_wait_binds() -> None:
    decision = combine(
        (check("short"), check("long"), check("fits")),
        (Outcome(SECOND, 0, SECOND), Outcome(7 * SECOND, 0, 9 * SECOND), Outcome(0, 9, SECOND)),
        NOW_US,
    )
    assert not decision
    assert (decision.rule, decision.retry_after, decision.reason) == ("long", 7.0, "over_limit")
    assert [status.allowed for status in decision.limits] == [False, False, True]


def test_never_binds_before_any_wait() -> None:
    decision = combine((check("wait"), check("never")), (Outcome(SECOND, 0, 1), Outcome(NEVER, 5, 1)), NOW_US)
    assert (decision.rule, decision.retry_after) == ("never", None)


def test_a_shadow_never_refuses_and_never_binds() -> None:
    decision = combine(
        (check("real"), check("shadow", enforced=False)), (Outcome(0, 9, 1), Outcome(SECOND, 0, SECOND)), NOW_US
    )
    assert decision
    assert (decision.rule, decision.reason, decision.state, decision.retry_after) == ("real", "shadow", "normal", 0.0)
    assert [(status.rule, status.enforced) for status in decision.limits] == [("real", True), ("shadow", False)]


@pytest.mark.parametrize(
    ("remaining", "state"), [(10, "normal"), (3, "normal"), (2, "warning"), (1, "warning"), (0, "warning")]
)
def test_warning_from_80_percent_used(remaining: int, state: str) -> None:
    assert combine((check("rule"),), (Outcome(0, remaining, 1),), NOW_US).state == state


def test_throttled_when_refused() -> None:
    assert combine((check("rule"),), (Outcome(1, 9, 1),), NOW_US).state == "throttled"


def test_delay_is_what_stands_before_this_request_in_a_leaky_bucket() -> None:
    # 10 per minute: one every 6 s. Two requests of cost 1 and 2 are in it, the second is this one.
    leaky = check("queue", algorithm="leaky_bucket")
    decision = combine((leaky,), (Outcome(0, 7, 18 * SECOND),), NOW_US, cost=2)
    assert decision.delay == 6.0
    assert combine((leaky,), (Outcome(SECOND, 7, 18 * SECOND),), NOW_US).delay == 0.0


def test_no_rule() -> None:
    decision = Decision.of(True, NOW_US)
    assert decision
    assert (decision.reason, decision.rule, decision.limits) == ("no_rule", None, ())
    assert (decision.limit, decision.remaining, decision.retry_after, decision.reset_at) == (0, 0, 0.0, 1_700_000_000.0)
    assert decision.state == "normal"


def test_refused_without_a_store() -> None:
    decision = Decision.of(False, NOW_US, reason="fail_closed")
    assert (decision.allowed, decision.reason, decision.state, decision.rule) == (
        False,
        "fail_closed",
        "throttled",
        None,
    )


def test_as_plain_data_and_as_a_value() -> None:
    decision = combine((check("rule"),), (Outcome(0, 9, SECOND),), NOW_US)
    data = decision.as_dict()
    assert data["allowed"] is True
    assert data["limits"][0]["quota"] == "10/1m fixed_window"
    assert decision == combine((check("rule"),), (Outcome(0, 9, SECOND),), NOW_US)
    assert decision != combine((check("rule"),), (Outcome(0, 8, SECOND),), NOW_US)
    assert decision != 1
    assert len({decision, combine((check("rule"),), (Outcome(0, 9, SECOND),), NOW_US)}) == 1
    assert repr(decision).startswith("Decision(allowed=True, limit=10, remaining=9,")


def test_the_cause_is_the_binding_rule_and_the_reason() -> None:
    allowed = combine((check("wide", limit=100), check("tight")), (Outcome(0, 70, 1), Outcome(0, 4, 1)), NOW_US)
    assert allowed.cause() == ("tight", "within_limit")
    refused = combine((check("a"), check("b")), (Outcome(0, 1, 1), Outcome(SECOND, 0, 1)), NOW_US)
    assert refused.cause() == ("b", "over_limit")
    assert Decision.of(True, NOW_US, reason="exempt").cause() == (None, "exempt")
    assert Decision.of(True, NOW_US).cause() == (None, "no_rule")


def test_the_cause_of_a_shadow_is_the_shadow_that_would_have_refused() -> None:
    rules = (check("real"), check("fits", enforced=False), check("shadow", enforced=False))
    outcomes = (Outcome(0, 0, 1), Outcome(0, 9, 1), Outcome(SECOND, 0, SECOND))
    assert combine(rules, outcomes, NOW_US).cause() == ("shadow", "shadow")
    assert combine(rules[2:], outcomes[2:], NOW_US).cause() == ("shadow", "shadow")


def test_threads_that_read_one_decision_for_the_first_time_read_the_same() -> None:
    together = threading.Barrier(4)

    def read(decision: Decision) -> tuple[int, float, str]:
        together.wait()
        return decision.remaining, decision.reset_after, decision.state

    limiter = Limiter("100/minute fixed_window; 1000/hour fixed_window", clock=FakeClock(start=0.0))
    with ThreadPoolExecutor(4) as threads:
        for number in range(99):
            decision = limiter.check("alice")
            read_by = {future.result() for future in [threads.submit(read, decision) for _ in range(4)]}
            assert len(read_by) == 1
            assert read_by.pop()[0] == 99 - number
