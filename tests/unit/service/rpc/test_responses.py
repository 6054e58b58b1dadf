"""Decisions on the wire: whatever is written by hand reads as protobuf would have written it."""

from __future__ import annotations

import asyncio
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import AsyncLimiter, Decision, Limiter, Rule
from headgate.core.check import NEVER, Check, Outcome
from headgate.core.quota import Quota
from headgate.http.request_limiter import resolve
from headgate.rules import Snapshot
from headgate.service.protos.rate_limiter_pb2 import CheckBatchResponse, CheckResponse, LimitStatus, QuotaResponse
from headgate.service.rpc.responses import encode, encode_batch, encode_figures, varint
from headgate.testing import FakeClock
from tests.decisions import combine


def message_of(decision: Decision) -> CheckResponse:
    """A decision as a message, field by field."""

    def wait(seconds: float | None) -> int:
        return -1 if seconds is None else ceil(seconds)

    now_us = decision.at_us
    return CheckResponse(
        allowed=decision.allowed,
        current_count=decision.limit - decision.remaining,
        limit=decision.limit,
        remaining=decision.remaining,
        reset_at=-((now_us + round(decision.reset_after * 1e6)) // -1_000_000),
        retry_after=wait(decision.retry_after),
        rule=decision.rule,
        state=decision.state,
        reason=decision.reason,
        limits=[
            LimitStatus(
                rule=one.rule,
                allowed=one.allowed,
                enforced=one.enforced,
                limit=one.limit,
                remaining=one.remaining,
                reset_at=-((now_us + round(one.reset_after * 1e6)) // -1_000_000),
                retry_after=wait(one.retry_after),
                quota=str(one.quota),
                unit=one.unit,
            )
            for one in decision.limits
        ],
        decision_id="" if decision.allowed else decision.id,
    )


outcomes = st.builds(
    Outcome,
    st.one_of(st.sampled_from([0, 0, NEVER]), st.integers(1, 10**12)),
    st.integers(0, 100),
    st.integers(0, 10**12),
)
checks = st.builds(
    lambda rule, limit, enforced: Check(rule, f"s-{rule}", "x", Quota(limit, 60), 1, enforced),
    st.text(max_size=8),
    st.integers(100, 2**53 - 1),
    st.booleans(),
)


@given(st.lists(st.tuples(checks, outcomes), max_size=4), st.integers(0, 2**50))
def test_any_decision(asked: list[tuple[Check, Outcome]], now_us: int) -> None:
    def decision() -> Decision:
        return combine(tuple(check for check, _ in asked), tuple(outcome for _, outcome in asked), now_us)

    try:
        expected = message_of(decision())
    except UnicodeEncodeError:
        return
    fresh = decision()
    answer = CheckResponse.FromString(encode(fresh))
    assert answer.decision_id == ("" if fresh.allowed else fresh.id)
    expected.decision_id = answer.decision_id  # each decision has one of its own
    assert answer == expected
    expected.decision_id = ""
    assert QuotaResponse.FromString(encode_figures(decision())).SerializeToString() == expected.SerializeToString()


@pytest.mark.parametrize("count", [1, 2])
def test_the_decisions_of_a_limiter(count: int) -> None:
    """Until it is refused, by one rule and by two."""
    clock = FakeClock(1_700_000_000.0)
    rules = [Rule(id=f"r{number}", quota=f"{10 * number}/minute gcra") for number in range(1, count + 1)]
    limiter = AsyncLimiter(rules, clock=clock)
    decisions = []
    for _ in range(12):
        decisions.append(asyncio.run(resolve(limiter.decide({"user": "u"}))))
        clock.advance(0.1)
    batch = CheckBatchResponse.FromString(encode_batch(decisions))
    assert list(batch.responses) == [message_of(decision) for decision in decisions]
    assert {response.state for response in batch.responses} == {"normal", "warning", "throttled"}


def test_a_refusal_because_no_rule_applies() -> None:
    decision = Limiter(Snapshot([Rule(id="r", quota="1/minute")], unmatched="refuse")).check(ip="192.0.2.7")
    answer = CheckResponse.FromString(encode(decision))
    assert answer == message_of(decision)
    assert (answer.allowed, answer.retry_after, answer.decision_id) == (False, -1, decision.id)


@given(st.integers(0, 2**56 - 1))
def test_numbers_are_written_as_protobuf_does(number: int) -> None:
    expected = CheckResponse(limit=number).SerializeToString()[1:] if number else b"\0"
    assert varint(number) == expected
