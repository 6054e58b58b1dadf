"""What operators do over HTTP beyond single rules: users and overrides by the thousand, exemptions, the way back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.db import Changes
from headgate.rules.users import Override
from headgate.testing import FakeClock
from tests.acceptance.admin import Served, served
from tests.acceptance.test_admin_api import is_problem

RULE = {"id": "search", "limit": 2, "window": "1h", "algorithm": "fixed_window"}
PAST = "2020-01-01T00:00:00+00:00"
FUTURE = (datetime.now(UTC) + timedelta(days=30)).isoformat()


@pytest.fixture
def node(migrated_url: str) -> Iterator[Served]:
    with served(migrated_url) as running:
        assert running.http.post("/api/v1/rules", json=RULE).status_code == 201
        yield running


@pytest.fixture
def http(node: Served) -> httpx.Client:
    return node.http


@pytest.fixture
def file_node(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "rules.toml").write_text(
        """
        [[rules]]
        id = "search"
        limit = 5
        window = 60
        [[users]]
        id = "alice"
        tier = "premium"
        [[users]]
        id = "bob"
        overrides = [{ rule = "search", limit = 9, expires = 2020-01-01T00:00:00Z }]
        [[exemptions]]
        type = "tenant"
        value = "acme"
        """
    )
    with served(f"sqlite:///{tmp_path}/node.db", rules=str(tmp_path / "rules.toml")) as running:
        yield running


def put_expired(node: Served, user: str, rule: str = "search") -> None:
    """An override that was good when it was made, long ago."""
    then = Changes(node.database, clock=FakeClock(1_500_000_000.0))
    with then.begin("then") as change:
        change.put_override(user, Override(rule=rule, limit=9, expires=datetime.fromisoformat(PAST)))
    then.close()


def log(http: httpx.Client, **params: Any) -> list[dict[str, Any]]:
    answer = http.get("/api/v1/changes", params=params)
    assert answer.status_code == 200, answer.text
    changes: list[dict[str, Any]] = answer.json()["changes"]
    return changes


def pages(http: httpx.Client, path: str, name: str, **params: Any) -> list[dict[str, Any]]:
    """All entries, two at a time."""
    found: list[dict[str, Any]] = []
    after = None
    while True:
        answer = http.get(path, params={**params, "limit": 2, **({} if after is None else {"after": after})})
        assert answer.status_code == 200, answer.text
        found += answer.json()[name]
        after = answer.json()["next"]
        assert (after is None) == ("link" not in answer.headers)
        if after is None:
            return found


# Listing


def test_users_and_overrides_are_listed_in_pages(node: Served) -> None:
    http = node.http
    http.post("/api/v1/rules", json={**RULE, "id": "a/b"})
    users = [{"id": f"user {number}", "tier": "free" if number % 2 else "premium"} for number in range(5)]
    pairs = [(f"user {number}", rule) for number in (7, 8) for rule in ("a/b", "search")]
    overrides = [{"user": user, "rule": rule, "limit": 7} for user, rule in pairs]
    assert http.put("/api/v1/users:batch", json={"users": users, "overrides": overrides}).status_code == 200
    put_expired(node, "user 9")

    listed = pages(http, "/api/v1/users", "users")
    assert [user["id"] for user in listed] == [f"user {number}" for number in (0, 1, 2, 3, 4, 7, 8, 9)]
    assert listed[0] == {"id": "user 0", "tier": "premium", "overrides": []}
    assert [user["id"] for user in pages(http, "/api/v1/users", "users", tier="free")] == ["user 1", "user 3"]

    every = pages(http, "/api/v1/overrides", "overrides")
    assert [(one["user"], one["rule"], one["expired"]) for one in every] == [
        *[(user, rule, False) for user, rule in pairs],
        ("user 9", "search", True),
    ]
    assert every[-1]["expires"] == PAST
    assert [one["user"] for one in pages(http, "/api/v1/overrides", "overrides", expired=True)] == ["user 9"]
    assert [one["user"] for one in pages(http, "/api/v1/overrides", "overrides", rule="a/b")] == ["user 7", "user 8"]
    of_one = pages(http, "/api/v1/overrides", "overrides", user="user 7", expired=False)
    assert [one["rule"] for one in of_one] == ["a/b", "search"]
    is_problem(http.get("/api/v1/overrides", params={"after": "user 7"}), 422)


def test_users_and_exemptions_of_a_file_are_listed_and_stay(file_node: Served) -> None:
    http = file_node.http
    assert [user["id"] for user in pages(http, "/api/v1/users", "users")] == ["alice", "bob"]
    assert [user["id"] for user in pages(http, "/api/v1/users", "users", tier="premium")] == ["alice"]
    (override,) = pages(http, "/api/v1/overrides", "overrides")
    assert (override["user"], override["limit"], override["expired"]) == ("bob", 9, True)
    assert pages(http, "/api/v1/overrides", "overrides", expired=False) == []
    assert pages(http, "/api/v1/exemptions", "exemptions") == [{"type": "tenant", "value": "acme"}]
    for answer in (
        http.put("/api/v1/users:batch", json={"users": [{"id": "carol", "tier": "free"}]}),
        http.delete("/api/v1/users/alice"),
        http.post("/api/v1/exemptions", json={"type": "user", "value": "alice"}),
        http.delete("/api/v1/exemptions", params={"type": "tenant", "value": "acme"}),
        http.post("/api/v1/changes/1/revert"),
    ):
        assert "rules.toml" in is_problem(answer, 409)["detail"]


# Many at once


def test_ten_thousand_users_and_overrides_change_in_one_transaction(node: Served, thorough: bool) -> None:
    http, tenth = node.http, 1_000 if thorough else 100
    users = [
        {"id": f"u{number:05}", "tier": "free", "overrides": [{"rule": "search", "limit": 5, "expires": FUTURE}]}
        for number in range(6 * tenth)
    ]
    overrides = [{"user": f"v{number:05}", "rule": "search", "limit": 3} for number in range(4 * tenth)]
    done = http.put("/api/v1/users:batch", json={"users": users, "overrides": overrides})
    assert done.status_code == 200, done.text
    assert done.json() == {
        **{"version": done.json()["version"], "created": 10 * tenth, "updated": 0, "deleted": 0, "unchanged": 0}
    }
    assert [node.check(user="v00042") for _ in range(4)] == [True, True, True, False]
    assert len({change["version"] for change in log(http, kind="user", limit=1000)}) == 1

    users[0] = {"id": "u00000"}
    users[1]["tier"] = "premium"
    again = http.put("/api/v1/users:batch", json={"users": users, "overrides": overrides})
    assert again.json() == {
        **{"version": done.json()["version"] + 1, "created": 0, "updated": 1, "deleted": 1, "unchanged": 10 * tenth - 2}
    }
    kept = http.get("/api/v1/users", params={"limit": 1}).json()["users"]
    assert kept == [
        {"id": "u00001", "tier": "premium", "overrides": [{"rule": "search", "limit": 5, "expires": FUTURE}]}
    ]

    first = log(http, limit=1)[0]
    reverted = http.post(f"/api/v1/changes/{first['id']}/revert", params={"together": True})
    assert reverted.status_code == 200, reverted.text
    assert len(reverted.json()["changes"]) == 2
    assert http.get("/api/v1/users", params={"limit": 2}).json()["users"][0]["id"] == "u00000"


def test_an_override_of_a_batch_leaves_the_rest_of_its_user(http: httpx.Client) -> None:
    http.post("/api/v1/rules", json={**RULE, "id": "other"})
    http.put("/api/v1/users/alice/tier", json={"tier": "premium"})
    http.post("/api/v1/users/alice/override", json={"rule": "other", "limit": 1})
    overrides = [{"user": "alice", "rule": "search", "limit": 8}, {"user": "bob", "rule": "search", "limit": 8}]
    assert http.put("/api/v1/users:batch", json={"overrides": overrides}).json()["updated"] == 1
    (alice, bob) = http.get("/api/v1/users").json()["users"]
    assert alice == {
        "id": "alice",
        "tier": "premium",
        "overrides": [{"rule": "other", "limit": 1}, {"rule": "search", "limit": 8}],
    }
    assert bob == {"id": "bob", "tier": None, "overrides": [{"rule": "search", "limit": 8}]}


def test_a_batch_with_a_problem_changes_nothing_and_says_everything(http: httpx.Client) -> None:
    before = log(http)
    body: dict[str, Any] = {
        "users": [
            {"id": "alice", "tier": 7},
            {"id": "bob", "overrides": [{"rule": "search", "limit": 0}]},
            {"id": "carol", "overrides": [{"rule": "search"}]},
        ]
    }
    told = is_problem(http.put("/api/v1/users:batch", json=body), 422)
    assert [(one["where"], one["field"]) for one in told["problems"]] == [
        ("user 'alice'", "tier"),
        ("user 'bob': override of rule 'search'", "limit"),
        ("user 'carol': override of rule 'search'", "limit"),
    ]
    body = {"users": [{"id": "dave", "tier": "free"}], "overrides": [{"user": "erin", "rule": "none", "limit": 1}]}
    told = is_problem(http.put("/api/v1/users:batch", json=body), 422)
    assert [one["where"] for one in told["problems"]] == ["user 'erin': override of rule 'none'"]
    for body, what in (
        ({"users": [{"id": "a", "tier": "x"}] * 2}, "twice"),
        ({"overrides": [{"user": "a", "rule": "search", "limit": 1}] * 2}, "twice"),
        ({"users": [{"id": "a"}], "overrides": [{"user": "a", "rule": "search", "limit": 1}]}, "among users"),
        ({"users": [{"id": f"u{number}"} for number in range(10_001)]}, "10,000"),
        ({"overrides": [{"rule": "search", "limit": 1}]}, "id of a user"),
        ({"user": []}, "unknown key"),
        ({"users": {}, "overrides": "x"}, "must be a list"),
    ):
        assert what in is_problem(http.put("/api/v1/users:batch", json=body), 422)["problems"][-1]["message"]
    is_problem(http.put("/api/v1/users:batch", content="[]", headers={"Content-Type": "application/json"}), 400)
    assert log(http) == before
    assert http.get("/api/v1/users").json()["users"] == []


@pytest.mark.parametrize("wrong", [{}, "", 0, False])
def test_lists_of_a_batch_are_lists(http: httpx.Client, wrong: object) -> None:
    answer = http.put("/api/v1/users:batch", json={"users": [{"id": "alice"}], "overrides": wrong})
    assert answer.status_code == 422
    assert answer.json()["problems"][0]["message"].startswith("must be a list")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("users/alice/limits", "GET"),
        ("users/alice/tier", "PUT"),
        ("users/alice/override", "DELETE, POST"),
        ("users/alice", "DELETE"),
        ("users", "GET"),
        ("users:batch", "PUT"),
        ("rules/a/b", "DELETE, GET, PUT"),
        ("exemptions", "DELETE, GET, POST"),
        ("changes/1/revert", "POST"),
    ],
)
def test_allow_lists_the_methods_of_a_path(http: httpx.Client, path: str, allowed: str) -> None:
    answer = http.request("OPTIONS", f"/api/v1/{path}")
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_files_are_only_for_reading(http: httpx.Client) -> None:
    answer = http.post("/docs/assets/swagger-ui.css")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_a_user_is_deleted(node: Served) -> None:
    http = node.http
    http.post("/api/v1/users/a%2Fb/override", json={"rule": "search", "limit": 1})
    assert [node.check(user="a/b") for _ in range(2)] == [True, False]
    assert http.delete("/api/v1/users/a%2Fb").status_code == 204
    assert node.check(user="a/b")
    is_problem(http.delete("/api/v1/users/a%2Fb"), 404)


# Overrides that have expired


def test_an_expired_override_is_refused_at_entry(http: httpx.Client) -> None:
    body = {"rule": "search", "limit": 9, "expires": PAST}
    (problem,) = is_problem(http.post("/api/v1/users/alice/override", json=body), 422)["problems"]
    assert problem["field"] == "expires"
    assert "is in the past" in problem["message"]
    is_problem(http.put("/api/v1/users:batch", json={"users": [{"id": "alice", "overrides": [body]}]}), 422)
    is_problem(http.put("/api/v1/users:batch", json={"overrides": [{"user": "alice", **body}]}), 422)
    toml = '[[rules]]\nid = "search"\nlimit = 2\nwindow = 60\n[[users]]\nid = "alice"\n'
    toml += "overrides = [{ rule = 'search', limit = 9, expires = 2020-01-01T00:00:00Z }]"
    is_problem(http.put("/api/v1/ruleset", content=toml, headers={"Content-Type": "application/toml"}), 422)
    assert http.get("/api/v1/users").json()["users"] == []


def test_an_expired_override_blocks_neither_changes_nor_deletions_of_its_rule(node: Served) -> None:
    http = node.http
    put_expired(node, "alice")
    # One that has not expired would not fit this rule any more.
    assert http.put("/api/v1/rules/search", json={"limit": 1, "window": 60, "dimension": "ip"}).status_code == 200
    assert http.put("/api/v1/users/alice/tier", json={"tier": "free"}).status_code == 200
    assert http.delete("/api/v1/rules/search").status_code == 204
    assert http.get("/api/v1/overrides").json()["overrides"] == []
    assert http.get("/api/v1/users").json()["users"] == [{"id": "alice", "tier": "free", "overrides": []}]


def test_an_expired_override_takes_no_scope_for_users_from_who_replaces_the_rules(node: Served) -> None:
    put_expired(node, "alice")
    headers = {"Content-Type": "application/toml"}
    toml = '[[rules]]\nid = "other"\nlimit = 2\nwindow = 60\n'
    with node.client(node.token("rules", "admin", ["rules"])) as rules_only:
        assert rules_only.put("/api/v1/ruleset", content=toml, headers=headers).status_code == 200
        assert node.http.get("/api/v1/overrides").json()["overrides"] == []

        node.http.post("/api/v1/users/alice/override", json={"rule": "other", "limit": 1, "expires": FUTURE})
        refused = rules_only.put("/api/v1/ruleset", content=toml.replace("other", "third"), headers=headers)
    assert "scope users" in is_problem(refused, 403)["detail"]


# Exemptions


def test_an_exemption_from_its_creation_to_its_end(node: Served) -> None:
    http = node.http
    body = {"type": "ip", "value": "10.0.0.0/8"}
    http.put("/api/v1/rules/search", json={"limit": 1, "window": 3600, "dimension": "ip"})
    created = http.post("/api/v1/exemptions", json=body)
    assert (created.status_code, created.json()) == (201, body)
    assert http.post("/api/v1/exemptions", json=body).status_code == 200
    assert [node.check(ip="10.1.2.3") for _ in range(3)] == [True, True, True]
    for value in ("alice", "bob"):
        http.post("/api/v1/exemptions", json={"type": "user", "value": value})
    listed = pages(http, "/api/v1/exemptions", "exemptions")
    assert [(one["type"], one["value"]) for one in listed] == [("ip", "10.0.0.0/8"), ("user", "alice"), ("user", "bob")]

    assert http.delete("/api/v1/exemptions", params=body).status_code == 204
    assert [node.check(ip="10.1.2.3") for _ in range(2)] == [True, False]
    is_problem(http.delete("/api/v1/exemptions", params=body), 404)
    assert [change["action"] for change in log(http, kind="exemption")] == ["delete", "create", "create", "create"]


def test_an_exemption_that_is_none(http: httpx.Client) -> None:
    for body, field in (
        ({"type": "ip", "value": "10.0.0.0/99"}, "value"),
        ({"type": "country", "value": "DE"}, "type"),
        ({"type": "ip"}, "value"),
        ({"type": "user", "value": "a", "note": "x"}, "note"),
        ({"type": "user", "value": ""}, "value"),
    ):
        (problem,) = is_problem(http.post("/api/v1/exemptions", json=body), 422)["problems"]
        assert problem["field"] == field
    is_problem(http.delete("/api/v1/exemptions", params={"type": "ip"}), 422)


def test_exemptions_take_the_role_of_an_admin(node: Served) -> None:
    with node.client(node.token("operator", "operator", ["rules"])) as operator:
        assert operator.get("/api/v1/exemptions").status_code == 200
        is_problem(operator.post("/api/v1/exemptions", json={"type": "user", "value": "a"}), 403)
    with node.client(node.token("users", "admin", ["users"])) as users:
        is_problem(users.get("/api/v1/exemptions"), 403)


# Going back


def revert(http: httpx.Client, change: dict[str, Any], **params: Any) -> dict[str, Any]:
    answer = http.post(f"/api/v1/changes/{change['id']}/revert", params=params)
    assert answer.status_code == 200, answer.text
    applied: dict[str, Any] = answer.json()
    return applied


def test_a_whole_rule_set_is_reverted_and_reverted_again(http: httpx.Client) -> None:
    http.post("/api/v1/exemptions", json={"type": "tenant", "value": "acme"})
    http.post("/api/v1/users/alice/override", json={"rule": "search", "limit": 9, "expires": FUTURE})
    headers = {"Content-Type": "application/toml"}
    toml = """
        [headgate]
        default_tier = "free"
        [[tiers]]
        name = "free"
        [[rules]]
        id = "other"
        limit = 1
        window = 60
        [penalties]
        enabled = true
    """
    paths = ("/api/v1/ruleset", "/api/v1/users")
    before = [http.get(path).text for path in paths]
    applied = http.put("/api/v1/ruleset", content=toml, headers=headers).json()
    after = [http.get(path).text for path in paths]
    assert after != before
    kinds = {"rule", "tier", "settings", "exemption", "user"}
    assert {change["kind"] for change in applied["changes"]} == kinds
    assert {change["kind"] for change in revert(http, log(http)[0], together=True)["changes"]} == kinds
    assert [http.get(path).text for path in paths] == before
    revert(http, log(http)[0], together=True)
    assert [http.get(path).text for path in paths] == after


def test_one_change_after_another_is_taken_back(http: httpx.Client) -> None:
    before = http.get("/api/v1/rules/search").json()
    http.put("/api/v1/rules/search", json={**RULE, "limit": 50})
    http.post("/api/v1/rules", json={**RULE, "id": "new"})
    http.put("/api/v1/users/alice/tier", json={"tier": "premium"})
    http.post("/api/v1/exemptions", json={"type": "tenant", "value": "acme"})
    http.delete("/api/v1/rules/new")
    deleted, exempt, tier, created, updated, _ = log(http)

    planned = revert(http, deleted, dry_run=True)
    assert (planned["dry_run"], planned["changes"][0]["action"]) == (True, "create")
    is_problem(http.get("/api/v1/rules/new"), 404)
    revert(http, deleted)
    assert http.get("/api/v1/rules/new").json()["limit"] == 2

    revert(http, exempt)
    assert http.get("/api/v1/exemptions").json()["exemptions"] == []
    revert(http, tier)
    assert http.get("/api/v1/users").json()["users"] == []
    revert(http, updated)
    assert {**http.get("/api/v1/rules/search").json(), "version": 0} == {**before, "version": 0}

    conflict = is_problem(http.post(f"/api/v1/changes/{created['id']}/revert"), 409)["detail"]
    assert f"by change {log(http, kind='rule', subject='new')[0]['id']}" in conflict
    is_problem(http.post(f"/api/v1/changes/{updated['id']}/revert"), 409)  # it was: by its own reverting
    assert [change["actor"] for change in log(http)] == ["bootstrap"] * 10


def test_a_deletion_with_overrides_comes_back_with_them_but_for_those_that_expired(node: Served) -> None:
    http = node.http
    put_expired(node, "old")
    http.post("/api/v1/users/alice/override", json={"rule": "search", "limit": 9, "expires": FUTURE})
    assert http.delete("/api/v1/rules/search", params={"with_overrides": True}).status_code == 204
    gone = log(http, kind="rule", limit=1)[0]
    revert(http, gone, together=True)
    assert [(one["user"], one["limit"]) for one in http.get("/api/v1/overrides").json()["overrides"]] == [("alice", 9)]
    assert http.get("/api/v1/rules/search").status_code == 200


def test_what_does_not_fit_any_more_is_not_brought_back(http: httpx.Client) -> None:
    http.post("/api/v1/users/alice/override", json={"rule": "search", "limit": 9})
    http.delete("/api/v1/users/alice/override", params={"rule": "search"})
    http.delete("/api/v1/rules/search")
    deleted = log(http, kind="user", limit=1)[0]
    told = is_problem(http.post(f"/api/v1/changes/{deleted['id']}/revert"), 422)
    assert "no rule has this id" in told["detail"]


def test_who_may_revert_what(node: Served) -> None:
    http = node.http
    http.put("/api/v1/users/alice/tier", json={"tier": "premium"})
    token = node.token("operator", "operator", ["users"])
    made, tier, rule = log(http)
    with node.client(token) as operator:
        is_problem(operator.post(f"/api/v1/changes/{rule['id']}/revert"), 403)
        is_problem(operator.post(f"/api/v1/changes/{made['id']}/revert"), 403)
        revert(operator, tier)
    assert log(http, kind="user", limit=1)[0]["actor"] == "operator"
    with node.client(node.token("viewer", "viewer", ["users", "rules", "tokens"])) as viewer:
        is_problem(viewer.post(f"/api/v1/changes/{rule['id']}/revert"), 403)
    assert "token" in is_problem(http.post(f"/api/v1/changes/{made['id']}/revert"), 409)["detail"]
    is_problem(http.post("/api/v1/changes/4711/revert"), 404)
    is_problem(http.post("/api/v1/changes/x/revert"), 422)
    is_problem(http.post(f"/api/v1/changes/{2**64}/revert"), 422)


def test_the_description_knows_what_a_batch_is(http: httpx.Client) -> None:
    document = json.loads(http.get("/openapi.json").text)
    assert "put" in document["paths"]["/api/v1/users:batch"]
    assert document["components"]["schemas"]["UserBatch"]["properties"]["users"]["maxItems"] == 10_000


def test_query_parameters_are_known_and_given_once(http: httpx.Client) -> None:
    mistyped = http.get("/api/v1/users?teir=free")
    assert mistyped.status_code == 422
    assert "teir: is not a parameter of this path; did you mean 'tier'?" in mistyped.text
    twice = http.get("/api/v1/users?tier=free&tier=pro")
    assert twice.status_code == 422
    assert "tier: must be given once, got it 2 times" in twice.text
