"""Envoy's rate limit service without a transport."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from headgate import Rule
from headgate.errors import InvalidCheck, StoreUnavailable
from headgate.rules import Snapshot
from headgate.rules.facts import FactNames
from headgate.service.data_plane import DataPlane
from headgate.service.protos.rls_pb2 import HOUR, MINUTE, RateLimitDescriptor, RateLimitRequest, RateLimitResponse
from headgate.service.rpc.descriptors import DescriptorFacts, read_request
from headgate.service.rpc.envoy import RateLimitService
from tests.unit.service.rpc.test_rate_limiter import NOW, World, answer

OK, OVER_LIMIT = RateLimitResponse.OK, RateLimitResponse.OVER_LIMIT
Unit = RateLimitResponse.RateLimit
RULES = [
    Rule(id="ip", quota="3/minute fixed_window", dimension="ip", match={"domain": "edge"}),
    Rule(id="user", quota="2/hour fixed_window", dimension="user", message="Two an hour."),
    Rule(id="slow", quota="5/90s fixed_window", dimension="api_key"),
    Rule(id="path", quota="9/second fixed_window", dimension="global", endpoints=["/login"], methods=["POST"]),
    Rule(id="key", quota="9/day fixed_window", dimension="generic_key+generic_key_2", match={"plan": "free"}),
    Rule(id="cluster", quota="9/week fixed_window", dimension="destination_cluster"),
    Rule(id="tenant", quota="9/month fixed_window", dimension="tenant"),
    Rule(id="shadow", quota="1/minute fixed_window", dimension="try", action="log_only"),
]


def descriptor(*entries: tuple[str, str], limit: tuple[int, int] | None = None, hits: int | None = None) -> Any:
    made = RateLimitDescriptor(entries=[RateLimitDescriptor.Entry(key=key, value=value) for key, value in entries])
    if limit is not None:
        made.limit.requests_per_unit = limit[0]
        made.limit.unit = limit[1]  # type: ignore[assignment]
    if hits is not None:
        made.hits_addend.value = hits
    return made


class Envoy(World):
    def __init__(self, rules: list[Rule] = RULES, *, broken: bool = False, **settings: Any) -> None:
        super().__init__(Snapshot(rules, facts=["plan", "try"], **settings), broken=broken)
        self.service = RateLimitService(DataPlane(self.rpc._data.limiter, meter=self.meter, recorder=self.recorder))

    def ask(self, *descriptors: Any, domain: str = "edge", hits: int = 0) -> RateLimitResponse:
        request = RateLimitRequest(domain=domain, descriptors=descriptors, hits_addend=hits)
        answered = asyncio.run(answer(self.service.should_rate_limit, request))
        return RateLimitResponse.FromString(answered)


@pytest.fixture
def envoy() -> Envoy:
    return Envoy()


def test_a_status_for_each_descriptor_in_order(envoy: Envoy) -> None:
    response = envoy.ask(
        descriptor(("user_id", "u")), descriptor(("unheard", "of")), descriptor(("remote_address", "192.0.2.1"))
    )
    assert response.overall_code == OK
    user, none, ip = response.statuses
    assert (user.code, user.limit_remaining) == (OK, 1)
    assert (user.current_limit.name, user.current_limit.requests_per_unit) == ("user", 2)
    assert user.current_limit.unit == Unit.HOUR
    assert user.duration_until_reset.seconds == 3_600 - NOW % 3_600
    assert none.code == OK
    assert not none.HasField("current_limit")
    assert (ip.code, ip.limit_remaining, ip.current_limit.unit) == (OK, 2, Unit.MINUTE)


@pytest.mark.parametrize(
    ("entries", "rule", "unit"),
    [
        ([("remote_address", "192.0.2.1")], "ip", "MINUTE"),
        ([("masked_remote_address", "192.0.2.0/24")], "ip", "MINUTE"),
        ([("user", "u")], "user", "HOUR"),
        ([("user_id", "u")], "user", "HOUR"),
        ([("api_key", "k")], "slow", "UNKNOWN"),
        ([("path", "/login"), ("method", "POST")], "path", "SECOND"),
        ([("generic_key", "a"), ("plan", "free"), ("generic_key", "b")], "key", "DAY"),
        ([("header_match", "a"), ("plan", "free"), ("generic_key", "b")], "key", "DAY"),
        ([("destination_cluster", "c")], "cluster", "WEEK"),
        ([("tenant", "t")], "tenant", "MONTH"),
    ],
)
def test_entries_are_facts(envoy: Envoy, entries: list[tuple[str, str]], rule: str, unit: str) -> None:
    (status,) = envoy.ask(descriptor(*entries)).statuses
    assert (status.current_limit.name, Unit.Unit.Name(status.current_limit.unit)) == (rule, unit)


def test_the_domain_is_a_fact_that_no_entry_overrules(envoy: Envoy) -> None:
    address = ("remote_address", "192.0.2.1")
    assert not envoy.ask(descriptor(address, ("domain", "edge")), domain="other").statuses[0].HasField("current_limit")


def test_over_limit_charges_nobody(envoy: Envoy) -> None:
    both = (descriptor(("user", "u")), descriptor(("remote_address", "192.0.2.1")))
    assert [envoy.ask(*both).overall_code for _ in range(2)] == [OK, OK]
    refused = envoy.ask(*both)
    assert refused.overall_code == OVER_LIMIT
    assert [(status.code, status.limit_remaining) for status in refused.statuses] == [(OVER_LIMIT, 0), (OK, 1)]
    headers = {header.key: header.value for header in refused.response_headers_to_add}
    assert headers["retry-after"] == str(3_600 - NOW % 3_600)
    assert headers["ratelimit"].startswith('"user";r=0;t=')
    assert (headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]) == ("2", "0")
    assert headers["content-type"] == "application/problem+json"
    assert json.loads(refused.raw_body)["detail"] == "Two an hour."
    assert dict(refused.dynamic_metadata.items()) == {
        "status": "429",
        "rule": refused.statuses[0].current_limit.name,
        "decision_id": json.loads(refused.raw_body)["decision_id"],
    }
    assert "x-ratelimit-decision-id" not in headers
    assert [event[2] for event in envoy.recorder.events] == ["over_limit"]


def test_headers_of_what_is_allowed(envoy: Envoy) -> None:
    response = envoy.ask(descriptor(("user", "u")), descriptor(("remote_address", "192.0.2.1")))
    headers = {header.key: header.value for header in response.response_headers_to_add}
    assert headers["ratelimit-policy"] == '"user";q=2;w=3600, "ip";q=3;w=60'
    assert "retry-after" not in headers
    assert response.raw_body == b""
    assert not envoy.ask(descriptor(("unheard", "of"))).response_headers_to_add


@pytest.mark.parametrize(
    ("style", "present"),
    [
        ("ietf", {"ratelimit", "ratelimit-policy"}),
        ("x", {"x-ratelimit-limit", "x-ratelimit-remaining"}),
        ("off", set()),
    ],
)
def test_headers_are_chosen_by_the_rules(style: Any, present: set[str]) -> None:
    envoy = Envoy(headers=style)
    for refused in (False, False, True):
        response = envoy.ask(descriptor(("user", "u")))
        headers = {header.key for header in response.response_headers_to_add}
        assert {key for key in headers if "ratelimit" in key} >= present
        assert ("x-ratelimit-limit" in headers, "ratelimit" in headers) == (style == "x", style == "ietf")
        assert ("retry-after" in headers) == refused


def test_hits(envoy: Envoy) -> None:
    user = ("user", "u")
    assert envoy.ask(descriptor(user), hits=2).statuses[0].limit_remaining == 0
    assert envoy.ask(descriptor(user, hits=0), hits=2).overall_code == OK  # it only looks
    assert envoy.ask(descriptor(user)).overall_code == OVER_LIMIT
    assert envoy.ask(descriptor(("user", "v"), hits=1), hits=2).statuses[0].limit_remaining == 1
    with pytest.raises(InvalidCheck, match="cost: must be a whole number from 0 to 2\\^53-1"):
        envoy.ask(descriptor(user, hits=2**64 - 1))


def test_a_limit_of_the_requests_own(envoy: Envoy) -> None:
    own = descriptor(("user", "u"), ("a", "b"), limit=(2, MINUTE))
    assert [envoy.ask(own).overall_code for _ in range(3)] == [OK, OK, OVER_LIMIT]
    (status,) = envoy.ask(own).statuses
    assert (status.current_limit.requests_per_unit, status.current_limit.unit) == (2, Unit.MINUTE)
    assert envoy.ask(descriptor(("user", "u"))).statuses[0].limit_remaining == 1  # the rules were not asked
    assert envoy.ask(own, domain="other").overall_code == OK
    assert envoy.ask(descriptor(("user", "u"), ("a", "c"), limit=(2, MINUTE))).overall_code == OK
    more = descriptor(("user", "u"), ("a", "b"), limit=(5, MINUTE))
    assert envoy.ask(more).statuses[0].limit_remaining == 2  # what was counted counts
    assert envoy.ask(descriptor(("user", "u"), ("a", "b"), limit=(2, HOUR))).overall_code == OK


def test_a_limit_of_0_refuses_everything(envoy: Envoy) -> None:
    nothing = descriptor(("a", "b"), limit=(0, MINUTE))
    assert envoy.ask(nothing).overall_code == OVER_LIMIT
    assert envoy.ask(nothing, descriptor(("user", "u"))).overall_code == OVER_LIMIT
    assert envoy.ask(descriptor(("user", "u"))).statuses[0].limit_remaining == 1


def test_a_shadow_is_not_told_of(envoy: Envoy) -> None:
    for _ in range(2):
        response = envoy.ask(descriptor(("try", "x")))
    assert response.overall_code == OK
    assert not response.statuses[0].HasField("current_limit")
    assert [event[2] for event in envoy.recorder.events] == ["shadow"]


@pytest.mark.parametrize(
    ("descriptors", "domain", "message"),
    [
        ([descriptor(("user", "u"))], "", "domain: must not be empty"),
        ([], "edge", "descriptors: must be from 1 to 1,000, got 0"),
        ([descriptor(("user", "u"))] * 1_001, "edge", "descriptors: must be from 1 to 1,000, got 1,001"),
        ([descriptor(("user", "u")), descriptor(("", "u"))], "edge", r"descriptors\[1\]: entries: a key must not be"),
        ([descriptor(*[("a", "b")] * 33)], "edge", r"descriptors\[0\]: entries: at most 32, got 33"),
        ([descriptor(("user", "u"), limit=(1, 0))], "edge", r"descriptors\[0\]: limit.unit: 0 is not known"),
        ([descriptor(("user", "u"), limit=(1, 99))], "edge", r"descriptors\[0\]: limit.unit: 99 is not known"),
    ],
)
def test_what_makes_no_sense(envoy: Envoy, descriptors: list[Any], domain: str, message: str) -> None:
    with pytest.raises(InvalidCheck, match=message):
        envoy.ask(*descriptors, domain=domain)


def test_a_store_that_fails() -> None:
    closed = Rule(id="closed", quota="1/minute", dimension="user", failure_mode="closed")
    envoy = Envoy([closed, Rule(id="open", quota="1/minute", dimension="ip")], broken=True)
    with pytest.raises(StoreUnavailable):
        envoy.ask(descriptor(("remote_address", "192.0.2.1")), descriptor(("user", "u")))
    assert envoy.ask(descriptor(("remote_address", "192.0.2.1"))).overall_code == OK


def test_entries_that_no_rule_can_name_are_left_out_and_logged_once(
    envoy: Envoy, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        response = envoy.ask(descriptor(("user_id", "u"), ("usr", "u")))
        assert response.statuses[0].current_limit.name == "user"
    told = [record.getMessage() for record in caplog.records if "descriptor" in record.getMessage()]
    assert len(told) == 1
    assert "unknown fact 'usr'; did you mean 'user'?" in told[0]


@pytest.mark.parametrize(
    "request_bytes",
    [
        RateLimitRequest(domain="edge", descriptors=[descriptor(("user", "u"), ("a", "b")), descriptor()]),
        RateLimitRequest(domain="edge", descriptors=[descriptor(("user", "é"), ("a", ""), ("", "b"))]),
        RateLimitRequest(domain="edge", descriptors=[descriptor(("user", "u" * 200))]),
        RateLimitRequest(domain="d" * 200, descriptors=[descriptor(("user", "u"))]),
        RateLimitRequest(domain="edge", descriptors=[descriptor(*[("k" * 30, "v" * 30)] * 9)]),
        RateLimitRequest(domain="edge", descriptors=[descriptor(("user", "u"), hits=3)], hits_addend=2),
    ],
    ids=["common", "empty fields", "long value", "long domain", "long descriptor", "hits"],
)
def test_requests_are_read_as_protobuf_reads_them(request_bytes: RateLimitRequest) -> None:
    domain, descriptors, hits = read_request(request_bytes.SerializeToString())
    assert (domain.decode(), hits) == (request_bytes.domain, request_bytes.hits_addend or 1)
    assert [list(zip(one.keys, one.values, strict=True)) for one in descriptors] == [
        [(entry.key.encode(), entry.value) for entry in one.entries] for one in request_bytes.descriptors
    ]


def find_facts(received: bytes) -> list[dict[str, str]]:
    domain, descriptors, _ = read_request(received)
    found = DescriptorFacts()
    return [found.facts(domain, one, FactNames()) for one in descriptors]


@given(st.binary(max_size=60))
def test_no_bytes_are_read_otherwise_than_protobuf_reads_them(tail: bytes) -> None:
    received = RateLimitRequest(domain="d", descriptors=[descriptor(("k", "v"))]).SerializeToString() + tail
    try:
        expected = RateLimitRequest.FromString(received)
    except DecodeError:
        with pytest.raises((DecodeError, InvalidCheck)):
            find_facts(received)
        return
    try:
        domain, descriptors, _ = read_request(received)
    except InvalidCheck:
        assert not expected.domain
        return
    assert domain.decode() == expected.domain
    assert [list(zip(one.keys, one.values, strict=True)) for one in descriptors] == [
        [(entry.key.encode(), entry.value) for entry in one.entries] for one in expected.descriptors
    ]
