"""The console in a real browser, on SQLite and memory and on PostgreSQL and Redis: every page, every action."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest
import redis

from tests.browser import Browser, Console, chromium, expect
from tests.servers import Server, binaries
from tests.service import Service, warm_service
from tests.waiting import until

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
MOST_SHIFT = 0.01  # of the score that browsers give to what moves; up to 0.1 counts as good
RATE = 1_000  # events a second


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def redis_server() -> Iterator[Server]:
    """One server, of the first kind at hand: which one it is makes no difference to pages."""
    with Server(next(iter(binaries().values()))) as server:
        yield server


@pytest.fixture(scope="module")
def redis_broom(redis_server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=redis_server.port, driver_info=None) as client:
        yield client


@pytest.fixture(params=["sqlite", "postgresql"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    settings: dict[str, Any] = {}
    if request.param == "postgresql":
        settings["database_url"] = request.getfixturevalue("postgres_url")
        settings["store"] = request.getfixturevalue("redis_url")
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


def test_charts_of_an_idle_service_have_axes_that_people_read(browser: Browser, local: Service) -> None:
    console = Console(browser, local)
    console.page.add_init_script(
        """window.drawn = [];
        const draw = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
          window.drawn.push(text);
          return draw.call(this, text, ...rest);
        };"""
    )
    page = console.open("")
    page.wait_for_function("window.drawn.includes('0 ms')")
    assert [text for text in page.evaluate("window.drawn") if "e-" in text] == []
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


def test_sparklines_that_come_after_a_search_do_not_go_to_other_rows(browser: Browser, service: Service) -> None:
    console = Console(browser, service)
    page = console.open("/rules")
    held: list[Any] = []
    page.route("**/rules/sparklines*", lambda route: route.continue_() if held else held.append(route))
    page.fill("[type=search]", "e")
    page.wait_for_function("document.querySelectorAll('[data-row]').length > 1")
    expect(page).to_have_url(re.compile("q=e"))
    until(lambda: page.wait_for_timeout(10) or held)
    page.fill("[type=search]", "login")
    expect(page.locator("[data-row]")).to_have_count(1)
    with page.expect_response(lambda response: "q=e" in response.url):
        held[0].continue_()
    page.wait_for_timeout(200)
    assert console.complaints == []
    console.close()


def test_what_is_typed_while_the_editor_loads_is_previewed(browser: Browser, service: Service) -> None:
    console = Console(browser, service)
    page = console.open("/rules")
    held: list[Any] = []
    page.route("**/htmx.min.js*", lambda route: held.append(route))  # noqa: PLW0108 (Playwright marks it)
    page.evaluate("location.href = 'rules/edit?id=login'")
    page.fill("[name=limit]", "six")
    until(lambda: page.wait_for_timeout(10) or held)
    held[0].continue_()
    expect(page.locator("#preview")).to_contain_text("must be a whole number")
    assert console.complaints == []
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
    expect(alice.page.locator("[role=alert]")).to_contain_text("Another user changed this rule")
    alice.page.click("text=Merge and review")
    expect(alice.page.locator(".diff .new")).to_contain_text("limit = 7")
    alice.page.click("button:has-text('Apply')")
    expect(alice.page.locator(".done")).to_be_visible()
    rule = api(service, "GET", "/rules/login")
    assert (rule["limit"], rule["message"]) == (7, "Later, please.")
    alice.close()
    bob.close()


def test_a_rule_of_slots_is_created_copied_and_deleted(browser: Browser, service: Service) -> None:
    console = Console(browser, service)
    page = console.open("/rules")
    page.click("text=New rule")
    page.fill("[name=id]", "parallel")
    expect(page.locator("[name=ttl]")).to_be_hidden()
    page.select_option("[name=algorithm]", "concurrency")
    expect(page.locator("[name=window]")).to_be_hidden()
    page.fill("[name=ttl]", "10m")
    page.fill("[name=limit]", "5")
    page.click(".tabs >> text=TOML")
    expect(page.locator("[name=toml]")).to_have_value(re.compile('algorithm = "concurrency"'))
    page.click(".tabs >> text=Form")
    expect(page.locator("[name=ttl]")).to_have_value("10m")
    page.click("text=Review")
    page.click("button:has-text('Create')")
    expect(page.locator("[data-row]")).to_contain_text("5 at once")
    page.click("a.main")
    page.click("text=Copy")
    page.click("text=Review")
    page.click("button:has-text('Create')")
    expect(page.locator(".done")).to_have_text("parallel-copy is in force.")
    for rule in ("parallel-copy", "parallel"):
        page = console.open(f"/rules/show?id={rule}")
        for button, state in (("Disable", "disabled"), ("Enable", "enforced"), ("Shadow", "shadow")):
            page.click(f".head button:has-text('{button}')")
            page.click("#dialog button.primary")
            expect(page.locator("[data-row] .badge >> nth=0")).to_have_text(state)
            page = console.open(f"/rules/show?id={rule}")
        page.click("button:has-text('Delete')")
        page.click("#dialog button.danger")
        expect(page.locator(".done")).to_have_text(f"{rule} is deleted.")
    assert console.complaints == []
    console.close()


def test_any_range_is_chosen_by_dates_and_by_dragging(browser: Browser, local: Service) -> None:
    console = Console(browser, local)
    page = console.open("?range=24h")
    expect(page.locator(".uplot canvas")).to_have_count(2)
    box = page.locator("[data-chart=rate] .u-over").bounding_box()
    page.mouse.move(box["x"] + 50, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 150, box["y"] + 20, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile(r"since=\d+&until=\d+"))
    page.click("[data-range]")
    page.fill("#range [name=since]", "2026-11-01T10:00")
    page.fill("#range [name=until]", "2026-11-01T09:00")
    page.click("#range button.primary")
    expect(page.locator("#range")).to_be_visible()  # it ends before it begins
    page.fill("#range [name=until]", "2026-11-01T12:30")
    page.click("#range button.primary")
    page.wait_for_url(re.compile("since=1793523600&until=1793532600"))  # in Berlin's time
    expect(page.locator("[data-range]")).to_contain_text("10:00")
    console.close()


def test_times_are_in_the_readers_zone_with_utc_on_hover(browser: Browser, local: Service) -> None:
    console = Console(browser, local)
    page = console.open("/changes")
    at = page.locator("time").first
    assert str(at.get_attribute("title")).endswith(" UTC")
    page = console.open("/events?since=1793523600&until=1793532600")
    shown = page.locator("[data-range] time").first
    assert (shown.get_attribute("title"), shown.inner_text()) == ("2026-11-01 09:00:00 UTC", "1 Nov, 10:00")
    console.close()


def test_no_page_moves_what_is_on_it_while_it_loads(browser: Browser, local: Service) -> None:
    check(local, 8, user="alice", ip="192.0.2.7", endpoint="/login", method="POST")
    console = Console(browser, local)
    moved = {}
    for path in PAGES:
        page = console.open(path)
        page.wait_for_load_state("load")
        page.wait_for_timeout(700)
        moved[path] = page.evaluate(
            """() => new Promise((done) => {
                let sum = 0;
                new PerformanceObserver((list) => { for (const one of list.getEntries()) sum += one.value; })
                    .observe({ type: "layout-shift", buffered: true });
                setTimeout(() => done(sum), 100);
            })"""
        )
    assert {path: score for path, score in moved.items() if score > MOST_SHIFT} == {}
    console.close()


def test_pages_are_reached_and_rows_opened_by_keys(browser: Browser, local: Service) -> None:
    console = Console(browser, local)
    page = console.open("/events")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url("**/rules")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/rules/show?id=export-trial")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    console.close()


def test_a_store_that_fails_is_shown_with_since_when(browser: Browser, tmp_path: Path) -> None:
    with warm_service(tmp_path, store="redis://127.0.0.1:1") as service:
        check(service, 2, user="alice")
        console = Console(browser, service)
        health = console.page.locator("section[aria-labelledby=health-title] li >> nth=0")
        expect(health).to_contain_text(re.compile("is failing.* since "), timeout=20_000)
        console.close()


def test_a_subject_gets_a_tier_and_an_exemption_and_loses_both(browser: Browser, service: Service) -> None:
    console = Console(browser, service)
    page = console.open("/subject?type=user&id=dora")

    def act(button: str, text: str) -> None:
        page.click(f".subject >> text={button}")
        page.fill("#dialog [name=reason]", "asked for it")
        if button == "Change tier…":
            page.select_option("#dialog [name=tier]", text)
        page.click("#dialog button.primary")
        expect(page.locator(".done")).to_be_visible()

    act("Change tier…", "pro")
    expect(page.locator(".subject")).to_contain_text("Tier pro")
    act("Exempt…", "")
    expect(page.locator(".subject .badge")).to_have_text("exempt")
    act("End exemption…", "")
    expect(page.locator(".subject .badge")).to_have_count(0)
    act("Change tier…", "")
    expect(page.locator(".subject")).to_contain_text("by default")
    assert console.complaints == []
    console.close()


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
    expect(page.locator(".done")).to_contain_text("are reset")
    page = console.open("/changes")
    expect(page.locator(".log li").first).to_contain_text("called support")
    console.close()


def test_events_are_followed_live_a_thousand_a_second(browser: Browser, service: Service) -> None:
    console = Console(browser, service)
    page = console.open("/events")
    page.click("button:has-text('Follow')")
    stop, sent = Event(), list[int]()

    def flood() -> None:
        facts = {"ip": "192.0.2.9", "endpoint": "/login", "method": "POST"}
        batch = {"checks": [{"user": f"u{number % 50}", **facts} for number in range(250)]}
        with httpx.Client(base_url=service.url, timeout=30) as client:
            begun = time.monotonic()
            while not stop.is_set():
                client.post("/v1/check/batch", json=batch)
                sent.append(250)
                stop.wait(max(0.0, begun + sum(sent) / RATE - time.monotonic()))

    thread = Thread(target=flood)
    thread.start()
    try:
        expect(page.locator("[data-followed]")).to_contain_text("new since you follow", timeout=20_000)
        expect(page.locator("[data-events] tr").first).to_be_visible()
        page.wait_for_timeout(5_000)
        assert page.locator("[data-events] tr").count() <= 300
        before = sum(sent)
        until(lambda: _told(page) >= 0.9 * before, "the events are counted")
        assert before > 3 * RATE  # in at least five seconds, also on a busy machine
        assert "follow=1" in page.url
        page.click("button:has-text('Following')")
        expect(page.locator("[data-follow]")).to_have_text("Follow")
    finally:
        stop.set()
        thread.join()
    assert console.complaints == []
    console.close()


def _told(page: Any) -> int:
    """How many events the page says that it has followed."""
    return int(page.locator("[data-followed]").inner_text().partition(" ")[0].replace(",", ""))


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
    ruleset = httpx.get(f"{local.url}/api/v1/ruleset", headers=local.headers).text
    ruleset = ruleset.replace("[headgate]\n", '[headgate]\nfacts = ["user_agent"]\n', 1)
    headers = {**local.headers, "Content-Type": "application/toml"}
    assert httpx.put(f"{local.url}/api/v1/ruleset", content=ruleset, headers=headers).is_success
    check(local, 4, user=nasty, endpoint=f"/{nasty}", country=nasty, user_agent=nasty)
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
