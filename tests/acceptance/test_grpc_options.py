"""The interceptor's options that the other frameworks have too, in real servers of every kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Queue
from typing import Any

import grpc
import pytest

from headgate import Decision, Limiter, Rule
from headgate.errors import InvalidQuota, InvalidRule
from headgate.http.grpc import GrpcRequest, GrpcResponse, RateLimitInterceptor
from headgate.testing import FakeClock
from tests.acceptance.apps.grpc_echo import SERVICE
from tests.acceptance.test_grpc import EXHAUSTED, MINUTE, OK, START, STUCK, client_of, kind, quiet

__all__ = ["kind", "quiet"]

LIMITER = {"limiter": {"clock": FakeClock(START)}}


def later(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same function, async."""

    async def call(value: Any) -> Any:
        return function(value)

    return call


def forms(kind: str, function: Callable[[Any], Any]) -> list[Callable[[Any], Any]]:
    return [function] if kind == "threads" else [function, later(function)]


def test_calls_are_exempt_when_a_function_says_so(kind: str) -> None:
    def is_internal(request: GrpcRequest) -> bool:
        return request.header("x-internal") == "1"

    for exempt_when in forms(kind, is_internal):
        with client_of(kind, MINUTE, exempt_when=exempt_when, defaults="1/minute", **LIMITER) as client:
            assert [client("unary", metadata=(("x-internal", "1"),)).code for _ in range(4)] == [OK] * 4
            assert [client("unary").code for _ in range(2)] == [OK, EXHAUSTED]


def test_a_call_is_charged_only_when_its_end_says_so(kind: str) -> None:
    seen: list[tuple[grpc.StatusCode, str]] = []

    def is_failure(response: GrpcResponse) -> bool:
        seen.append((response.code, response.details))
        return response.code is not OK

    ends = {
        "unary": (OK, ""),
        "fan": (OK, ""),
        "join": (OK, ""),
        "chat": (OK, ""),
        "abort": (grpc.StatusCode.FAILED_PRECONDITION, "not now"),
        "code": (grpc.StatusCode.NOT_FOUND, "nowhere"),
        "fail": (grpc.StatusCode.UNKNOWN, ""),
        "fail_in_stream": (grpc.StatusCode.UNKNOWN, ""),
    }
    rules = [Rule(id="r", quota="9/minute fixed_window", dimension="ip")]
    for deduct_when in forms(kind, is_failure):
        with client_of(kind, rules, deduct_when=deduct_when, limiter={"clock": FakeClock(START)}) as client:
            seen.clear()
            told = {method: client(method).trailing["x-ratelimit-remaining"] for method in ends}
            assert seen == list(ends.values())
            assert list(told.values()) == ["9", "9", "9", "9", "8", "7", "6", "5"]


@pytest.mark.parametrize("kind", ["threads", "asyncio"])  # a handler in a thread of asyncio's does not learn of it
def test_a_call_that_its_client_breaks_off_is_given_back(kind: str) -> None:
    seen: Queue[grpc.StatusCode] = Queue()

    def is_ok(response: GrpcResponse) -> bool:
        seen.put(response.code)
        return response.code is OK

    with client_of(kind, MINUTE, deduct_when=is_ok, **LIMITER) as client:
        call = client.channel.unary_stream(f"/{SERVICE}/endless")(b"a", timeout=STUCK)
        assert next(call) == b"a"
        call.cancel()
        assert seen.get(timeout=STUCK) is grpc.StatusCode.CANCELLED
        time.sleep(0.1)  # the function has been called; the refund follows
        assert client("unary").trailing["x-ratelimit-remaining"] == "1"
        assert seen.get(timeout=STUCK) is OK


def test_each_client_has_a_default_quota_on_each_method(kind: str) -> None:
    def by_method(request: GrpcRequest) -> str | None:
        return None if request.path.endswith("/fan") else "1/minute"

    rules = [Rule(id="r", quota="5/minute fixed_window", dimension="ip")]
    for defaults in ("1/minute", *forms(kind, by_method)):
        with client_of(kind, rules, defaults=defaults, limiter={"clock": FakeClock(START)}) as client:
            answers = [client("unary") for _ in range(2)]
            assert [answer.code for answer in answers] == [OK, EXHAUSTED]
            assert str(answers[0].trailing["ratelimit-policy"]).startswith(f'"/{SERVICE}/unary')
            assert client("join").code is OK  # a method of its own
            fans = [client("fan") for _ in range(2)]
            assert [answer.code for answer in fans] == [OK, EXHAUSTED if defaults == "1/minute" else OK]
            # The rules were not charged for what the defaults refused.
            left = 1 if fans[1].code is EXHAUSTED else 0
            assert f'"r";r={left};t=60' in str(client("chat").trailing["ratelimit"])


def test_a_call_that_the_defaults_refuse_holds_no_slot(kind: str) -> None:
    rules = [Rule(id="slots", quota="1 concurrent ttl 1h", dimension="ip")]
    with client_of(kind, rules, defaults="1/minute", **LIMITER) as client:
        assert [client("unary").code for _ in range(2)] == [OK, EXHAUSTED]
        deadline = time.monotonic() + STUCK
        while (left := client("fan")).code is not OK and time.monotonic() < deadline:
            assert "slots" in left.trailing["ratelimit-policy"]
            time.sleep(0.01)
        assert left.code is OK


def test_a_call_whose_defaults_fail_holds_no_slot(kind: str) -> None:
    def fail(request: GrpcRequest) -> str:
        if request.path.endswith("/fan"):
            raise LookupError("no such quota")
        return "9/minute"

    rules = [Rule(id="slots", quota="1 concurrent ttl 1h", dimension="ip")]
    with client_of(kind, rules, defaults=fail, limiter={"clock": FakeClock(START)}) as client:
        assert client("fan").code is grpc.StatusCode.UNKNOWN
        assert client("unary").code is OK


def test_fields_are_chosen(kind: str) -> None:
    with client_of(kind, MINUTE, headers="ietf", **LIMITER) as client:
        assert set(client("unary").trailing) == {"ratelimit", "ratelimit-policy"}
    with client_of(kind, MINUTE, headers="off", limiter={"clock": FakeClock(START)}) as client:
        answers = [client("unary") for _ in range(3)]
        assert [set(answer.trailing) for answer in answers[:2]] == [set(), set()]
        assert answers[2].trailing["grpc-retry-pushback-ms"] == "60000"


def test_refusals_call_the_hook(kind: str) -> None:
    told: list[tuple[str | None, str | None]] = []

    def on_refused(decision: Decision, facts: Any) -> None:
        told.append((decision.rule, facts.get("endpoint")))

    limiter = {"clock": FakeClock(START), "on_refused": on_refused}
    with client_of(kind, MINUTE, defaults="1/minute", limiter=limiter) as client:
        assert [client("unary").code for _ in range(2)] == [OK, EXHAUSTED]
        assert [client("fan").code, client("join").code] == [OK, EXHAUSTED]
    assert told == [(f"/{SERVICE}/unary", f"/{SERVICE}/unary"), ("r", f"/{SERVICE}/join")]


def test_options_are_checked() -> None:
    wrong: dict[str, Any] = {"headers": "non", "exempt_when": 1, "deduct_when": later(bool)}
    for name, value in wrong.items():
        with pytest.raises(InvalidRule, match=f"^{name}: "):
            RateLimitInterceptor(limiter=Limiter("1/minute"), **{name: value})
    with pytest.raises(InvalidQuota, match="minuet"):
        RateLimitInterceptor(limiter=Limiter("1/minute"), defaults="5/minuet")
