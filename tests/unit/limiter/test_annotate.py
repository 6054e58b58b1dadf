"""Soft limits: rules of action annotate pass, and tell."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from headgate import AsyncLimiter, Limiter, Rule
from headgate.http.headers import Charged, fields_of, render
from headgate.service.data_plane import DataPlane
from headgate.service.http.decisions import encode_decision
from headgate.service.protos import rls_pb2
from headgate.service.protos.rate_limiter_pb2 import CheckResponse
from headgate.service.rpc.envoy import RateLimitService
from headgate.service.rpc.responses import encode
from headgate.testing import FakeClock
from tests.unit.service.rpc.test_rate_limiter import answer

RULES = [
    Rule(id="hard", quota="5/minute fixed_window"),
    Rule(id="included", quota="2/minute fixed_window", action="annotate"),
    Rule(id="idea", quota="1/minute fixed_window", action="log_only"),
]


class Kept:
    """Keeps what is recorded."""

    def __init__(self) -> None:
        self.rules: list[tuple[str, ...]] = []

    def record(self, facts: Any, cost: Any, decision: Any) -> None:  # noqa: ARG002
        self.rules.append(decision.annotated)


def test_a_request_over_it_passes_and_the_decision_tells() -> None:
    limiter = Limiter(RULES, clock=FakeClock(1_000_020.0))
    decisions = [limiter.check(user="u") for _ in range(6)]
    assert [decision.allowed for decision in decisions] == [True] * 5 + [False]
    assert [decision.state for decision in decisions] == [
        *("normal", "normal", "annotated", "annotated", "annotated", "throttled"),
    ]
    assert [decision.annotated for decision in decisions] == [(), (), *[("included",)] * 3, ()]
    assert [decision.reason for decision in decisions] == ["within_limit", *["shadow"] * 4, "over_limit"]


def test_clients_are_told_in_a_header_also_without_any_other_limit() -> None:
    limiter = Limiter([Rule(id='extra "1"', quota="1/minute", action="annotate")], clock=FakeClock(1_000_020.0))
    assert render(limiter.check(user="u")) == []
    over = limiter.check(user="u")
    assert render(over) == [(b"x-ratelimit-annotation", b'"extra \\"1\\""')]
    told = fields_of([Charged(over), Charged(Limiter("5/minute").check("u"))])
    assert dict(told)["X-RateLimit-Annotation"] == '"extra \\"1\\""'


def test_services_answer_with_the_state() -> None:
    limiter = Limiter(RULES[:2], clock=FakeClock(1_000_020.0))
    decision = [limiter.check(user="u") for _ in range(3)][-1]
    assert json.loads(encode_decision(decision))["state"] == "annotated"
    assert CheckResponse.FromString(encode(decision)).state == "annotated"


def test_envoy_gets_dynamic_metadata_and_what_was_over_is_recorded() -> None:
    rules = [Rule(id="included", quota="1/minute", dimension="tenant", action="annotate")]
    kept = Kept()
    data = DataPlane(AsyncLimiter(rules, clock=FakeClock(1_000_020.0)), recorder=kept)
    service = RateLimitService(data)
    request = rls_pb2.RateLimitRequest(domain="d")
    request.descriptors.add().entries.add(key="tenant", value="acme")
    answers = (asyncio.run(answer(service.should_rate_limit, request)) for _ in range(2))
    first, second = map(rls_pb2.RateLimitResponse.FromString, answers)
    assert first.overall_code == second.overall_code == rls_pb2.RateLimitResponse.OK
    assert dict(first.dynamic_metadata) == {}
    assert dict(second.dynamic_metadata) == {"annotated": "included"}
    assert kept.rules == [("included",)]
