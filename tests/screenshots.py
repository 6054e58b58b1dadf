"""`python -m tests.screenshots`: pictures of every page of the console, light and dark, for the docs.

Runs a service on Redis and SQLite, fills its history with two days that look like an API's, and sends it traffic
while the pictures are made.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import pi, sin
from pathlib import Path
from threading import Event, Thread
from time import sleep, time
from typing import Any

import httpx

from headgate.db import Database
from headgate.db.events import Count, EventBatch, Events
from headgate.db.usage import FIGURES, UsageCount
from tests.browser import Console, chromium
from tests.servers import Server, binaries
from tests.service import ROOT, Service, warm_service

FOLDER = ROOT / "docs" / "images" / "console"
MINUTE_US = 60_000_000
WARM_SECONDS = 100
PAGES = {
    "overview": "",
    "overview-day": "?range=24h",
    "rules": "/rules",
    "rule": "/rules/show?id=login",
    "rule-edit": "/rules/edit?id=exports-at-once",
    "subject": "/subject?type=user&id=alice",
    "explain": "/explain?user=alice&ip=192.0.2.7&endpoint=/v1/chat&method=POST&cost=requests%3D1+tokens%3D9000",
    "events": "/events",
    "changes": "/changes",
    "tokens": "/tokens",
    "regions": "/regions",
}
KINDS: list[dict[str, Any]] = [  # of rules that the samples do not have
    {"id": "llm-tokens", "name": "Tokens of the model", "endpoints": ["/v1/chat"], "unit": "tokens", "limit": 40_000},
    {"id": "exports-at-once", "name": "Exports at once", "endpoints": ["/exports"], "limit": 5, "ttl": "10m"},
    {"id": "monthly", "name": "Monthly plan", "limit": 100_000, "window": "month", "calendar": True, "anchor": 15},
    {
        "id": "search-soft",
        "name": "Soft limit of searches",
        "endpoints": ["/search"],
        "limit": 60,
        "action": "annotate",
    },
    {"id": "catalogue", "name": "Catalogue, leased", "endpoints": ["/items"], "limit": 6_000, "sync": "leased"},
]
RULES = {
    **{"everybody": 1.0, "per-ip": 1.0, "user-free": 0.8, "user-pro": 0.2, "login": 0.06, "export-trial": 0.04},
    **{"llm-tokens": 0.1, "exports-at-once": 0.02, "monthly": 0.8, "search-soft": 0.5, "catalogue": 0.3},
}
REFUSING = {
    **{"user-free": 0.03, "login": 0.3, "export-trial": 0.2, "per-ip": 0.004, "llm-tokens": 0.05},
    **{"exports-at-once": 0.08, "search-soft": 0.04},
}
SHADOWS = ("export-trial", "search-soft")
REFUSED = (  # who is over which limits: rule, dimension, subject, events a minute
    *(("login", "ip", f"192.0.2.{number}", 9 - number) for number in range(1, 8)),
    *(("user-free", "user", name, often) for name, often in (("alice", 7), ("bob", 4), ("carol", 3), ("user-7", 1))),
    ("llm-tokens", "user", "alice", 2),
)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        store = stack.enter_context(Server(next(iter(binaries().values()))))
        service = stack.enter_context(warm_service(Path(directory), store=store.url))
        fill(service)
        with traffic(service), chromium() as browser:
            sleep(WARM_SECONDS)
            for scheme in ("light", "dark"):
                console = Console(browser, service, color_scheme=scheme)
                for name, path in PAGES.items():
                    page = console.open(path)
                    page.wait_for_load_state("load")
                    page.wait_for_timeout(1_500)
                    page.screenshot(path=FOLDER / f"{name}-{scheme}.png")
                    print(f"{name}-{scheme}.png", flush=True)
                assert console.complaints == [], console.complaints
                console.close()


def fill(service: Service) -> None:
    """Give a service a past: usage of two days, changes with reasons, users and tokens."""
    chance = random.Random(7)
    now_us = int(time() * 1e6)
    counts, refusals = [], []
    for minute in range(2 * 24 * 60, -1, -1):
        at_us = now_us - now_us % MINUTE_US - minute * MINUTE_US
        level = 4_600 + 1_500 * sin((at_us / MINUTE_US - 540) / 1_440 * 2 * pi) + chance.gauss(0, 150)
        total = dict.fromkeys(FIGURES, 0)
        for rule, share in RULES.items():
            checks = max(0, int(level * share * chance.uniform(0.85, 1.15)))
            refused = int(checks * REFUSING.get(rule, 0.0) * chance.uniform(0.3, 1.7))
            outcome = "shadow" if rule in SHADOWS else "refused"
            figures = {"allowed": checks - refused, outcome: refused, "cost": checks, "us_250": checks, "us_1000": 1}
            counts.append(_count(at_us, rule, figures))
            if rule == "everybody":
                total |= figures | {"us_100": checks, "us_1000": checks // 30}
            else:
                total[outcome] += refused
        counts.append(_count(at_us, "", total))
        for rule, dimension, subject, often in REFUSED:
            events = max(0, round(often * level / 4_600 * chance.uniform(-0.6, 2)))
            if events and minute <= 24 * 60:
                refusals.append(Count(at_us, rule, "over_limit", dimension, subject, True, events, events))
    database = Database(f"sqlite:///{service.data_dir / 'headgate.db'}")
    Events(database).write("screenshots", [EventBatch(1, [], refusals, counts)], now_us)
    database.close()
    for kind in KINDS:
        algorithm = {"ttl": "concurrency", "calendar": "fixed_window"}
        chosen = next((name for field, name in algorithm.items() if field in kind), "sliding_window_counter")
        window = {} if chosen == "concurrency" else {"window": "1m"}
        _change(service, "POST", "/rules", {"dimension": "user", "algorithm": chosen, **window, **kind}, "the new plan")
    _change(service, "PUT", "/users/alice/tier", {"tier": "free"}, "signed up")
    override = {"rule": "user-free", "limit": 250, "expires": "2030-01-01T00:00:00Z"}
    _change(service, "POST", "/users/alice/override", override, "launch week, agreed with sales (ticket 4711)")
    for name, role, scopes in (("ci", "admin", ["rules"]), ("support", "operator", ["users", "events"])):
        _change(service, "POST", "/tokens", {"name": name, "role": role, "scopes": scopes}, "")
    rule = httpx.get(f"{service.url}/api/v1/rules/per-ip", headers=service.headers).json()
    _change(service, "PUT", "/rules/per-ip", {**rule, "limit": 900}, "office networks share an address")


def _count(at_us: int, rule: str, figures: dict[str, int]) -> UsageCount:
    return UsageCount(at_us, rule, [figures.get(name, 0) for name in FIGURES])


def _change(service: Service, method: str, path: str, body: dict[str, Any], reason: str) -> None:
    headers = {**service.headers, "X-Change-Reason": reason}
    answer = httpx.request(method, f"{service.url}/api/v1{path}", json=body, headers=headers, timeout=30)
    assert answer.is_success, answer.text
    if "token" in answer.json():
        service.secrets.append(answer.json()["token"])


@contextmanager
def traffic(service: Service) -> Iterator[None]:
    """Requests of an API's clients, as long as this lasts."""
    stop = Event()
    chance = random.Random(11)
    chat = {"user": "alice", "endpoint": "/v1/chat", "method": "POST", "cost": {"requests": 1, "tokens": 4_300}}
    slot = {"user": "alice", "endpoint": "/exports", "method": "POST"}

    def send() -> None:
        with httpx.Client(base_url=service.url, timeout=30) as client:
            for _ in range(3):
                client.post("/v1/acquire", json=slot)
            while not stop.wait(0.1):
                client.post("/v1/check/batch", json={"checks": [request(chance) for _ in range(chance.randint(6, 12))]})
                if chance.random() < 0.02:
                    client.post("/v1/check", json=chat)

    thread = Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def request(chance: random.Random) -> dict[str, str]:
    user = chance.choice(["alice", "bob", "carol"] * 2 + [f"user-{number}" for number in range(90)])
    endpoint, method = chance.choice([("/search", "GET")] * 12 + [("/items", "GET")] * 6 + [("/login", "POST")])
    if chance.random() < 0.04:
        endpoint = "/api/v1/exports/7"
    return {"user": user, "ip": f"192.0.2.{chance.randint(1, 40)}", "endpoint": endpoint, "method": method}


if __name__ == "__main__":
    main()
