"""Slots over REST and gRPC, without a transport: acquired at one node, released at another; and not for proxies."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from headgate import AsyncLimiter, Rule
from headgate.errors import InvalidCheck
from headgate.rules import Snapshot
from headgate.rules.holder import Holder
from headgate.service import node
from headgate.service.access import Access
from headgate.service.data_plane import DataPlane
from headgate.service.http.app import HttpApp
from headgate.service.protos import rate_limiter_pb2 as messages
from headgate.service.protos.rls_pb2 import RateLimitDescriptor, RateLimitRequest, RateLimitResponse
from headgate.service.rpc.envoy import RateLimitService
from headgate.service.rpc.rate_limiter import RateLimiter
from headgate.stores.memory import MemoryStore
from headgate.telemetry.meter import Meter
from headgate.telemetry.metrics import Metrics
from headgate.testing import FakeClock
from tests.unit.service.http.call import Got, call
from tests.unit.service.http.test_app import State
from tests.unit.service.rpc.test_rate_limiter import answer

RULES = [Rule(id="slots", quota="1 concurrent ttl 20s"), Rule(id="rate", quota="9/minute fixed_window")]


async def _no_metrics(_: str) -> tuple[bytes, str]:
    return b"", ""


class Cluster:
    """Nodes of a service on one store."""

    def __init__(self, rules: list[Rule] = RULES) -> None:
        self.clock = FakeClock(1_700_000_040)
        store = MemoryStore(clock=self.clock)
        self.planes = [DataPlane(AsyncLimiter(rules, store=store, clock=self.clock)) for _ in range(2)]

    def post(self, path: str, body: Any, node: int = 0) -> Got:
        app = HttpApp(self.planes[node], Access(), health=State(), metrics=_no_metrics)
        return call(app, "POST", path, body)


def test_a_slot_beside_a_full_shadow_is_released_and_renewed() -> None:
    trial = Rule(id="trial", quota="1 concurrent ttl 20s", action="log_only")
    cluster = Cluster([Rule(id="slots", quota="3 concurrent ttl 20s"), trial])
    for _ in range(2):
        slot = {"slot": cluster.post("/v1/acquire", {"user": "alice"}).json["slot"]}
        assert cluster.post("/v1/renew", slot, node=1).json == {"renewed": True}
    assert cluster.post("/v1/release", slot, node=1).json == {"released": True}
    assert cluster.post("/v1/release", slot, node=1).json == {"released": False}


def test_a_full_shadow_alone_gives_no_slot() -> None:
    cluster = Cluster([Rule(id="trial", quota="1 concurrent ttl 20s", action="log_only")])
    first, second = (cluster.post("/v1/acquire", {"user": "alice"}).json for _ in range(2))
    assert (first["allowed"], first["ttl"]) == (True, 20.0)
    assert (second["allowed"], second["slot"], second["ttl"]) == (True, None, None)


def test_a_slot_is_released_and_renewed_at_any_node() -> None:
    cluster = Cluster()
    acquired = cluster.post("/v1/acquire", {"user": "alice"})
    assert (acquired.status, acquired.json["allowed"], acquired.json["ttl"]) == (200, True, 20.0)
    assert acquired.headers["ratelimit-policy"] == '"slots";q=1;qu="concurrent-requests", "rate";q=9;w=60'
    slot = {"slot": acquired.json["slot"]}
    refused = cluster.post("/v1/acquire", {"user": "alice"}, node=1)
    assert (refused.status, refused.json["slot"], refused.json["rule"]) == (429, None, "slots")
    assert refused.headers["retry-after"] == "20"
    cluster.clock.advance(19)
    assert cluster.post("/v1/renew", slot, node=1).json == {"renewed": True}
    cluster.clock.advance(19)
    assert cluster.post("/v1/release", slot, node=1).json == {"released": True}
    assert cluster.post("/v1/release", slot).json == {"released": False}
    assert cluster.post("/v1/renew", slot).json == {"renewed": False}
    again = cluster.post("/v1/acquire", {"user": "alice"})
    assert [limit["remaining"] for limit in again.json["limits"] if limit["rule"] == "rate"] == [
        7
    ]  # the refusal was not charged


def test_without_slots_there_is_nothing_to_release() -> None:
    acquired = Cluster().post("/v1/acquire", {"ip": "192.0.2.7"}).json
    assert (acquired["allowed"], acquired["reason"], acquired["slot"], acquired["ttl"]) == (True, "no_rule", None, None)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/check", {"user": "alice"}),
        ("/v1/acquire", {"user": "alice", "idempotency_key": "k"}),
        ("/v1/release", {"slot": "alice"}),
        ("/v1/release", {}),
        ("/v1/release", {"slot": 1}),
        ("/v1/renew", {"slot": "s1.", "user": "alice"}),
        ("/v1/renew", []),
    ],
)
def test_what_makes_no_sense_is_told(path: str, body: Any) -> None:
    cluster = Cluster()
    got = cluster.post(path, body)
    assert got.status == 400
    assert cluster.post("/v1/acquire", {"user": "alice"}).json["limits"][0]["remaining"] == 0


def test_grpc_acquires_renews_and_releases() -> None:
    async def main() -> None:
        cluster = Cluster()
        here, there = (RateLimiter(plane) for plane in cluster.planes)
        asked = messages.CheckRequest(identifier="alice", dimension=messages.USER)
        held = await here.acquire(asked)
        assert (held.decision.allowed, held.decision.rule, held.ttl) == (True, "slots", 20.0)
        refused = await there.acquire(asked)
        assert (refused.decision.allowed, refused.decision.retry_after, refused.slot, refused.ttl) == (False, 20, "", 0)
        assert (await there.renew(messages.RenewRequest(slot=held.slot))).renewed
        assert (await there.release(messages.ReleaseRequest(slot=held.slot))).released
        assert not (await here.release(messages.ReleaseRequest(slot=held.slot))).released
        assert not (await here.renew(messages.RenewRequest(slot=held.slot))).renewed
        with pytest.raises(InvalidCheck, match="must be the id of a slot"):
            await here.release(messages.ReleaseRequest())
        with pytest.raises(InvalidCheck, match="use acquire"):
            await answer(here.check, asked)

    asyncio.run(main())


def test_proxies_are_not_held_to_rules_with_slots() -> None:
    async def main() -> None:
        plane = Cluster().planes[0]
        entry = RateLimitDescriptor.Entry(key="user", value="alice")
        request = RateLimitRequest(domain="edge", descriptors=[RateLimitDescriptor(entries=[entry])])
        for remaining in (8, 7):
            answered = await answer(RateLimitService(plane).should_rate_limit, request)
            response = RateLimitResponse.FromString(answered)
            assert response.overall_code == RateLimitResponse.OK
            assert [status.current_limit.name for status in response.statuses] == ["rate"]
            assert response.statuses[0].limit_remaining == remaining
        decision = await plane.check({"user": "alice"}, ready=True, slots="skip")
        assert [limit.rule for limit in decision.limits] == ["rate"]

    asyncio.run(main())


def test_rules_that_proxies_are_not_held_to_are_logged_whenever_they_come(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "LOOK_SECONDS", 0.001)

    async def main() -> None:
        holder = Holder(Snapshot(RULES[1:]))
        task = asyncio.create_task(node.announce_slots(holder))
        await asyncio.sleep(0.01)
        assert caplog.text == ""
        for _ in range(2):
            holder.swap(Snapshot(RULES))
            await asyncio.sleep(0.05)
        task.cancel()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert caplog.text.count("rules that limit concurrency (slots) do not apply to /v1/authorize") == 1


def test_slots_are_on_the_page_of_metrics() -> None:
    cluster = Cluster()
    cluster.post("/v1/acquire", {"user": "alice"})
    limiter = cluster.planes[0].limiter
    page = Metrics(Meter(), holder=limiter.holder, slots=limiter.slots).render()[0].decode()
    assert 'headgate_slots_in_use{rule="slots"} 1.0' in page
    assert 'headgate_slots_acquired_total{rule="slots"} 1.0' in page
    assert 'headgate_slots_longest_held_seconds{rule="slots"}' in page
