"""headgate.v1.RateLimiter without a transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from google.protobuf.message import Message

from headgate import AsyncLimiter, Decision, Rule
from headgate.errors import InvalidCheck, StoreUnavailable
from headgate.http.identity import hashed_api_key
from headgate.rules.snapshot import Snapshot
from headgate.service.data_plane import MAX_BATCH, DataPlane
from headgate.service.protos.rate_limiter_pb2 import (
    API_KEY,
    GLOBAL,
    IP,
    TENANT,
    USER,
    CheckBatchRequest,
    CheckBatchResponse,
    CheckRequest,
    CheckResponse,
    QuotaRequest,
    QuotaResponse,
    ResetRequest,
)
from headgate.service.rpc.rate_limiter import RateLimiter
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.telemetry.meter import Meter
from headgate.testing import FakeClock

NOW = 1_700_000_000
RULES = [
    Rule(id="user", quota="3/minute fixed_window", endpoints=["/user"]),
    Rule(id="ip", quota="3/minute fixed_window", dimension="ip"),
    Rule(id="key", quota="3/minute fixed_window", dimension="api_key"),
    Rule(id="tenant", quota="3/minute fixed_window", dimension="tenant"),
    Rule(id="all", quota="3/minute fixed_window", dimension="global", endpoints=["/all"]),
    Rule(id="gold", quota="3/minute fixed_window", tiers=["gold"], methods=["POST"], match={"country": "DE"}),
    Rule(id="shadow", quota="1/minute fixed_window", endpoints=["/shadow"], action="log_only"),
]


class Broken(AsyncMemoryStore):
    async def check(self, groups: Sequence[Any]) -> Any:  # noqa: ARG002
        raise StoreUnavailable("broken")


async def answer(method: Callable[[bytes], Any], request: Message) -> bytes:
    """What a method answers to a message, as it is sent."""
    answered = method(request.SerializeToString())
    sent, _ = answered if isinstance(answered, tuple) else await answered
    assert isinstance(sent, bytes)
    return sent


class Told(Meter):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.skewed_by: list[float] = []
        self.decisions: list[Decision] = []

    def record_decision(self, decision: Decision) -> None:
        self.decisions.append(decision)

    def record_skew(self, seconds: float) -> None:
        self.skewed_by.append(seconds)


class Recorded:
    """Remembers what was recorded."""

    def __init__(self) -> None:
        self.events: list[tuple[dict[str, str], Any, str]] = []

    def record(self, facts: Mapping[str, str], cost: Any, decision: Decision) -> None:
        self.events.append((dict(facts), cost, decision.reason))


class World:
    """The methods on a clock of their own, awaited."""

    def __init__(self, rules: list[Rule] | Snapshot = RULES, *, broken: bool = False) -> None:
        self.clock = FakeClock(float(NOW))
        memory = MemoryStore(clock=self.clock)
        limiter = AsyncLimiter(rules, store=Broken(memory) if broken else memory, clock=self.clock)
        self.meter, self.recorder = Told(), Recorded()
        self.rpc = RateLimiter(DataPlane(limiter, meter=self.meter, recorder=self.recorder))

    def check(self, **fields: Any) -> CheckResponse:
        return CheckResponse.FromString(asyncio.run(answer(self.rpc.check, CheckRequest(**fields))))

    def batch(self, *checks: dict[str, Any]) -> list[CheckResponse]:
        request = CheckBatchRequest(checks=[CheckRequest(**fields) for fields in checks])
        return list(CheckBatchResponse.FromString(asyncio.run(answer(self.rpc.check_many, request))).responses)

    def quota(self, **fields: Any) -> QuotaResponse:
        return QuotaResponse.FromString(asyncio.run(answer(self.rpc.quota, QuotaRequest(**fields))))

    def reset(self, **fields: Any) -> None:
        asyncio.run(self.rpc.reset(ResetRequest(**fields)))


@pytest.fixture
def world() -> World:
    return World()


def test_every_field_of_an_answer(world: World) -> None:
    answer = world.check(identifier="u", dimension=USER, endpoint="/user")
    window_end = NOW // 60 * 60 + 60
    assert (answer.allowed, answer.current_count, answer.limit, answer.remaining) == (True, 1, 3, 2)
    assert (answer.reset_at, answer.retry_after, answer.rule) == (window_end, 0, "user")
    assert (answer.state, answer.reason) == ("normal", "within_limit")
    assert [status.rule for status in answer.limits] == ["user"]
    refused = world.check(identifier="u", dimension=USER, endpoint="/user", cost=3)
    assert (refused.allowed, refused.current_count, refused.remaining) == (False, 1, 2)
    assert (refused.state, refused.reason) == ("throttled", "over_limit")
    assert refused.retry_after == window_end - NOW
    never = world.check(identifier="u", dimension=USER, endpoint="/user", cost=4)
    assert (never.retry_after, never.limits[0].retry_after) == (-1, -1)
    none = world.check(identifier="u", dimension=USER)
    assert (none.allowed, none.limit, none.rule, none.reason, len(none.limits)) == (True, 0, "", "no_rule", 0)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"identifier": "u", "dimension": USER, "endpoint": "/user"}, "user"),
        ({"identifier": "u", "endpoint": "/user"}, "user"),
        ({"identifier": "192.0.2.1", "dimension": IP}, "ip"),
        ({"identifier": "secret", "dimension": API_KEY}, "key"),
        ({"identifier": "t", "dimension": TENANT}, "tenant"),
        ({"dimension": GLOBAL, "endpoint": "/all"}, "all"),
        ({"facts": {"user": "u"}, "endpoint": "/user"}, "user"),
        ({"facts": {"user": "u"}, "identifier": "u", "dimension": USER, "endpoint": "/user"}, "user"),
        ({"facts": {"user": "u", "country": "DE"}, "tier": "gold", "method": "post"}, "gold"),
        ({"facts": {"user": "u", "country": "DE", "tier": "gold", "method": "POST"}}, "gold"),
    ],
)
def test_facts(world: World, fields: dict[str, Any], rule: str) -> None:
    assert world.check(**fields).rule == rule
    assert world.batch(fields)[0].rule == rule
    if "cost" not in fields:
        assert world.quota(**fields).current_count == 2
        world.reset(**fields)
        assert world.quota(**fields).current_count == 0


def test_addresses_are_written_as_the_middleware_writes_them(world: World) -> None:
    spellings = ["2001:db8::1", "2001:0DB8:0:0::2", "[2001:db8::3]:443"]
    assert [world.check(identifier=one, dimension=IP).current_count for one in spellings] == [1, 2, 3]
    assert world.check(facts={"ip": "::ffff:192.0.2.1"}).current_count == 1
    assert world.check(facts={"ip": "192.0.2.1"}).current_count == 2


def test_api_keys_are_hashed(world: World) -> None:
    for _ in range(4):
        world.check(identifier="secret", dimension=API_KEY)
    assert world.recorder.events == [({"api_key": hashed_api_key("secret")}, 1, "over_limit")]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cost": -1}, "cost: must be a whole number from 0 to 2^53-1, got -1"),
        ({"cost": 2**53}, "cost: must be a whole number from 0 to 2^53-1, got 9007199254740992"),
        ({"identifier": "x", "dimension": GLOBAL}, "identifier: dimension GLOBAL has none, got 'x'"),
        ({"dimension": IP}, "identifier: dimension IP needs one"),
        ({"identifier": "x", "dimension": 77}, "dimension: 77 is not known"),
        ({"identifier": "a", "facts": {"user": "b"}}, "identifier: differs from facts['user']: 'a' and 'b'"),
        ({"endpoint": "/a", "facts": {"endpoint": "/b"}}, "endpoint: differs from facts['endpoint']"),
        ({"identifier": "secret", "dimension": API_KEY, "facts": {"api_key": "b"}}, "differs from facts['api_key']"),
    ],
)
def test_what_makes_no_sense(world: World, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidCheck) as caught:
        world.check(**fields)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
    fine = {"identifier": "u", "endpoint": "/user"}
    with pytest.raises(InvalidCheck) as caught:
        world.batch(fine, fields)
    assert str(caught.value).startswith("checks[1]: ")
    assert world.check(**fine).current_count == 1  # nothing was charged


def test_an_unknown_fact_of_a_batch_is_reported_with_its_check(world: World) -> None:
    fine = {"identifier": "u", "endpoint": "/user"}
    with pytest.raises(InvalidCheck, match=r"^checks\[2\]: unknown fact 'usr'; did you mean 'user'"):
        world.batch(fine, fine, {"facts": {"usr": "u"}})
    assert world.check(**fine).current_count == 1  # nothing was charged


def test_a_cost_of_0_looks(world: World) -> None:
    fields = {"identifier": "u", "endpoint": "/user"}
    world.check(**fields, cost=2, idempotency_key="k")
    for answer in (world.check(**fields, cost=0, idempotency_key="k"), *world.batch({**fields, "cost": 0})):
        assert (answer.allowed, answer.current_count) == (True, 2)
    assert len(world.meter.decisions) == 1


def test_an_idempotency_key(world: World) -> None:
    fields = {"identifier": "u", "endpoint": "/user", "idempotency_key": "k"}
    assert [world.check(**fields).current_count, *(one.current_count for one in world.batch(fields, fields))] == [1] * 3
    with pytest.raises(InvalidCheck, match="was used for another request"):
        world.check(**{**fields, "cost": 2})


def test_a_batch_is_answered_in_order(world: World) -> None:
    answers = world.batch(
        *({"identifier": "u", "endpoint": "/user"},) * 4,
        {"identifier": "v", "endpoint": "/user", "cost": 2},
        {"dimension": GLOBAL, "endpoint": "/all"},
        {"identifier": "u", "endpoint": "/shadow", "cost": 2},
    )
    assert [(one.rule, one.allowed, one.current_count) for one in answers] == [
        *(("user", True, 1), ("user", True, 2), ("user", True, 3), ("user", False, 3)),
        *(("user", True, 2), ("all", True, 1), ("shadow", True, 0)),
    ]
    assert [event[2] for event in world.recorder.events] == ["over_limit", "shadow"]
    assert len(world.meter.decisions) == 7


def test_a_batch_has_a_size(world: World) -> None:
    assert world.batch() == []
    assert len(world.batch(*({"identifier": "u"},) * MAX_BATCH)) == MAX_BATCH
    with pytest.raises(InvalidCheck, match="checks: at most 1,000 in one call, got 1,001"):
        world.batch(*({"identifier": "u"},) * (MAX_BATCH + 1))


def test_a_callers_clock_is_compared_and_not_obeyed(world: World) -> None:
    fields = {"identifier": "u", "endpoint": "/user"}
    for timestamp in (NOW, NOW + 5, NOW - 5, NOW + 6):
        world.check(**fields, timestamp=timestamp)
    world.batch({**fields, "timestamp": NOW - 3_600}, fields)
    assert world.meter.skewed_by == [6.0, -3_600.0]
    assert world.check(**fields, timestamp=NOW + 86_400).allowed is False


def test_a_quota_is_read_without_a_trace(world: World) -> None:
    fields: dict[str, Any] = {"identifier": "u", "endpoint": "/user"}
    world.check(**fields, cost=2)
    for _ in range(3):
        answer = world.quota(**fields)
        assert (answer.allowed, answer.remaining) == (True, 1)
        assert world.quota(**fields, cost=2).allowed is False
    assert len(world.meter.decisions) == 1
    assert world.recorder.events == []


def test_a_store_that_fails() -> None:
    rules = [Rule(id="closed", quota="1/minute", failure_mode="closed"), Rule(id="o", quota="1/h", dimension="ip")]
    world = World(rules, broken=True)
    with pytest.raises(StoreUnavailable, match="rule 'closed' fails closed"):
        world.check(identifier="u")
    with pytest.raises(StoreUnavailable, match="rule 'closed' fails closed"):
        world.quota(identifier="u")
    answers = world.batch({"identifier": "u"}, {"identifier": "192.0.2.1", "dimension": IP})
    assert [(one.allowed, one.reason) for one in answers] == [(False, "fail_closed"), (True, "fail_open")]
    assert answers[0].retry_after == 1


def test_costs_by_unit() -> None:
    world = World([Rule(id="calls", quota="3/minute"), Rule(id="tokens", quota="1000/minute", unit="tokens")])
    answer = world.check(identifier="u", costs={"requests": 1, "tokens": 400})
    assert {status.unit: status.remaining for status in answer.limits} == {"requests": 2, "tokens": 600}
    refused = world.check(identifier="u", costs={"requests": 1, "tokens": 601})
    assert (refused.allowed, refused.rule) == (False, "tokens")
    assert world.recorder.events == [({"user": "u"}, {"requests": 1, "tokens": 601}, "over_limit")]
    assert world.quota(identifier="u", costs={"tokens": 600}).allowed
    assert [one.allowed for one in world.batch({"identifier": "u"}, {"identifier": "u", "costs": {"tokens": 700}})] == [
        True,
        False,
    ]
    with pytest.raises(InvalidCheck, match="cost, costs: give only one of them"):
        world.check(identifier="u", cost=1, costs={"tokens": 1})
    with pytest.raises(InvalidCheck, match="cost: tokens: must be a whole number from 0 to 2\\^53-1, got -1"):
        world.check(identifier="u", costs={"tokens": -1})
