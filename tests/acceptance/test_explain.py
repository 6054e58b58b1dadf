"""Explanations, dry runs and refusals by their id, on a real service: by HTTP and by the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from headgate.service.protos import rate_limiter_pb2 as messages
from headgate.service.protos import rls_pb2 as rls
from tests import warm
from tests.service import Service, environment, warm_service
from tests.waiting import until

RULES = """
[headgate]
default_tier = "free"
decision_header = true

[[rules]]
id = "search-free"
endpoints = ["/search"]
tiers = ["free"]
limit = 3
window = "1d"
algorithm = "fixed_window"

[[rules]]
id = "search-paid"
endpoints = ["/search"]
tiers = ["paid"]
limit = 100
window = "1d"
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with warm_service(tmp_path_factory.mktemp("explain"), samples=False) as running:
        answer = httpx.put(
            f"{running.url}/api/v1/ruleset",
            content=RULES,
            headers={**running.headers, "Content-Type": "application/toml"},
        )
        assert answer.status_code == 200, answer.text
        yield running


def post(service: Service, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{service.url}{path}", json=body, headers=service.headers, timeout=30)


def refuse(service: Service, user: str) -> str:
    """Have a user refused; the id of the decision."""
    for _ in range(3):
        assert post(service, "/v1/check", {"user": user, "endpoint": "/search"}).status_code == 200
    refused = post(service, "/v1/check", {"user": user, "endpoint": "/search"})
    assert refused.status_code == 429
    decision_id: str = refused.json()["decision_id"]
    return decision_id


def event_of(service: Service, decision_id: str) -> dict[str, Any]:
    """Return the event of a decision, as soon as it is recorded."""
    url = f"{service.url}/api/v1/events/{decision_id}"
    until(lambda: httpx.get(url, headers=service.headers).status_code == 200, "the event")
    event: dict[str, Any] = httpx.get(url, headers=service.headers).json()
    return event


def cli(service: Service, *arguments: str) -> str:
    environ = environment({"server": service.url, "admin_token": service.admin_token})
    ended = warm.run("headgate", arguments, cwd=Path.cwd(), env=environ)
    assert ended.returncode == 0, ended
    return ended.stdout


def test_a_request_is_explained_and_charged_nothing(service: Service, user: str) -> None:
    refuse(service, user)
    for _ in range(2):
        told = post(service, "/api/v1/explain", {"user": user, "endpoint": "/search"}).json()
        free, paid = told["rules"]
        assert (free["rule"], free["state"]["used"], free["state"]["remaining"]) == ("search-free", 3, 0)
        assert (paid["applies"], paid["unmet"][0]["field"]) == (False, "tiers")
        assert (told["tier"], told["tier_source"]) == ("free", "default")
        assert told["decision"]["allowed"] is False
    assert ("tier", "paid") in {(one["kind"], one["value"]) for one in told["remedies"]}


def test_the_command_line_shows_a_tree(service: Service, user: str) -> None:
    refuse(service, user)
    text = cli(service, "explain", "--user", user, "--endpoint", "/search")
    assert "search-free refuses: 3/1d fixed_window" in text
    assert "3 of 3 used, 0 left" in text
    assert "search-paid does not apply" in text
    assert "tiers: free is not one of paid" in text
    assert "passes with tier paid" in text
    assert f"key user:{{{user}}}:search-free:fixed_window" in text
    assert json.loads(cli(service, "explain", "--user", user, "--endpoint", "/search", "--json"))["cost"] == 1


def test_a_refusal_is_found_by_its_id(service: Service, user: str) -> None:
    decision_id = refuse(service, user)
    event = event_of(service, decision_id)
    assert (event["id"], event["user"], event["rule"], event["limit"]) == (decision_id, user, "search-free", 3)
    text = cli(service, "explain", "--id", decision_id)
    assert "refused by search-free: over_limit" in text
    assert "0 of 3 were left; the request cost 1" in text
    missing = httpx.get(f"{service.url}/api/v1/events/{'0' * 30}", headers=service.headers)
    assert missing.status_code == 404


@pytest.mark.parametrize("path", ["/v1/check", "/v1/acquire", "/v1/authorize"])
def test_the_header_of_a_refusal_has_its_id(service: Service, user: str, path: str) -> None:
    refuse(service, user)
    if path == "/v1/authorize":
        asked = {"X-Original-URI": "/search", "X-Headgate-Token": service.headers["Authorization"].split()[1]}
        refused = httpx.get(f"{service.url}{path}", params={"user": user}, headers=asked)
    else:
        refused = post(service, path, {"user": user, "endpoint": "/search"})
    assert refused.status_code == 429, refused.text
    decision_id = refused.headers["X-RateLimit-Decision-Id"]
    assert decision_id == refused.json()["decision_id"]
    assert event_of(service, decision_id)["user"] == user
    allowed = post(service, "/v1/check", {"user": f"{user}-2", "endpoint": "/search"})
    assert allowed.status_code == 200
    assert "X-RateLimit-Decision-Id" not in allowed.headers
    assert "decision_id" not in allowed.json()


def test_refusals_in_a_batch_have_their_ids(service: Service, user: str) -> None:
    checks = [{"user": user, "endpoint": "/search"}] * 5
    decisions = post(service, "/v1/check/batch", {"checks": checks}).json()["decisions"]
    ids = [decision["decision_id"] for decision in decisions if not decision["allowed"]]
    assert len(set(ids)) == 2
    assert {event_of(service, decision_id)["user"] for decision_id in ids} == {user}


def test_a_refusal_over_grpc_is_found_by_its_id(service: Service, user: str) -> None:
    request = messages.CheckRequest(identifier=user, endpoint="/search")
    with grpc.insecure_channel(service.grpc_address) as channel:
        check = channel.unary_unary(
            "/headgate.v1.RateLimiter/CheckRateLimit",
            request_serializer=messages.CheckRequest.SerializeToString,
            response_deserializer=messages.CheckResponse.FromString,
        )
        metadata = (("authorization", service.headers["Authorization"]),)
        answers = [check(request, metadata=metadata, timeout=30) for _ in range(4)]
    assert [answer.decision_id for answer in answers[:3]] == ["", "", ""]
    assert event_of(service, answers[3].decision_id)["user"] == user
    assert "refused by search-free: over_limit" in cli(service, "explain", "--id", answers[3].decision_id)


def test_a_refusal_through_envoy_is_found_by_its_id(service: Service, user: str) -> None:
    entries = [
        rls.RateLimitDescriptor.Entry(key=key, value=value) for key, value in (("user", user), ("path", "/search"))
    ]
    request = rls.RateLimitRequest(domain="edge", descriptors=[rls.RateLimitDescriptor(entries=entries)])
    with grpc.insecure_channel(service.grpc_address) as channel:
        ask = channel.unary_unary(
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            request_serializer=rls.RateLimitRequest.SerializeToString,
            response_deserializer=rls.RateLimitResponse.FromString,
        )
        metadata = (("authorization", service.headers["Authorization"]),)
        answers = [ask(request, metadata=metadata, timeout=30) for _ in range(4)]
    refused = answers[3]
    decision_id = str(refused.dynamic_metadata["decision_id"])
    headers = {header.key: header.value for header in refused.response_headers_to_add}
    assert headers["x-ratelimit-decision-id"] == decision_id == json.loads(refused.raw_body)["decision_id"]
    assert event_of(service, decision_id)["user"] == user
    assert "refused by search-free: over_limit" in cli(service, "explain", "--id", decision_id)


def test_changed_rules_are_tried_on_facts(service: Service, user: str) -> None:
    refuse(service, user)
    facts = {"user": user, "endpoint": "/search"}
    more = {"id": "search-free", "endpoints": ["/search"], "tiers": ["free"], "limit": 5, "window": "1d"}
    more["algorithm"] = "fixed_window"
    told = post(service, "/api/v1/rules:dry-run", {"rules": [more], "facts": facts}).json()
    assert told["changed"] is True
    free = told["explanation"]["rules"][0]
    assert (free["state"]["used"], free["state"]["remaining"]) == (3, 2)  # by the counts that there are
    assert told["now"]["decision"]["allowed"] is False
    same = post(service, "/api/v1/rules:dry-run", {"ruleset": RULES, "facts": facts}).json()
    assert same["changed"] is False
    without = post(service, "/api/v1/rules:dry-run", {"delete": ["search-free"], "facts": facts}).json()
    assert without["explanation"]["decision"]["reason"] == "no_rule"
    assert post(service, "/v1/peek", facts).json()["allowed"] is False  # nothing was applied


def test_changed_rules_are_tried_on_events(service: Service, user: str) -> None:
    decision_id = refuse(service, user)
    for _ in range(3):
        post(service, "/v1/check", {"user": user, "endpoint": "/search"})  # four refusals in all
    at = event_of(service, decision_id)["at"]

    def tried(limit: int) -> dict[str, Any]:
        rule = {"id": "search-free", "endpoints": ["/search"], "tiers": ["free"], "limit": limit, "window": "1d"}
        body = {"rules": [rule | {"algorithm": "fixed_window"}], "since": at}
        found: dict[str, Any] = post(service, "/api/v1/rules:dry-run", body).json()
        return found

    until(lambda: tried(3)["refused"] == 4, "four events")
    assert tried(3)["newly_allowed"] == 0
    assert tried(5)["newly_allowed"] == 2  # the first two of the four fit: 3 were admitted, and 5 may be
    assert tried(100)["newly_allowed"] == 4


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/v1/explain", {"user": ["a"]}, 400),
        ("/api/v1/explain", {"cost": -1}, 400),
        ("/api/v1/rules:dry-run", {}, 422),
        ("/api/v1/rules:dry-run", {"facts": {}}, 422),
        ("/api/v1/rules:dry-run", {"rules": [{"id": "x", "limit": 0, "window": 1}], "facts": {}}, 422),
        ("/api/v1/rules:dry-run", {"ruleset": "not = [toml", "facts": {}}, 422),
        ("/api/v1/rules:dry-run", {"ruleset": 5, "facts": {}}, 422),
        ("/api/v1/rules:dry-run", {"ruleset": RULES, "since": "soon"}, 422),
        ("/api/v1/rules:dry-run", {"ruleset": RULES, "since": 0, "facts": {}}, 422),
        ("/api/v1/rules:dry-run", {"delete": ["nothing"], "facts": {}}, 404),
    ],
)
def test_what_makes_no_sense_is_said(service: Service, path: str, body: dict[str, Any], status: int) -> None:
    answer = post(service, path, body)
    assert answer.status_code == status, answer.text
    assert answer.json()["detail"]


