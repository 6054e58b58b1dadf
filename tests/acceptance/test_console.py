"""The console without a browser: who gets in, what each page shows, what each form does, and what protects it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate._version import __version__
from headgate.db import Database
from headgate.db.nodes import NodeRow, Nodes
from headgate.http.identity import hashed_api_key
from headgate.service.directory import make_link_code
from tests.console import Visitor, csrf_of
from tests.service import Service, warm_service
from tests.waiting import until

PAGES = ("", "/rules", "/rules/edit", "/subject", "/explain", "/events", "/changes", "/tokens", "/regions")
NASTY = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'{{7*7}}"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with warm_service(tmp_path_factory.mktemp("console")) as service:
        yield service


@pytest.fixture
def visitor(service: Service) -> Iterator[Visitor]:
    visitor = Visitor(service)
    yield visitor
    visitor.close()


def api(service: Service, method: str, path: str, **options: Any) -> httpx.Response:
    return httpx.request(method, f"{service.url}/api/v1{path}", headers=service.headers, timeout=30, **options)


def check(service: Service, times: int = 1, **facts: Any) -> list[int]:
    return [httpx.post(f"{service.url}/v1/check", json=facts, timeout=30).status_code for _ in range(times)]


def token_of(service: Service, name: str, role: str, *scopes: str) -> str:
    answer = api(service, "POST", "/tokens", json={"name": name, "role": role, "scopes": scopes})
    assert answer.status_code == 201, answer.text
    token: str = answer.json()["token"]
    return token


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_there_for_who_has_signed_in(service: Service, visitor: Visitor, path: str) -> None:
    page = visitor.get(path)
    assert "<h1>" in page
    answer = httpx.get(f"{service.url}/console{path}")
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/console/sign-in?next=/console")


@pytest.mark.parametrize("path", PAGES)
def test_pages_allow_no_inline_script_and_nothing_from_elsewhere(visitor: Visitor, path: str) -> None:
    answer = visitor.client.get(path)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    assert "<script>" not in answer.text
    assert " style=" not in answer.text
    assert " onclick=" not in answer.text
    assert "http://" not in answer.text.replace(str(visitor.client.base_url).removesuffix("/console/"), "")


def test_the_cookie_is_for_the_console_alone_and_no_script_can_read_it(service: Service) -> None:
    answer = httpx.post(f"{service.url}/console/sign-in", data={"token": service.admin_token})
    cookie = answer.headers["set-cookie"]
    assert service.admin_token not in cookie
    assert cookie.endswith("; Path=/console; Max-Age=3600; HttpOnly; SameSite=Strict")


def test_bad_tokens_and_damaged_cookies_get_nobody_in(service: Service) -> None:
    assert httpx.post(f"{service.url}/console/sign-in", data={"token": "hg_no"}).status_code == 401
    visitor = Visitor(service)
    good = visitor.client.cookies["headgate_session"]
    for bad in (good[:-1] + ("0" if good[-1] != "0" else "1"), "x" + good, good.partition(".")[0] + ".", "", "."):
        answer = httpx.get(f"{service.url}/console", headers={"Cookie": f"headgate_session={bad}"})
        assert answer.status_code == 303
    visitor.close()


def test_a_revoked_token_ends_its_sessions(service: Service, visitor: Visitor) -> None:
    token = token_of(service, "leaver", "viewer", "rules")
    leaver = Visitor(service, token)
    leaver.get("/rules")
    page = visitor.get("/tokens/revoke", id=_token_id(service, "leaver"), name="leaver")
    visitor.post("/tokens/revoke", page)
    assert leaver.client.get("/rules").status_code == 303
    leaver.close()


def _token_id(service: Service, name: str) -> str:
    tokens = api(service, "GET", "/tokens").json()["tokens"]
    found: str = next(token["id"] for token in tokens if token["name"] == name)
    return found


def test_a_link_signs_in_once_and_from_this_machine_alone(service: Service) -> None:
    code = make_link_code(service.data_dir)
    url = f"{service.url}/console/sign-in?code={code}"
    assert httpx.get(url, headers={"X-Forwarded-For": "192.0.2.7"}).status_code == 403
    assert httpx.get(f"{service.url}/console/sign-in?code=guess").status_code == 403
    answer = httpx.get(url)
    assert (answer.status_code, "headgate_session=" in answer.headers["set-cookie"]) == (200, True)
    assert httpx.get(url).status_code == 403


def test_forms_of_other_sites_change_nothing(service: Service, visitor: Visitor) -> None:
    page = visitor.get("/rules/confirm", rule="per-ip", to="disable")
    fields = {"rule": "per-ip", "to": "disable", "version": "2"}
    for headers, extra in (
        ({}, {}),
        ({}, {"csrf": "0" * 64}),
        ({"Origin": "https://evil.example"}, {"csrf": csrf_of(page)}),
        ({"Sec-Fetch-Site": "cross-site"}, {"csrf": csrf_of(page)}),
    ):
        answer = visitor.client.post("/rules/switch", data={**fields, **extra}, headers=headers)
        assert answer.status_code == 403
    other = Visitor(service)
    answer = other.client.post("/rules/switch", data={**fields, "csrf": csrf_of(page)})
    assert answer.status_code == 403  # another session's
    other.close()
    assert api(service, "GET", "/rules/per-ip").json()["enabled"] is True


def test_a_viewer_sees_no_buttons_and_can_change_nothing(service: Service) -> None:
    viewer = Visitor(service, token_of(service, "viewer", "viewer", "rules", "events"))
    page = viewer.get("/rules")
    assert "New rule" not in page
    assert "Disable" not in page
    assert "Tokens" not in page
    viewer.get("/tokens", 403)
    viewer.get("/subject", 403)
    assert "Explain" not in page
    viewer.get(
        "/explain", 403, user="alice"
    )  # it would say what a user has left: the API asks for the scope users, too
    form = viewer.get("/rules/edit", id="login")
    assert "disabled" in form
    answer = viewer.client.post(
        "/rules/switch", data={"rule": "login", "to": "disable", "version": "2", "csrf": csrf_of(form)}
    )
    assert answer.status_code == 403
    assert api(service, "GET", "/rules/login").json()["enabled"] is True
    viewer.close()


def test_rules_are_created_reviewed_switched_and_deleted(service: Service, visitor: Visitor) -> None:
    new = visitor.get("/rules/edit")
    fields = {
        "id": "made-here",
        "limit": "20",
        "window": "1m",
        "dimension": "user",
        "enabled": "on",
        "endpoints": "/a\n/b",
    }
    wrong = visitor.post("/rules/review", new, 422, **{**fields, "limit": "many"})
    assert "must be a whole number" in wrong.text
    review = visitor.post("/rules/review", new, 200, **fields)
    assert "+ limit = 20" in review.text
    visitor.post("/rules/apply", review.text, reason="a new endpoint")
    rule = api(service, "GET", "/rules/made-here").json()
    assert (rule["limit"], rule["endpoints"]) == (20, ["/a", "/b"])
    for to, expected in (("shadow", ("log_only", True)), ("enforce", ("reject", True)), ("disable", ("reject", False))):
        page = visitor.get("/rules/confirm", rule="made-here", to=to)
        action = {"action": "reject"} if to == "enforce" else {}
        visitor.post("/rules/switch", page, reason=f"to {to}", **action)
        rule = api(service, "GET", "/rules/made-here").json()
        assert (rule["action"], rule["enabled"]) == expected
    page = visitor.get("/rules/delete", id="made-here")
    visitor.post("/rules/delete", page, reason="was a trial")
    assert api(service, "GET", "/rules/made-here").status_code == 404
    changes = api(service, "GET", "/changes?kind=rule&subject=made-here").json()["changes"]
    reasons = [change["reason"] for change in changes]
    assert reasons == ["was a trial", "to disable", "to enforce", "to shadow", "a new endpoint"]
    assert "was a trial" in visitor.get("/changes", kind="rule")


@pytest.mark.parametrize("action", ["reject", "throttle", "annotate", "log_only"])
def test_a_shadow_that_is_enforced_is_offered_the_action_that_it_had(
    service: Service, visitor: Visitor, action: str
) -> None:
    table = {"id": f"was-{action}", "dimension": "user", "limit": 5, "window": "1m", "action": action}
    assert api(service, "POST", "/rules", json=table).status_code == 201
    if action != "log_only":
        page = visitor.get("/rules/confirm", rule=table["id"], to="shadow")
        visitor.post("/rules/switch", page)
    page = visitor.get("/rules/confirm", rule=table["id"], to="enforce")
    expected = "reject" if action == "log_only" else action
    assert re.findall(r'<option value="(\w+)" selected>', page) == [expected]
    visitor.post("/rules/switch", page, 422, action="log_only")
    visitor.post("/rules/switch", page, action=expected)
    assert api(service, "GET", f"/rules/{table['id']}").json()["action"] == expected
    assert api(service, "DELETE", f"/rules/{table['id']}").is_success


KINDS: dict[str, dict[str, Any]] = {
    "slots": {"algorithm": "concurrency", "limit": 5, "ttl": "10m"},
    "monthly": {
        **{"algorithm": "fixed_window", "limit": 100_000, "window": "month"},
        **{"calendar": True, "tz": "Europe/Berlin", "anchor": 15},
    },
    "tokens": {"limit": 40_000, "window": "1m", "unit": "tokens"},
    "soft": {"limit": 20, "window": "1m", "action": "annotate"},
}
SHOWN = {
    "slots": ("5 at once", "slots of at most 10m"),
    "monthly": ("100,000 / calendar month", "Europe/Berlin, from day 15"),
    "tokens": ("40,000 tokens / 1m", "sliding window counter"),
    "soft": ("20 / 1m", "annotates"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_rule_is_listed_edited_and_seen_on_a_subject(
    service: Service, visitor: Visitor, kind: str
) -> None:
    rule_id, endpoint = f"kind-{kind}", f"/kinds/{kind}"
    fields = {"id": rule_id, "dimension": "user", "endpoints": endpoint, "enabled": "on", **KINDS[kind]}
    form = {name: str(value) for name, value in fields.items() if value is not True} | {"enabled": "on"}
    form |= {"calendar": "on"} if "calendar" in fields else {}
    review = visitor.post("/rules/review", visitor.get("/rules/edit"), 200, **form)
    visitor.post("/rules/apply", review.text)
    try:
        listed = visitor.get("/rules", q=rule_id)
        assert [text for text in SHOWN[kind] if text not in listed] == []
        edit = visitor.get("/rules/edit", id=rule_id)
        same = visitor.post("/rules/review", edit, 200, **form)
        assert "Nothing is changed" in same.text
        visitor.post("/rules/apply", visitor.post("/rules/review", edit, 200, **{**form, "limit": "7"}).text)
        assert api(service, "GET", f"/rules/{rule_id}").json()["limit"] == 7
        cost = {"requests": 1, "tokens": 3} if kind == "tokens" else 1
        path = "acquire" if kind == "slots" else "check"
        answer = httpx.post(
            f"{service.url}/v1/{path}", json={"user": f"of-{kind}", "endpoint": endpoint, "cost": cost}, timeout=30
        )
        assert answer.status_code == 200, answer.text
        subject = visitor.get("/subject", type="user", id=f"of-{kind}")
        used = {"slots": "1 held", "tokens": "3"}.get(kind, "1")
        assert f'<span class="number">{used}</span>' in subject
        assert SHOWN[kind][0].replace(f"{fields['limit']:,}", "7") in subject
        page = visitor.get("/explain", user="x", endpoint=endpoint, cost="requests=1 tokens=3")
        assert f">{rule_id}</a>" in page.partition("Rules that do not")[0]
    finally:
        api(service, "DELETE", f"/rules/{rule_id}")


def test_what_was_typed_stays_between_the_form_and_its_toml(visitor: Visitor) -> None:
    edit = visitor.get("/rules/edit", id="login")
    fields = {"id": "login", "limit": "77", "window": "1m", "enabled": "on"}
    toml = visitor.post("/rules/edit?id=login&as=toml", edit, 200, **fields)
    assert "limit = 77" in toml.text.partition("<textarea")[2]
    text = '[[rules]]\nid = "login"\nlimit = 78\nwindow = "1m"'
    form = visitor.post("/rules/edit?id=login", toml.text, 200, toml=text)
    assert 'name="limit" value="78"' in form.text
    bad = visitor.post("/rules/edit?id=login", toml.text, 422, toml="limit =")
    assert "limit =</textarea>" in bad.text


def test_toml_is_edited_with_the_same_checks(visitor: Visitor) -> None:
    page = visitor.get("/rules/edit", id="user-free", **{"as": "toml"})
    bad = visitor.post(
        "/rules/review", page, 422, toml='[[rules]]\nid = "user-free"\nlimt = 5\nlimit = 1\nwindow = "1m"'
    )
    assert "unknown key" in bad.text
    assert "must hold one" in visitor.post("/rules/review", page, 422, toml="x = 1").text


def test_a_conflict_shows_both_and_is_merged(service: Service) -> None:
    rule = {"id": "shared", "limit": 10, "window": "1m", "message": "slow down"}
    api(service, "PUT", "/rules/shared", json=rule)
    alice, bob = Visitor(service), Visitor(service)
    fields = {**rule, "limit": "10", "enabled": "on"}
    mine = alice.post("/rules/review", alice.get("/rules/edit", id="shared"), 200, **{**fields, "limit": "11"})
    theirs = bob.post("/rules/review", bob.get("/rules/edit", id="shared"), 200, **{**fields, "message": "wait"})
    bob.post("/rules/apply", theirs.text)
    conflict = alice.post("/rules/apply", mine.text, 409)
    assert "Another user changed this rule" in conflict.text
    assert f"Headgate {__version__}<" in conflict.text
    merged = alice.post("/rules/merge", conflict.text, 200, **{"choose-limit": "mine", "choose-message": "theirs"})
    alice.post("/rules/apply", merged.text)
    found = api(service, "GET", "/rules/shared").json()
    assert (found["limit"], found["message"]) == (11, "wait")
    alice.close()
    bob.close()


def test_a_subject_is_given_an_override_a_tier_a_reset_and_an_exemption(service: Service, visitor: Visitor) -> None:
    check(service, 7, user="carol", endpoint="/x")
    assert ">7</span>" in visitor.get("/subject", type="user", id="carol")
    who = {"type": "user", "id": "carol"}

    def act(action: str, **fields: str) -> None:
        page = visitor.get("/subject/dialog", **who, action=action, rule=fields.get("rule", ""))
        visitor.post("/subject/act", page, **fields, reason=f"ticket 4711: {action}")

    act("override", rule="user-free", limit="500", **{"for": "7d"})
    api(service, "PUT", "/users/carol/tier", json={"anchor": 15})
    act("tier", tier="pro")
    act("exempt")
    page = visitor.get("/subject", **who)
    assert "exempt" in page
    assert "anchor <strong>15</strong>" in page
    limits = api(service, "GET", "/users/carol/limits").json()
    assert (limits["tier"], limits["exempt"], limits["overrides"][0]["limit"]) == ("pro", True, 500)
    act("unexempt")
    act("tier", tier="")
    act("unoverride", rule="user-free")
    act("reset")
    (limit,) = [
        one for one in api(service, "GET", "/users/carol/limits").json()["limits"] if one["rule"] == "user-free"
    ]
    assert limit["figures"]["remaining"] == 100
    reasons = {change["reason"] for change in api(service, "GET", "/changes").json()["changes"]}
    assert {f"ticket 4711: {one}" for one in ("override", "tier", "exempt", "unexempt", "reset")} <= reasons


def test_changes_are_reverted(service: Service, visitor: Visitor) -> None:
    api(service, "PUT", "/rules/flip", json={"id": "flip", "limit": 10, "window": 60})
    api(service, "PUT", "/rules/flip", json={"id": "flip", "limit": 20, "window": 60})
    change = api(service, "GET", "/changes?kind=rule&subject=flip").json()["changes"][0]
    page = visitor.get("/changes/revert", id=change["id"])
    visitor.post("/changes/revert", page, reason="too much")
    assert api(service, "GET", "/rules/flip").json()["limit"] == 10


def test_a_token_is_made_shown_once_and_works(service: Service, visitor: Visitor) -> None:
    page = visitor.get("/tokens/new")
    made = visitor.post("/tokens/new", page, 200, name="from-console", role="viewer", scopes="rules", expires_in="1d")
    secret = made.text.partition("data-secret>")[2].partition("<")[0]
    service.secrets.append(secret)
    answer = httpx.get(f"{service.url}/api/v1/rules", headers={"Authorization": f"Bearer {secret}"})
    assert answer.status_code == 200
    assert secret not in visitor.get("/tokens")


def test_events_and_explanations_tell_of_refusals(service: Service, visitor: Visitor) -> None:
    facts = {"ip": "192.0.2.9", "endpoint": "/login", "method": "POST"}
    assert 429 in check(service, 6, **facts)
    until(lambda: "over limit" in visitor.get("/events", ip="192.0.2.9"), seconds=20)
    assert "192.0.2.9" in visitor.client.get("/events.csv", params={"rule": "login"}).text
    page = visitor.get("/explain", **facts)
    assert "Refused" in page
    assert "Rules that do not" in page


def test_a_request_that_cannot_be_explained_stays_in_the_form(visitor: Visitor) -> None:
    page = visitor.get("/explain", 422, user="alice", cost="many")
    assert "cost: must be a whole number" in page
    assert 'name="user" value="alice"' in page
    assert 'name="cost" value="many"' in page


def test_a_request_is_explained_by_an_api_key_or_its_hash(service: Service, visitor: Visitor) -> None:
    table = {"id": "by-key", "dimension": "api_key", "limit": 1_500, "window": "1m", "endpoints": ["/by-key"]}
    assert api(service, "POST", "/rules", json=table).status_code == 201
    facts = {"endpoint": "/by-key", "api_key": "hg-of-a-customer"}
    check(service, 3, **facts)
    hashed = hashed_api_key(facts["api_key"])
    for key in (facts["api_key"], hashed):
        page = visitor.get("/explain", **{**facts, "api_key": key})
        assert "1,497 of 1,500" in page
        assert "1,500 / 1m" in page
        assert f"api_key:{{{hashed}}}:by-key" in page
    assert api(service, "DELETE", "/rules/by-key").is_success


def test_what_others_typed_is_shown_and_never_run(service: Service, visitor: Visitor) -> None:
    rule: dict[str, Any] = {
        "id": f"nasty{NASTY}",
        "limit": 1,
        "window": 3600,
        "dimension": "user",
        "name": NASTY,
        "message": NASTY,
    }
    assert api(service, "POST", "/rules", json=rule).status_code == 201
    check(service, 3, user=NASTY, endpoint=f"/{NASTY}", country=NASTY)
    until(lambda: "country=" in visitor.get("/events", user=NASTY), seconds=20)
    pages = [
        visitor.get("/rules", q="nasty"),
        visitor.get("/rules/edit", id=rule["id"]),
        visitor.get("/rules/show", id=rule["id"]),
        visitor.get("/subject/refusals", type="user", id=NASTY),
        visitor.get("/rules/confirm", rule=rule["id"], to="disable"),
        visitor.get("/events", user=NASTY),
        visitor.get("/subject", type="user", id=NASTY),
        visitor.get("/explain", user=NASTY),
        visitor.get("/changes", kind="rule"),
        visitor.get("", done=NASTY),
        visitor.get("/rules", q=NASTY),
        visitor.get(f"/{NASTY}", 404),
    ]
    for page in pages:
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "49" not in page.partition("{{7*7}}")[2][:2]
    assert (
        api(
            service,
            "DELETE",
            f"/rules/{httpx.URL('', params={'x': rule['id']}).query.decode()[2:].replace('+', '%20')}",
        ).status_code
        == 204
    )


def test_pages_show_any_range(visitor: Visitor) -> None:
    span = {"since": "1793523600", "until": "1793532600"}
    assert "since=1793523600" in visitor.get("", **span)
    points = visitor.client.get("/overview/data", params={**span, "rule": "login"}).json()
    assert (points["step"], points["points"][0][0], len(points["points"])) == (60, 1793523600, 150)
    assert "No events" in visitor.get("/events", **span)
    for wrong in ({"since": "x", "until": "y"}, {"since": "9" * 40, "until": "1"}, {"since": "5", "until": "5"}):
        assert 'aria-current="true">24 h' in visitor.get("/events", **wrong)


def test_a_rule_and_a_subject_have_pages_with_their_refusals(service: Service, visitor: Visitor) -> None:
    facts = {"ip": "192.0.2.44", "endpoint": "/login", "method": "POST"}
    check(service, 7, **facts)
    assert "data-charts" in visitor.get("/rules/show", id="login")
    until(lambda: "192.0.2.44" in visitor.get("/rules/subjects", id="login"), seconds=20)
    assert "192.0.2.44" in visitor.get("/overview/tops")
    chart = visitor.get("/subject/refusals", type="ip", id="192.0.2.44")
    assert "<b>2</b> refused" in chart
    assert 'class="refused"' in chart
    visitor.get("/rules/show", 404, id="no-such-rule")


def test_a_node_with_older_rules_is_behind_and_a_fault_of_it_is_shown_since_when(
    service: Service, visitor: Visitor
) -> None:
    database = Database(f"sqlite:///{service.data_dir / 'headgate.db'}")
    since_us = int(time.time() * 1e6) - 3_600_000_000
    status = {
        **{"version": "0.1.0", "started_us": since_us, "rules": "1", "draining": False, "seconds": []},
        "faults": {"store": ["does not decide", since_us]},
    }

    def shown() -> str:
        Nodes(database).report(NodeRow("elsewhere:1", int(time.time() * 1e6), status))
        return visitor.get("/overview/panels")

    until(lambda: "elsewhere:1" in shown(), seconds=20)
    page = shown()
    assert ">behind</span>" in page
    assert "does not decide" in page
    assert "1 hour ago" in page
    Nodes(database).forget("elsewhere:1")
    database.close()


def test_live_figures_come_as_server_sent_events(service: Service, visitor: Visitor) -> None:
    check(service, 5, user="dave", endpoint="/live")
    with visitor.client.stream("GET", "/live", params={"since": "0"}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        assert next(lines).startswith("data: [[")


def test_ten_thousand_rules_are_found_without_a_pause(tmp_path: Path) -> None:
    rules = "".join(
        f'[[rules]]\nid = "rule-{number:05}"\nendpoints = ["/api/{number}"]\nlimit = 10\nwindow = "1m"\n'
        for number in range(10_000)
    )
    file = tmp_path / "rules.toml"
    file.write_text(rules)
    with warm_service(tmp_path, rules=file) as service:
        visitor = Visitor(service)
        visitor.get("/rules")
        times = []
        for _ in range(10):
            begun = time.perf_counter()
            page = visitor.get("/rules", q="rule-0777")
            times.append(time.perf_counter() - begun)
        assert "10 of 10.0k rules" in page
        assert len(visitor.get("/rules").encode()) < 60_000
        assert min(times) < 0.05
        visitor.close()


def test_without_the_console_nothing_is_there(tmp_path: Path) -> None:
    with warm_service(tmp_path, "--no-console") as service:
        assert httpx.get(f"{service.url}/console").status_code == 404
