"""The console in a real browser, on SQLite and memory and on PostgreSQL and Redis: every page, every action."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest

from tests.browser import Browser, Console, chromium, expect
from tests.service import Service, warm_service

pytestmark = pytest.mark.extended  # needs Debian's Chromium

PAGES = (
    *(
        "",
        "?range=24h",
        "/rules",
        "/rules/show?id=login",
        "/rules/edit",
        "/rules/edit?id=login",
        "/rules/edit?id=login&as=toml",
    ),
    *("/subject", "/subject?type=user&id=alice", "/explain", "/explain?user=alice&endpoint=/login&method=POST"),
    *("/events", "/events?range=7d&rule=login", "/changes", "/tokens", "/regions", "/nothing-here"),
)
MOST_BYTES = 200_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(params=["sqlite", "postgresql"])
def service(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str) -> Iterator[Service]:
    settings: dict[str, Any] = {}
    if request.param == "postgresql":
        settings["database_url"] = request.getfixturevalue("postgres_url")
        settings["store"] = redis_url
    with warm_service(tmp_path, **settings) as service:
        yield service


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Service]:
    """One where it does not matter which stores it has."""
    with warm_service(tmp_path) as service:
        yield service


def check(service: Service, times: int = 1, **facts: Any) -> None:
    for _ in range(times):
        httpx.post(f"{service.url}/v1/check", json=facts, timeout=30)


def api(service: Service, method: str, path: str, **options: Any) -> Any:
    answer = httpx.request(method, f"{service.url}/api/v1{path}", headers=service.headers, timeout=30, **options)
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


def test_every_page_loads_whole_small_and_without_complaint(browser: Browser, service: Service) -> None:
    check(service, 7, user="alice", ip="192.0.2.7", endpoint="/login", method="POST")
    console = Console(browser, service)
    sizes: list[int] = []
    console.page.on("response", lambda answer: sizes.append(int(answer.headers.get("content-length", "0"))))
    for path in PAGES:
        sizes.clear()
        page = console.open(path)
        expect(page.locator("h1")).to_be_visible()
        page.wait_for_load_state("load")
        assert sum(sizes) < MOST_BYTES, (path, sizes)
    assert [one for one in console.complaints if "404" not in one] == []  # the last page is not there
    assert console.hosts == {service.url.split("/")[2]}
    console.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_fault_of_accessibility(browser: Browser, local: Service, scheme: str) -> None:
    check(local, 8, user="alice", ip="192.0.2.7", endpoint="/login", method="POST")
    console = Console(browser, local, color_scheme=scheme)
    found = {}
    for path in PAGES:
        console.open(path).wait_for_load_state("load")
        found[path] = console.violations()
    assert {path: violations for path, violations in found.items() if violations} == {}
    page = console.open("/rules")
    page.click("button:has-text('Disable') >> nth=0")
    expect(page.locator("#dialog h2")).to_be_visible()
    assert console.violations() == []
    console.close()


@pytest.mark.parametrize("path", PAGES)
def test_nothing_is_wider_than_a_phone(browser: Browser, module_service: Service, path: str) -> None:
    console = Console(browser, module_service, viewport={"width": 360, "height": 740})
    page = console.open(path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    console.close()


@pytest.fixture(scope="module")
def module_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with warm_service(tmp_path_factory.mktemp("phone")) as service:
        yield service


def test_checks_are_seen_live(browser: Browser, service: Service) -> None:
    console = Console(browser, service)
    page = console.page
    stop = Event()

    def traffic() -> None:
        while not stop.wait(0.05):
            check(service, 1, user="alice", endpoint="/live")

    thread = Thread(target=traffic)
    thread.start()
    try:
        figure = page.locator("[data-figure=rate]")
        expect(figure).to_have_text(re.compile(r"^[1-9]"), timeout=20_000)
        expect(page.locator(".uplot canvas")).to_have_count(2)
        expect(page.locator("#panels")).to_contain_text("serving")
    finally:
        stop.set()
        thread.join()
    assert console.complaints == []
    console.close()


def test_a_node_that_stops_is_missing_for_those_who_watch(
    browser: Browser, postgres_url: str, redis_url: str, tmp_path: Path
) -> None:
    shared: dict[str, Any] = {"database_url": postgres_url, "store": redis_url, "admin_token": "one-token-for-both"}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with warm_service(tmp_path / "one", **shared) as one, warm_service(tmp_path / "two", **shared) as two:
        console = Console(browser, one)
        rows = console.page.locator("section[aria-labelledby=nodes-title] tbody tr")
        expect(rows).to_have_count(2, timeout=20_000)
        two.kill()
        expect(console.page.locator("section[aria-labelledby=nodes-title]")).to_contain_text("missing", timeout=30_000)
        console.close()


def test_a_rule_is_found_switched_and_edited_with_its_difference_shown(browser: Browser, service: Service) -> None:
    console = Console(browser, service)
    page = console.open("/rules")
    page.keyboard.press("/")
    page.keyboard.type("login")
    expect(page.locator("[data-row]")).to_have_count(1)
    assert "q=login" in page.url
    page.click("button:has-text('Shadow')")
    page.fill("#dialog [name=reason]", "too strict")
    page.click("#dialog button.primary")
    expect(page.locator(".done")).to_have_text("login is now a shadow.")
    page.click("a.main")
    page.click("text=Edit")
    page.fill("[name=limit]", "six")
    expect(page.locator("#preview")).to_contain_text("must be a whole number")
    page.fill("[name=limit]", "6")
    expect(page.locator("#preview .new")).to_contain_text("limit = 6")
    page.click("text=Review")
    expect(page.locator(".diff .old")).to_contain_text("limit = 5")
    page.click("button:has-text('Apply')")
    expect(page.locator(".done")).to_have_text("login is in force.")
    rule = api(service, "GET", "/rules/login")
    assert (rule["limit"], rule["action"]) == (6, "log_only")
    assert console.complaints == []
    console.close()


def test_two_browsers_change_one_rule_and_neither_is_lost(browser: Browser, service: Service) -> None:
    alice, bob = Console(browser, service), Console(browser, service)
    for console, field, value in ((alice, "limit", "7"), (bob, "message", "Later, please.")):
        page = console.open("/rules/edit?id=login")
        page.fill(f"[name={field}]", value)
        page.click("text=Review")
        expect(page.locator(".diff")).to_be_visible()
    bob.page.click("button:has-text('Apply')")
    expect(bob.page.locator(".done")).to_be_visible()
    alice.page.click("button:has-text('Apply')")
    expect(alice.page.locator("[role=alert]")).to_contain_text("Somebody else changed this rule")
    alice.page.click("text=Merge and review")
    expect(alice.page.locator(".diff .new")).to_contain_text("limit = 7")
    alice.page.click("button:has-text('Apply')")
    expect(alice.page.locator(".done")).to_be_visible()
    rule = api(service, "GET", "/rules/login")
    assert (rule["limit"], rule["message"]) == (7, "Later, please.")
    alice.close()
    bob.close()


def test_a_subject_gets_an_override_and_a_reset(browser: Browser, service: Service) -> None:
    check(service, 9, user="carol", endpoint="/x")
    console = Console(browser, service)
    page = console.open("/subject")
    page.fill("[name=id]", "carol")
    page.click("text=Look up")
    expect(page.locator("meter").first).to_be_visible()
    page.click("text=Override…")
    page.select_option("#dialog [name=rule]", "user-free")
    page.fill("#dialog [name=limit]", "500")
    page.click("#dialog button.primary")
    expect(page.locator("section[aria-labelledby=overrides-title]")).to_contain_text("500")
    page.click("text=Reset…")
    page.fill("#dialog [name=reason]", "called support")
    page.click("#dialog button.primary")
    expect(page.locator(".done")).to_contain_text("forgotten")
    page = console.open("/changes")
    expect(page.locator(".log li").first).to_contain_text("called support")
    console.close()


def test_events_are_followed_live_a_thousand_a_second(browser: Browser, service: Service) -> None:
    console = Console(browser, service)
    page = console.open("/events")
    page.click("button:has-text('Follow')")
    stop = Event()

    def flood() -> None:
        facts = {"ip": "192.0.2.9", "endpoint": "/login", "method": "POST"}
        batch = {"checks": [{"user": f"u{number % 50}", **facts} for number in range(200)]}
        while not stop.wait(0.2):
            httpx.post(f"{service.url}/v1/check/batch", json=batch, timeout=30)

    thread = Thread(target=flood)
    thread.start()
    try:
        expect(page.locator("[data-followed]")).to_contain_text("new since you follow", timeout=20_000)
        expect(page.locator("[data-events] tr").first).to_be_visible()
        page.wait_for_timeout(3_000)
        assert page.locator("[data-events] tr").count() <= 300
        page.click("button:has-text('Following')")
        expect(page.locator("[data-follow]")).to_have_text("Follow")
    finally:
        stop.set()
        thread.join()
    assert console.complaints == []
    console.close()


def test_a_change_is_reverted_and_a_token_made_and_revoked(browser: Browser, service: Service) -> None:
    api(service, "PUT", "/rules/flip", json={"id": "flip", "limit": 10, "window": 60})
    api(service, "PUT", "/rules/flip", json={"id": "flip", "limit": 20, "window": 60})
    console = Console(browser, service)
    page = console.open("/changes?kind=rule&subject=flip")
    page.click("button:has-text('Revert') >> nth=0")
    expect(page.locator("#dialog .diff")).to_contain_text("limit = 10")
    page.click("#dialog button.primary")
    expect(page.locator(".done")).to_contain_text("is reverted")
    assert api(service, "GET", "/rules/flip")["limit"] == 10
    page = console.open("/tokens")
    page.click("text=New token")
    page.fill("#dialog [name=name]", "robot")
    page.check("#dialog [value=rules]")
    page.click("#dialog button.primary")
    secret = page.locator("[data-secret]").inner_text()
    service.secrets.append(secret)
    page.click("text=Done")
    page.click("button[aria-label='Revoke robot']")
    page.click("#dialog button.danger")
    expect(page.locator("table")).to_contain_text("revoked")
    console.close()


def test_a_read_only_token_sees_and_changes_nothing(browser: Browser, local: Service) -> None:
    wanted = {"name": "reader", "role": "viewer", "scopes": ["rules", "events", "users"]}
    made = api(local, "POST", "/tokens", json=wanted)
    local.secrets.append(made["token"])
    console = Console(browser, local, made["token"])
    page = console.open("/rules")
    expect(page.locator("[data-row]").first).to_be_visible()
    assert page.locator("td.actions button").count() == 0
    page = console.open("/rules/edit?id=login")
    expect(page.locator("[name=limit]")).to_be_disabled()
    assert page.locator("text=Review").count() == 0
    assert page.locator("nav >> text=Tokens").count() == 0
    console.close()


def test_ten_thousand_rules_are_searched_while_typing(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text("".join(f'[[rules]]\nid = "rule-{one:05}"\nlimit = 10\nwindow = "1m"\n' for one in range(10_000)))
    with warm_service(tmp_path, rules=file) as service:
        console = Console(browser, service)
        page = console.open("/rules")
        page.fill("#q", "rule-01234")
        expect(page.locator("[data-row]")).to_have_count(1, timeout=3_000)
        console.close()


def test_what_others_typed_never_runs(browser: Browser, local: Service) -> None:
    nasty = '"><script>alert(1)</script><img src=x onerror=alert(1)><svg onload=alert(1)>'
    rule = {"id": f"nasty {nasty}", "limit": 1, "window": 3600, "name": nasty, "message": nasty}
    api(local, "POST", "/rules", json=rule)
    check(local, 4, user=nasty, endpoint=f"/{nasty}", country=nasty)
    console = Console(browser, local)
    for path in ("", "/rules", "/events", "/changes", f"/subject?{httpx.QueryParams(type='user', id=nasty)}"):
        page = console.open(path)
        page.wait_for_load_state("load")
        page.wait_for_timeout(500)
        assert page.locator("img[src=x]").count() == 0
    assert console.complaints == []
    console.close()


def test_the_theme_is_kept(browser: Browser, local: Service) -> None:
    console = Console(browser, local, color_scheme="light")
    page = console.page
    page.click("text=Theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page = console.open("/rules")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    console.close()