def test_a_token_without_the_scope_may_not(service: Service) -> None:
    body = {"name": "checks", "role": "viewer", "scopes": ["check"], "expires_in": "1h"}
    token = post(service, "/api/v1/tokens", body).json()["token"]
    for path in ("/api/v1/explain", "/api/v1/rules:dry-run"):
        answer = httpx.post(f"{service.url}{path}", json={}, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 403


def test_a_diff_replays_a_log_by_both_rule_sets(service: Service, tmp_path: Path) -> None:
    new, log = tmp_path / "new.toml", tmp_path / "access.log"
    new.write_text(RULES.replace("limit = 3", "limit = 2"))
    line = '192.0.2.7 - alice [17/May/2015:10:05:0{} +0000] "GET /search HTTP/1.1" 200 1\n'
    log.write_text("".join(line.format(at) for at in range(5)))
    environ = environment({"server": service.url, "admin_token": service.admin_token})
    arguments = ("rules", "diff", str(new), "--replay", str(log), "--json")
    ended = warm.run("headgate", arguments, cwd=Path.cwd(), env=environ)
    assert ended.returncode == 1, ended  # there are changes
    found = json.loads(ended.stdout)
    assert [change["subject"] for change in found["changes"]] == ["search-free"]
    assert (found["replay"]["refused"], found["replay"]["against"]["refused"]) == (3, 2)
    assert found["replay"]["against"]["newly_refused"] == 1
