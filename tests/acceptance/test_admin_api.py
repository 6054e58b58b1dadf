"""The admin's API over HTTP, on SQLite and PostgreSQL: what it does, and for whom."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Annotated, Any
from urllib.parse import quote

import http_sf
import httpx
import pytest
from fastapi import APIRouter, Query

from headgate import AsyncLimiter
from headgate.db import Changes, TokenTable
from headgate.db.tokens import hash_of
from headgate.rules.sources.document import snapshot_of
from headgate.service.admin.context import OWN_RULES
from headgate.service.admin.events import Moment
from headgate.testing import FakeClock
from tests.acceptance.admin import Served, served

RULE = {"id": "search", "limit": 2, "window": "1h", "algorithm": "fixed_window"}
TOML = {"Content-Type": "application/toml"}
RULESET = """
[headgate]
default_tier = "free"

[[tiers]]
name = "free"

[[tiers]]
name = "premium"

[[rules]]
id = "search"
limit = 100
window = "1h"
tiers = ["free"]

[[exemptions]]
type = "ip"
value = "10.0.0.0/8"
"""

BOB = """
[[users]]
id = "bob"

[[users.overrides]]
rule = "search"
limit = 9
"""


@pytest.fixture
def node(migrated_url: str) -> Iterator[Served]:
    with served(migrated_url) as running:
        yield running


@pytest.fixture
def http(node: Served) -> httpx.Client:
    return node.http


@pytest.fixture
def file_node(tmp_path: Path) -> Iterator[Served]:
    """A node whose rules are in a file."""
    (tmp_path / "rules.toml").write_text(
        f'{RULESET}\n[[users]]\nid = "alice"\ntier = "premium"\n[[rules]]\nid = "all"\nlimit = 5\nwindow = 60\n'
    )
    with served(f"sqlite:///{tmp_path}/node.db", rules=str(tmp_path / "rules.toml")) as running:
        yield running


def is_problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    return body


# Rules


def test_a_rule_from_its_creation_to_its_end(http: httpx.Client) -> None:
    created = http.post("/api/v1/rules", json=RULE)
    assert created.status_code == 201
    assert created.headers["location"] == "/api/v1/rules/search"
    tag = created.headers["etag"]
    assert created.json()["version"] == int(tag.strip('"'))

    read = http.get("/api/v1/rules/search")
    assert read.json() == created.json()
    assert read.headers["etag"] == tag
    assert {name: read.json()[name] for name in RULE} == {**RULE, "window": 3600}

    replaced = http.put("/api/v1/rules/search", json={**read.json(), "limit": 3}, headers={"If-Match": tag})
    assert (replaced.status_code, replaced.json()["limit"]) == (200, 3)
    assert replaced.headers["etag"] != tag

    gone = http.delete("/api/v1/rules/search", headers={"If-Match": replaced.headers["etag"]})
    assert (gone.status_code, gone.content) == (204, b"")
    is_problem(http.get("/api/v1/rules/search"), 404)
    is_problem(http.delete("/api/v1/rules/search"), 404)


def test_a_change_is_in_force_here_when_it_is_answered(node: Served) -> None:
    assert node.check(user="alice")
    node.http.post("/api/v1/rules", json=RULE)
    assert [node.check(user="alice") for _ in range(3)] == [True, True, False]
    node.http.put("/api/v1/rules/search", json={**RULE, "limit": 4})
    assert [node.check(user="alice") for _ in range(3)] == [True, True, False]
    node.http.delete("/api/v1/rules/search")
    assert node.check(user="alice")


def test_what_exists_is_not_created_again(http: httpx.Client) -> None:
    http.post("/api/v1/rules", json=RULE)
    assert "exists already" in is_problem(http.post("/api/v1/rules", json=RULE), 409)["detail"]
    is_problem(http.put("/api/v1/rules/search", json=RULE, headers={"If-None-Match": "*"}), 412)


def test_put_creates_too(http: httpx.Client) -> None:
    body = {"limit": 1, "window": 60}
    is_problem(http.put("/api/v1/rules/new", json=body, headers={"If-Match": '"1"'}), 412)
    is_problem(http.put("/api/v1/rules/new", json=body, headers={"If-Match": "*"}), 412)
    first = http.put("/api/v1/rules/new", json=body, headers={"If-None-Match": "*"})
    assert (first.status_code, first.headers["location"]) == (201, "/api/v1/rules/new")
    same = http.put("/api/v1/rules/new", json=body)
    assert (same.status_code, same.headers["etag"]) == (200, first.headers["etag"])
    assert http.put("/api/v1/rules/new", json=body, headers={"If-Match": "*"}).status_code == 200


def test_tags_that_do_not_match(http: httpx.Client) -> None:
    assert http.post("/api/v1/rules", json=RULE).headers["etag"] == '"2"'
    for tag in ('"0"', '"x"', "2", 'W/"2"', ""):
        is_problem(http.put("/api/v1/rules/search", json=RULE, headers={"If-Match": tag}), 412)
        is_problem(http.delete("/api/v1/rules/search", headers={"If-Match": tag}), 412)
    several = http.put("/api/v1/rules/search", json=RULE, headers={"If-Match": '"1", "2"'})
    assert several.status_code == 200


def test_a_rule_that_has_not_changed_is_not_sent_again(http: httpx.Client) -> None:
    tag = http.post("/api/v1/rules", json=RULE).headers["etag"]
    for known in (tag, f"W/{tag}", f'"1", {tag}', "*"):
        answer = http.get("/api/v1/rules/search", headers={"If-None-Match": known})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    assert http.get("/api/v1/rules/search", headers={"If-None-Match": '"1"'}).status_code == 200


def test_of_two_writers_with_the_same_tag_one_wins(node: Served) -> None:
    tag = node.http.post("/api/v1/rules", json=RULE).headers["etag"]
    start = Barrier(4)

    def write(limit: int) -> int:
        with node.client("bootstrap-token") as client:
            start.wait()
            return client.put(
                "/api/v1/rules/search", json={**RULE, "limit": limit}, headers={"If-Match": tag}
            ).status_code

    with ThreadPoolExecutor(4) as threads:
        statuses = list(threads.map(write, range(10, 14)))
    assert sorted(statuses) == [200, 412, 412, 412]
    assert node.http.get("/api/v1/rules/search").json()["limit"] == 10 + statuses.index(200)
    assert len(node.http.get("/api/v1/changes?kind=rule").json()["changes"]) == 2


def test_everything_that_is_wrong_with_a_rule_is_said_at_once(http: httpx.Client) -> None:
    wrong = {"id": "x", "limt": 5, "window": "soon", "burst": "many", "action": "shout", "status": 200}
    found = is_problem(http.post("/api/v1/rules", json=wrong), 422)["problems"]
    assert {(one["where"], one["field"]) for one in found} == {
        *(("rule 'x'", field) for field in ("limt", "limit", "window", "burst", "action", "status")),
    }
    assert {"where": "rule 'x'", "field": "limt", "message": "unknown key; did you mean 'limit'?"} in found
    assert http.get("/api/v1/rules").json()["rules"] == []


def test_a_rule_that_does_not_fit_the_others(http: httpx.Client) -> None:
    http.put("/api/v1/ruleset", content=RULESET, headers=TOML)
    problem = is_problem(http.post("/api/v1/rules", json={**RULE, "id": "x", "tiers": ["gold"]}), 422)
    assert problem["problems"][0]["field"] == "tiers"
    other = is_problem(http.put("/api/v1/rules/x", json=RULE), 422)
    assert other["problems"][0]["field"] == "id"


def test_rules_come_in_pages(http: httpx.Client) -> None:
    ids = [f"r{number:02}" for number in range(7)]
    for rule_id in reversed(ids):
        http.post("/api/v1/rules", json={**RULE, "id": rule_id})
    found: list[str] = []
    url: str | None = "/api/v1/rules?limit=3"
    pages = 0
    while url is not None:
        answer = http.get(url)
        pages += 1
        found += [rule["id"] for rule in answer.json()["rules"]]
        following = answer.json()["next"]
        assert (following is not None) == ("next" in answer.links)
        url = answer.links["next"]["url"] if following is not None else None
        assert url is None or f"after={following}" in url
    assert (found, pages) == (ids, 3)
    assert http.get("/api/v1/rules?limit=7").json()["next"] is None


def test_pages_that_cannot_be(http: httpx.Client) -> None:
    for query in ("limit=0", "limit=1001", "limit=x", "after=%00", f"after={'x' * 1101}"):
        problem = is_problem(http.get(f"/api/v1/rules?{query}"), 422)
        assert problem["problems"][0]["field"] == query.split("=")[0]


def test_a_wrong_time_in_the_query_is_said_in_our_words(tmp_path: Path) -> None:
    router = APIRouter()

    @router.get("/since")
    def since(when: Annotated[Moment, Query()] = None) -> None: ...

    with served(f"sqlite:///{tmp_path}/node.db", routers=[router]) as running:
        problem = is_problem(running.http.get("/api/v1/since?when=yesterday"), 422)
    assert problem["problems"][0]["message"].startswith("must be a time like")


def test_ids_of_all_kinds(http: httpx.Client) -> None:
    for rule_id in ("a/b", "a b", "ü%2F", "?#", "a/limits", '"', "x" * 512):
        created = http.post("/api/v1/rules", json={**RULE, "id": rule_id})
        assert created.status_code == 201
        assert created.headers["location"] == f"/api/v1/rules/{quote(rule_id, safe='')}"
        assert http.get(created.headers["location"]).json()["id"] == rule_id
        assert http.delete(created.headers["location"]).status_code == 204


def test_ids_that_cannot_be(http: httpx.Client) -> None:
    for rule_id in ("x" * 513, "a\0b", "a\nb", "", "\ud800"):
        body = json.dumps({**RULE, "id": rule_id})
        is_problem(http.post("/api/v1/rules", content=body, headers={"Content-Type": "application/json"}), 422)
        if rule_id.isascii():
            is_problem(http.get(f"/api/v1/rules/{quote(rule_id)}"), 404)


# All rules at once


def test_the_whole_rule_set_goes_out_and_in(http: httpx.Client) -> None:
    applied = http.put("/api/v1/ruleset", content=RULESET, headers=TOML)
    assert applied.status_code == 200
    assert [one["kind"] for one in applied.json()["changes"]] == ["tier", "tier", "rule", "exemption", "settings"]
    read = http.get("/api/v1/ruleset")
    assert read.headers["content-type"].startswith("application/toml")
    assert read.headers["etag"] == applied.headers["etag"]
    assert (
        snapshot_of(tomllib.loads(read.text), version="").rules == snapshot_of(tomllib.loads(RULESET), version="").rules
    )
    again = http.put("/api/v1/ruleset", content=read.content, headers={**TOML, "If-Match": read.headers["etag"]})
    assert (again.status_code, again.json()["changes"]) == (200, [])
    assert again.headers["etag"] == read.headers["etag"]
    assert http.get("/api/v1/ruleset", headers={"If-None-Match": read.headers["etag"]}).status_code == 304
    assert http.get("/api/v1/tiers").json() == {
        "tiers": [{"name": "free"}, {"name": "premium"}],
        "default_tier": "free",
    }


def test_a_dry_run_changes_nothing(http: httpx.Client) -> None:
    before = http.get("/api/v1/ruleset")
    tried = http.put("/api/v1/ruleset?dry_run=true", content=RULESET, headers=TOML)
    assert tried.status_code == 200
    assert tried.json()["dry_run"] is True
    assert len(tried.json()["changes"]) == 5
    assert tried.json()["changes"][2]["after"]["limit"] == 100
    after = http.get("/api/v1/ruleset")
    assert (after.text, after.headers["etag"]) == (before.text, before.headers["etag"])
    assert http.get("/api/v1/changes").json()["changes"] == []
    is_problem(http.put("/api/v1/ruleset?dry_run=true", content=f"{RULESET}\n[[rules]]", headers=TOML), 422)


def test_a_rule_set_that_others_have_changed(http: httpx.Client) -> None:
    tag = http.put("/api/v1/ruleset", content=RULESET, headers=TOML).headers["etag"]
    http.put("/api/v1/users/bob/tier", json={"tier": "premium"})  # which is no part of it
    http.post("/api/v1/tokens", json={"name": "x", "scopes": ["check"]})
    assert http.put("/api/v1/ruleset", content=RULESET, headers={**TOML, "If-Match": tag}).status_code == 200
    http.put("/api/v1/rules/other", json={"limit": 1, "window": 1})
    is_problem(http.put("/api/v1/ruleset", content=RULESET, headers={**TOML, "If-Match": tag}), 412)
    is_problem(http.put("/api/v1/ruleset", content=RULESET, headers={**TOML, "If-None-Match": "*"}), 412)


def test_a_rule_set_with_mistakes_changes_nothing(http: httpx.Client) -> None:
    http.put("/api/v1/ruleset", content=RULESET, headers=TOML)
    wrong = f'{RULESET}\n[[rules]]\nid = "a"\nlimit = 0\nwindow = "1h"\n[[rules]]\nid = "b"\nlimit = 1\n'
    problem = is_problem(http.put("/api/v1/ruleset", content=wrong, headers=TOML), 422)
    assert [(one["where"], one["field"]) for one in problem["problems"]] == [
        ("rule 'a'", "limit"),
        ("rule 'b'", "window"),
    ]
    assert [rule["id"] for rule in http.get("/api/v1/rules").json()["rules"]] == ["search"]
    for content in (b"", b"not toml", b"\xff"):
        is_problem(http.put("/api/v1/ruleset", content=content, headers=TOML), 422)
    is_problem(http.put("/api/v1/ruleset", json={}), 415)


def test_a_rule_set_with_users_needs_the_scope_users_too(node: Served) -> None:
    node.http.put("/api/v1/ruleset", content=RULESET, headers=TOML)
    node.http.post("/api/v1/users/bob/override", json={"rule": "search", "limit": 7})
    bob = node.http.get("/api/v1/users/bob/limits").json()["overrides"]
    with node.client(node.token("rules alone", "admin", ["rules"])) as client:
        for users in ('[[users]]\nid = "eve"\ntier = "premium"', '[[users]]\nid = "bob"', BOB.replace("9", "7")):
            for url in ("/api/v1/ruleset", "/api/v1/ruleset?dry_run=true"):
                answer = client.put(url, content=f"{RULESET}\n{users}", headers=TOML)
                assert "needs the scope users" in is_problem(answer, 403)["detail"]
                assert "7" not in answer.text
        assert client.put("/api/v1/ruleset", content=RULESET, headers=TOML).status_code == 200
    assert node.http.get("/api/v1/users/bob/limits").json()["overrides"] == bob
    assert node.http.get("/api/v1/users/eve/limits").json()["own_tier"] is None
    with node.client(node.token("both", "admin", ["rules", "users"])) as client:
        applied = client.put("/api/v1/ruleset", content=f"{RULESET}\n{BOB}", headers=TOML)
    (change,) = applied.json()["changes"]
    assert (change["subject"], change["after"]["overrides"]) == ("bob", [{"rule": "search", "limit": 9}])


def test_a_rule_set_that_deletes_users_overrides_needs_the_scope_users_too(node: Served) -> None:
    node.http.put("/api/v1/ruleset", content=RULESET, headers=TOML)
    node.http.post("/api/v1/users/bob/override", json={"rule": "search", "limit": 7})
    without = RULESET.replace('"search"', '"other"')
    with node.client(node.token("rules alone", "admin", ["rules"])) as client:
        for url in ("/api/v1/ruleset", "/api/v1/ruleset?dry_run=true"):
            answer = client.put(url, content=without, headers=TOML)
            assert "overrides of rules that it deletes" in is_problem(answer, 403)["detail"]
            assert "bob" not in answer.text
    assert [rule["id"] for rule in node.http.get("/api/v1/rules").json()["rules"]] == ["search"]
    applied = node.http.put("/api/v1/ruleset", content=without, headers=TOML)
    assert ("delete", "bob") in [(one["action"], one["subject"]) for one in applied.json()["changes"]]


@pytest.mark.parametrize("content", [f"{RULESET}\n{BOB}", RULESET.replace('"search"', '"other"')])
def test_a_rule_set_whose_users_others_have_changed(http: httpx.Client, content: str) -> None:
    """An override that came after the look is neither overwritten nor deleted."""
    http.put("/api/v1/ruleset", content=RULESET, headers=TOML)
    looked = http.put("/api/v1/ruleset?dry_run=true", content=content, headers=TOML).headers["etag"]
    http.post("/api/v1/users/bob/override", json={"rule": "search", "limit": 7})
    is_problem(http.put("/api/v1/ruleset", content=content, headers={**TOML, "If-Match": looked}), 412)
    again = http.put("/api/v1/ruleset?dry_run=true", content=content, headers=TOML).headers["etag"]
    http.put("/api/v1/users/carol/tier", json={"tier": "free"})  # whom it does not concern
    applied = http.put("/api/v1/ruleset", content=content, headers={**TOML, "If-Match": again})
    assert applied.status_code == 200
    same = http.put("/api/v1/ruleset", content=content, headers={**TOML, "If-Match": applied.headers["etag"]})
    assert (same.status_code, same.json()["changes"]) == (200, [])


# Users


def test_a_users_tier_and_override_count_at_once(node: Served) -> None:
    http = node.http
    http.put("/api/v1/ruleset", content=RULESET.replace("100", "2"), headers=TOML)
    assert http.put("/api/v1/users/alice/tier", json={"tier": "free"}).json() == {
        **{"id": "alice", "tier": "free", "overrides": []},
    }
    assert [node.check(user="alice") for _ in range(3)] == [True, True, False]
    given = http.post(
        "/api/v1/users/alice/override", json={"rule": "search", "limit": 4, "expires": "2999-01-01T00:00:00Z"}
    )
    assert given.json()["overrides"] == [{"rule": "search", "limit": 4, "expires": "2999-01-01T00:00:00+00:00"}]
    assert [node.check(user="alice") for _ in range(3)] == [True, True, False]

    limits = http.get("/api/v1/users/alice/limits").json()
    assert (limits["tier"], limits["own_tier"], limits["exempt"]) == ("free", "free", False)
    assert [one["expired"] for one in limits["overrides"]] == [False]
    (limit,) = limits["limits"]
    assert (limit["rule"], limit["overridden"], limit["quota"]["limit"]) == ("search", True, 4)
    assert (limit["figures"]["allowed"], limit["figures"]["remaining"]) == (False, 0)
    assert limit["figures"]["retry_after"] > 0

    assert http.delete("/api/v1/users/alice/override?rule=search").status_code == 204
    is_problem(http.delete("/api/v1/users/alice/override?rule=search"), 404)
    (limit,) = http.get("/api/v1/users/alice/limits").json()["limits"]
    assert (limit["overridden"], limit["quota"]["limit"], limit["figures"]["limit"]) == (False, 2, 2)

    http.put("/api/v1/users/alice/tier", json={"tier": "premium"})
    assert node.check(user="alice")
    assert http.get("/api/v1/users/alice/limits").json()["limits"] == []
    http.put("/api/v1/users/alice/tier", json={"tier": None})
    assert http.get("/api/v1/users/alice/limits").json()["own_tier"] is None


def test_a_tier_that_is_not_said_is_not_taken_away(http: httpx.Client) -> None:
    http.put("/api/v1/users/bob/tier", json={"tier": "premium"})
    (problem,) = is_problem(http.put("/api/v1/users/bob/tier", json={}), 422)["problems"]
    assert (problem["where"], problem["field"]) == ("user 'bob'", "tier")
    assert http.get("/api/v1/users/bob/limits").json()["own_tier"] == "premium"
    assert http.put("/api/v1/users/bob/tier", json={"tier": None}).json()["tier"] is None


def test_a_users_anchor_is_set_beside_their_tier(http: httpx.Client) -> None:
    rule = '[[rules]]\nid = "monthly"\nlimit = 5\nwindow = "month"\ncalendar = true\n'
    http.put("/api/v1/ruleset", content=rule, headers=TOML)
    assert http.put("/api/v1/users/bob/tier", json={"tier": "premium", "anchor": 15}).json() == {
        **{"id": "bob", "tier": "premium", "anchor": 15, "overrides": []},
    }
    http.put("/api/v1/users/bob/tier", json={"tier": "free"})
    limits = http.get("/api/v1/users/bob/limits").json()
    assert (limits["own_tier"], limits["anchor"]) == ("free", 15), "what is not said stays as it is"
    (limit,) = limits["limits"]
    assert (limit["quota"]["notation"], limit["overridden"]) == ("5/calendar month anchor 15", False)
    http.post("/api/v1/users/bob/override", json={"rule": "monthly", "limit": 9})
    (limit,) = http.get("/api/v1/users/bob/limits").json()["limits"]
    assert (limit["quota"]["notation"], limit["overridden"]) == ("9/calendar month anchor 15", True)
    assert http.put("/api/v1/users/bob/tier", json={"anchor": None}).json()["tier"] == "free"
    assert http.get("/api/v1/users/bob/limits").json()["anchor"] is None
    for anchor in (32, "noday", 1.5, True):
        (problem,) = is_problem(http.put("/api/v1/users/bob/tier", json={"anchor": anchor}), 422)["problems"]
        assert (problem["where"], problem["field"]) == ("user 'bob'", "anchor")


def test_the_figures_are_those_of_real_requests(node: Served) -> None:
    """Whatever a rule asks of requests besides, and also where an override has a window, and so a count, of its own."""
    http = node.http
    conditional = {
        **RULE,
        "id": "api",
        "limit": 10,
        "endpoints": ["/api/*"],
        "methods": ["GET"],
        "match": {"country": "DE"},
    }
    http.post("/api/v1/rules", json=conditional)
    http.post("/api/v1/rules", json={**RULE, "id": "joint", "dimension": "user+endpoint"})
    http.post("/api/v1/rules", json={**RULE, "id": "shadow", "limit": 1, "action": "log_only", "group": "g"})
    http.post("/api/v1/rules", json={**RULE, "id": "by-ip", "dimension": "ip"})
    http.post("/api/v1/rules", json={**RULE, "id": "off", "enabled": False})
    facts = {"user": "a/b\n", "endpoint": "/api/x", "method": "GET", "country": "DE"}
    assert node.check(**facts)

    def figures() -> dict[str, Any]:
        answer = http.get(f"/api/v1/users/{quote(facts['user'], safe='')}/limits").json()
        return {one["rule"]: one["figures"] and one["figures"]["remaining"] for one in answer["limits"]}

    assert figures() == {"api": 9, "joint": None, "shadow": 0}
    http.post("/api/v1/users/a%2Fb%0A/override", json={"rule": "api", "limit": 20, "window": "1d"})
    assert figures()["api"] == 20
    assert node.check(**facts)
    assert figures()["api"] == 19
    assert figures()["api"] == 19  # looking is free


def test_limits_of_an_exempt_user_and_of_one_nobody_knows(http: httpx.Client) -> None:
    exempt = RULESET.replace('type = "ip"', 'type = "user"').replace("10.0.0.0/8", "root")
    http.put("/api/v1/ruleset", content=exempt, headers=TOML)
    assert http.get("/api/v1/users/root/limits").json()["exempt"] is True
    unknown = http.get("/api/v1/users/nobody/limits").json()
    assert (unknown["tier"], unknown["own_tier"], unknown["exempt"]) == ("free", None, False)
    assert unknown["limits"][0]["figures"]["remaining"] == 100


def test_overrides_that_cannot_be(http: httpx.Client) -> None:
    http.post("/api/v1/rules", json=RULE)
    wrong: list[tuple[dict[str, Any], list[str]]] = [
        ({"rule": "nope", "limit": 1}, ["rule"]),
        ({"rule": "search", "limit": 0}, ["limit"]),
        ({"rule": "search", "limit": 1, "expires": "tomorrow"}, ["expires"]),
        ({"rule": "search", "limit": 1, "expires": "2030-01-01T00:00:00"}, ["expires"]),
        ({"limit": "x", "windw": 1}, ["rule", "limit", "windw"]),
    ]
    for body, fields in wrong:
        problem = is_problem(http.post("/api/v1/users/alice/override", json=body), 422)
        assert [one["field"] for one in problem["problems"]] == fields


def test_tiers_that_cannot_be(http: httpx.Client) -> None:
    http.put("/api/v1/ruleset", content=RULESET, headers=TOML)
    for body in ({"tier": "gold"}, {"tier": 5}, {"teir": "free"}):
        is_problem(http.put("/api/v1/users/alice/tier", json=body), 422)
    is_problem(http.put(f"/api/v1/users/{'x' * 513}/tier", json={"tier": "free"}), 422)
    is_problem(http.put("/api/v1/users/a%00b/tier", json={"tier": "free"}), 422)
    is_problem(http.get(f"/api/v1/users/{'x' * 513}/limits"), 422)


def test_a_rule_with_overrides_is_deleted_only_with_them(http: httpx.Client) -> None:
    http.post("/api/v1/rules", json=RULE)
    http.post("/api/v1/users/alice/override", json={"rule": "search", "limit": 4})
    assert "overrides of 1 users" in is_problem(http.delete("/api/v1/rules/search"), 422)["detail"]
    assert http.delete("/api/v1/rules/search?with_overrides=true").status_code == 204
    assert http.get("/api/v1/users/alice/limits").json()["overrides"] == []


# Tokens and the change log


def test_a_token_from_its_creation_to_its_end(node: Served) -> None:
    http = node.http
    body = {"name": "ci", "role": "operator", "scopes": ["users"], "expires_in": "1h"}
    created = http.post("/api/v1/tokens", json=body)
    assert created.headers["cache-control"] == "no-store"
    token = created.json()
    secret = token.pop("token")
    assert http.get("/api/v1/tokens").json() == {"tokens": [token], "next": None}
    with node.client(secret) as client:
        assert client.put("/api/v1/users/bob/tier", json={"tier": "x"}).status_code == 200
        assert http.get("/api/v1/changes?kind=user").json()["changes"][0]["actor"] == "ci"
        assert http.delete(created.headers["location"]).status_code == 204
        is_problem(client.put("/api/v1/users/bob/tier", json={"tier": "y"}), 401)  # at once
    assert http.get("/api/v1/tokens").json()["tokens"][0]["revoked"] is not None
    is_problem(http.delete("/api/v1/tokens/nobody"), 404)


def test_a_token_that_is_revoked_elsewhere(node: Served) -> None:
    """By another node, which shares nothing with this one but the database."""
    secret = node.token("ci", "viewer", ["rules"])
    other = TokenTable(node.database)
    token = other.find([hash_of(secret)])[hash_of(secret)]
    other.revoke(token.id, actor="other")
    other.close()
    with node.client(secret) as client:
        is_problem(client.get("/api/v1/rules"), 401)  # it was not remembered: nobody had used it here


def test_nobody_can_give_scopes_that_they_lack(node: Served) -> None:
    with node.client(node.token("minter", "admin", ["tokens", "check"])) as client:
        is_problem(client.post("/api/v1/tokens", json={"name": "x", "scopes": ["rules"]}), 403)
        assert client.post("/api/v1/tokens", json={"name": "x", "scopes": ["check"]}).status_code == 201


def test_tokens_that_cannot_be(http: httpx.Client) -> None:
    wrong = {"name": 5, "role": "king", "scopes": ["everything"], "expires_in": "soon", "colour": "red"}
    problem = is_problem(http.post("/api/v1/tokens", json=wrong), 422)
    assert {one["field"] for one in problem["problems"]} == set(wrong)
    for name in ("bootstrap", "data", "", "a\nb"):
        is_problem(http.post("/api/v1/tokens", json={"name": name, "scopes": ["check"]}), 422)
    is_problem(http.post("/api/v1/tokens", json={"name": "x", "scopes": []}), 422)
    http.post("/api/v1/tokens", json={"name": "x", "scopes": ["check"]})
    is_problem(http.post("/api/v1/tokens", json={"name": "x", "scopes": ["check"]}), 409)


def test_every_change_is_logged_with_who_what_before_and_after(node: Served) -> None:
    with node.client(node.token("alice", "admin", ["rules", "users"])) as client:
        client.post("/api/v1/rules", json=RULE)
        client.put("/api/v1/rules/search", json={**RULE, "limit": 9})
        client.put("/api/v1/users/bob/tier", json={"tier": "x"})
        client.delete("/api/v1/rules/search")
        shown = client.get("/api/v1/changes").json()["changes"]
        assert [(one["actor"], one["action"], one["kind"], one["subject"]) for one in shown] == [
            ("alice", "delete", "rule", "search"),
            ("alice", "create", "user", "bob"),
            ("alice", "update", "rule", "search"),
            ("alice", "create", "rule", "search"),
        ]
        assert (shown[2]["before"]["limit"], shown[2]["after"]["limit"]) == (2, 9)
        assert (shown[3]["before"], shown[0]["after"]) == (None, None)
        is_problem(client.get("/api/v1/changes?kind=token"), 403)
        is_problem(client.get("/api/v1/changes?kind=nonsense"), 422)
        is_problem(client.get("/api/v1/changes?after=x"), 422)
        page = client.get("/api/v1/changes?limit=1&kind=rule&subject=search")
        assert page.json()["changes"] == shown[:1]
        assert client.get(page.links["next"]["url"]).json()["changes"] == shown[2:3]
    assert [one["kind"] for one in node.http.get("/api/v1/changes?kind=token").json()["changes"]] == ["token"]


def test_no_secret_is_in_the_change_log(node: Served) -> None:
    secret = node.token("ci", "viewer", ["rules"])
    text = node.http.get("/api/v1/changes").text
    assert "ci" in text
    assert secret not in text
    assert hash_of(secret) not in text


# What is said of every request


def test_bodies_that_cannot_be_read(http: httpx.Client) -> None:
    url, kind = "/api/v1/rules", {"Content-Type": "application/json"}
    for content in (b"", b"{", b"\xff", b"[1]", b"null", b'{"limit": NaN}', b"[" * 100_000, b'{"limit":' + b"9" * 5000):
        is_problem(http.post(url, content=content, headers=kind), 400)
    is_problem(http.post(url, content=b"{}", headers={"Content-Type": "text/plain"}), 415)
    is_problem(http.post(url, content=b" " * (1 << 20) + b"{}", headers=kind), 413)


def test_paths_and_methods_that_there_are_not(http: httpx.Client) -> None:
    is_problem(http.get("/nowhere"), 404)
    is_problem(http.get("/api/v1/nowhere"), 404)
    wrong = http.patch("/api/v1/rules")
    is_problem(wrong, 405)
    assert wrong.headers["allow"] == "GET, POST"


@pytest.fixture
def timeless_node(migrated_url: str) -> Iterator[Served]:
    """A node whose limits of callers count by a clock that stands still: no call falls into the next minute."""
    with served(migrated_url, limits=AsyncLimiter(OWN_RULES, clock=FakeClock(start=1_000_000.0))) as running:
        yield running


def test_callers_are_told_their_limits_and_held_to_them(timeless_node: Served) -> None:
    node = timeless_node
    with node.client(node.token("busy", "admin", ["rules", "users"])) as client:
        read = client.get("/api/v1/rules")
        assert read.headers["x-ratelimit-limit"] == "1000"
        policies: Any = http_sf.parse(read.headers["ratelimit-policy"].encode(), tltype="list")
        assert policies == [("admin-reads", {"q": 1000, "w": 60})]
        assert read.headers["x-content-type-options"] == "nosniff"
        wrong = {"tier": 5}  # refused, and counted all the same
        statuses = [client.put("/api/v1/users/u/tier", json=wrong).status_code for _ in range(100)]
        assert statuses == [422] * 100
        refused = client.put("/api/v1/users/u/tier", json=wrong)
        problem = is_problem(refused, 429)
        assert problem["violated-policies"] == ["admin-writes"]
        assert int(refused.headers["retry-after"]) > 0
        assert refused.headers.get_list("retry-after") == [refused.headers["retry-after"]]
        assert client.get("/api/v1/rules").status_code == 200  # reads count apart
    assert node.http.put("/api/v1/users/u/tier", json={"tier": "x"}).status_code == 200  # so do others


def test_guessing_is_slow(node: Served) -> None:
    new, ended = node.token("new", "viewer", ["rules"]), node.token("ended", "viewer", ["rules"])
    assert node.http.get("/api/v1/rules").status_code == 200
    with node.client(ended) as client:
        assert client.get("/api/v1/rules").status_code == 200
    with node.client("hg_guess") as client:
        statuses = [client.get("/api/v1/rules").status_code for _ in range(30)]
        assert statuses == [401] * 30
        assert int(client.get("/api/v1/rules").headers["retry-after"]) > 0
    with node.client(new) as client:
        is_problem(client.get("/api/v1/rules"), 429)  # a good guess would not be told from a bad one
    assert node.http.get("/api/v1/rules").status_code == 200  # who was there before is not guessing
    (ended_id,) = [one["id"] for one in node.http.get("/api/v1/tokens").json()["tokens"] if one["name"] == "ended"]
    assert node.http.delete(f"/api/v1/tokens/{ended_id}").status_code == 204
    with node.client(ended) as client:
        assert [client.get("/api/v1/rules").status_code for _ in range(2)] == [401, 429]


def test_without_the_database_it_says_so(node: Served) -> None:
    """A token that nobody remembers cannot be known then; the bootstrap token can."""
    secret = node.token("ci", "admin", ["rules"])
    assert node.tokens is not None
    node.tokens.close()  # as good as away
    with node.client(secret) as client:
        answer = client.get("/api/v1/rules")
        is_problem(answer, 503)
        assert int(answer.headers["retry-after"]) > 0
        assert "was closed" not in answer.text
    assert node.http.get("/api/v1/rules").status_code == 200


# Rules in a file


def test_rules_of_a_file_can_be_read(file_node: Served) -> None:
    http = file_node.http
    assert [rule["id"] for rule in http.get("/api/v1/rules").json()["rules"]] == ["all", "search"]
    page = http.get("/api/v1/rules?limit=1").json()
    assert (page["rules"][0]["id"], page["next"]) == ("all", "all")
    assert [rule["id"] for rule in http.get("/api/v1/rules?after=all").json()["rules"]] == ["search"]
    assert http.get("/api/v1/rules/search").json()["limit"] == 100
    is_problem(http.get("/api/v1/rules/nope"), 404)
    assert http.get("/api/v1/users/alice/limits").json()["own_tier"] == "premium"
    read = http.get("/api/v1/ruleset")
    written = snapshot_of(tomllib.loads(read.text), version="")
    assert written.rules == file_node.limiter.snapshot.rules
    assert written.users == file_node.limiter.snapshot.users
    assert http.get("/api/v1/ruleset", headers={"If-None-Match": read.headers["etag"]}).status_code == 304


def test_rules_of_a_file_cannot_be_changed(file_node: Served) -> None:
    writes = [
        ("POST", "/rules", RULE),
        ("PUT", "/rules/search", RULE),
        ("DELETE", "/rules/search", None),
        ("PUT", "/users/alice/tier", {"tier": "free"}),
        ("POST", "/users/alice/override", {"rule": "search", "limit": 5}),
        ("DELETE", "/users/alice/override?rule=search", None),
    ]
    for method, path, body in writes:
        answer = file_node.http.request(method, f"/api/v1{path}", json=body)
        assert "rules.toml" in is_problem(answer, 409)["detail"], path
    answer = file_node.http.put("/api/v1/ruleset", content=RULESET, headers=TOML)
    assert "rules.toml" in is_problem(answer, 409)["detail"]


def test_tokens_are_in_the_database_all_the_same(file_node: Served) -> None:
    secret = file_node.token("ci", "viewer", ["rules"])
    with file_node.client(secret) as client:
        assert client.get("/api/v1/rules").status_code == 200


def test_changes_made_by_others_are_seen(node: Served) -> None:
    """The database is the truth, not what this node remembers."""
    with Changes(node.database) as changes, changes.begin("somebody") as change:
        change.set_tier("bob", "gold")
    assert node.http.get("/api/v1/users/bob/limits").json()["own_tier"] == "gold"
