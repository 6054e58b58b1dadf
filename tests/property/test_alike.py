"""Requests that are alike, decided many at a time, are answered to the byte as each by itself would be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate import AsyncLimiter, Decision, Rule
from headgate.core.key import escape, escaped
from headgate.errors import IdempotencyConflict, InvalidCheck
from headgate.rules.exemptions import Exemption
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import Override, User
from headgate.service.data import DataPlane
from headgate.service.protos.rate_limiter_pb2 import IP, TENANT, USER, CheckBatchRequest, CheckRequest
from headgate.service.rpc.rate_limiter import RateLimiter
from headgate.stores.memory import MemoryStore
from headgate.telemetry.meter import Meter
from headgate.testing import FakeClock
from tests.property.strategies import SIX, examples

START = 1_700_000_000.0
ENDPOINTS = ("", "/a", "/b", "/c/1")
SUBJECTS = ("ann", "bob", "a b", "ü", "a\nb", "x" * 200)

ONE = {name: Snapshot([Rule(id="one", quota=f"5/minute {name}")]) for name in SIX}
USERS = Rule(id="users", quota="6/minute fixed_window")
EVERYBODY = Rule(id="all", quota="15/minute gcra", dimension="global")
SEVERAL = {
    "two": Snapshot([USERS, EVERYBODY]),
    "three": Snapshot([USERS, EVERYBODY, Rule(id="some", quota="3/minute", endpoints=["/a"], cost=2)]),
    "shadows": Snapshot([Rule(id="shadow", quota="2/minute", action="log_only"), EVERYBODY]),
    "shadow": Snapshot([Rule(id="shadow", quota="2/minute", action="log_only")]),
    "throttled": Snapshot([Rule(id="slow", quota="4/minute leaky_bucket", action="throttle", max_delay=30)]),
    "by endpoint": Snapshot([Rule(id="pairs", quota="3/minute", dimension="user+endpoint"), EVERYBODY]),
    "tenants": Snapshot([Rule(id="tenants", quota="3/minute", dimension="tenant"), USERS]),
    "matching": Snapshot([USERS, Rule(id="bob", quota="1/minute", match={"user": "bob"})]),
    "exempt": Snapshot([USERS], exemptions=[Exemption(type="user", value="bob")]),
    "overridden": Snapshot([USERS], users=[User(id="bob", overrides=[Override(rule="users", limit=2)])]),
    "tiers": Snapshot([Rule(id="gold", quota="2/minute", tiers=["gold"]), USERS], users=[User(id="ann", tier="gold")]),
    "a long name": Snapshot([Rule(id="r" * 20_000, quota="5/minute"), EVERYBODY]),
    "none": Snapshot([Rule(id="elsewhere", quota="1/minute", endpoints=["/nowhere"])]),
    "warnings": Snapshot([USERS], warning_at=50, warning_until=20),
}


class Recorded:
    """Remembers what was recorded."""

    def __init__(self) -> None:
        self.events: list[tuple[dict[str, str], int, str, str | None]] = []

    def record(self, facts: Mapping[str, str], cost: int, decision: Decision) -> None:
        self.events.append((dict(facts), cost, decision.reason, decision.rule))


class World:
    """A service with counters of its own."""

    def __init__(self, snapshot: Snapshot, clock: FakeClock, max_keys: int = 1_000) -> None:
        self.recorded = Recorded()
        self.meter = Meter()
        limiter = AsyncLimiter(snapshot, store=MemoryStore(clock=clock, max_keys=max_keys), clock=clock)
        self.methods = RateLimiter(DataPlane(limiter, meter=self.meter, recorder=self.recorded))

    def in_full(self, body: bytes) -> bytes | str:
        """What is answered, or what is wrong. In memory, there is nothing to wait for."""
        try:
            self.methods.check_many(CheckBatchRequest.FromString(body)).send(None)
        except StopIteration as end:
            answer: bytes = end.value
            return answer
        except (InvalidCheck, IdempotencyConflict) as error:
            return str(error)
        raise AssertionError("it waits for something")

    def quickly(self, body: bytes) -> bytes | str:
        try:
            answered = self.methods.check_many_quickly(body)
        except InvalidCheck as error:
            return str(error)
        if answered is None:
            return self.in_full(body)
        assert isinstance(answered, tuple)
        assert answered[1] == len(CheckBatchRequest.FromString(body).checks)
        return answered[0]


requests = st.builds(
    dict[str, Any],
    identifier=st.sampled_from(SUBJECTS),
    endpoint=st.sampled_from(ENDPOINTS),
    dimension=st.sampled_from((0, USER, USER, TENANT)),
    cost=st.sampled_from((None, None, None, 1, 2, 7, 2**52)),
)
others = st.sampled_from(
    (
        {"identifier": "192.0.2.1", "dimension": IP},
        {"identifier": "ann", "timestamp": 1_700_000_000},
        {"identifier": "ann", "cost": 0},
        {"facts": {"user": "bob", "tenant": "t"}},
        {"identifier": "bob", "idempotency_key": "k"},
        {"identifier": "ann", "tier": "gold"},
        {"identifier": "ann", "method": "POST"},
    )
)
batches = st.tuples(
    st.sampled_from((0.0, 0.0, 1.0, 20.0, 100.0)),
    st.one_of(
        st.lists(requests, min_size=1, max_size=12),
        st.builds(
            lambda one, names: [one | {"identifier": name} for name in names], requests, st.permutations(SUBJECTS)
        ),
        st.lists(st.one_of(requests, others), max_size=6),
    ),
)


def written(batch: list[dict[str, Any]]) -> bytes:
    checks = [CheckRequest(**{name: value for name, value in one.items() if value is not None}) for one in batch]
    return CheckBatchRequest(checks=checks).SerializeToString()


NO_ROOM_FOR_THE_LAST = [(0.0, [{"identifier": name, "endpoint": "/a"} for name in ("ann", "bob", "ü")])]
PLACES = (("ann", "", 2), ("bob", "/a", 2), ("bob", "", 1), ("ann", "", 2), ("ann", "/a", 1), ("bob", "", 7))
WHO_IS_FORGOTTEN = [(0.0, [{"identifier": name, "endpoint": at, "cost": cost} for name, at, cost in PLACES])]


@pytest.mark.parametrize("name", [*ONE, *SEVERAL])
@example(script=NO_ROOM_FOR_THE_LAST, max_keys=3)
@example(script=WHO_IS_FORGOTTEN, max_keys=3)
@examples(30)
@given(script=st.lists(batches, min_size=1, max_size=8), max_keys=st.sampled_from((3, 1_000)))
def test_many_at_a_time_or_each_by_itself(
    name: str, script: list[tuple[float, list[dict[str, Any]]]], max_keys: int
) -> None:
    clock = FakeClock(START)
    snapshot = (ONE | SEVERAL)[name]
    one, other = World(snapshot, clock, max_keys), World(snapshot, clock, max_keys)
    for seconds, batch in script:
        clock.advance(seconds)
        body = written(batch)
        assert one.quickly(body) == other.in_full(body)
    assert one.recorded.events == other.recorded.events
    assert sorted(one.meter.tallies()) == sorted(other.meter.tallies())


@pytest.mark.parametrize("name", ["gcra", "two", "three", "shadows", "throttled", "tenants"])
def test_they_are_decided_many_at_a_time(name: str) -> None:
    """Or the other test would show nothing."""
    world = World((ONE | SEVERAL)[name], FakeClock(START))
    body = written([{"identifier": "ann", "endpoint": "/a"}, {"identifier": "bob", "endpoint": "/a"}])
    assert isinstance(world.methods.check_many_quickly(body), tuple)


@examples(200)
@given(st.binary(max_size=80))
def test_what_is_no_batch_is_left_to_who_reads_in_full(body: bytes) -> None:
    world = World(ONE["gcra"], FakeClock(START))
    for received in (body, written([{"identifier": "ann"}]) + body, written([{"identifier": "ann"}])[: len(body)]):
        try:
            checks = CheckBatchRequest.FromString(received).checks
        except Exception:  # noqa: BLE001 - DecodeError, and whatever else it may be
            assert world.methods.check_many_quickly(received) is None
        else:
            quick = world.methods.check_many_quickly(received)
            assert quick is None or (isinstance(quick, tuple) and quick[1] == len(checks))


@examples(300)
@given(st.lists(st.text(max_size=140), max_size=5))
def test_several_texts_are_escaped_as_each_is(texts: list[str]) -> None:
    assert list(escaped(texts)) == [escape(text) for text in texts]
