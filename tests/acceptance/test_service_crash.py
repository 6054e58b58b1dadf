"""The service is killed, over and over, while it is written to: what it has acknowledged is there afterwards.

Writers change rules, tiers and overrides, each its own, one after the other. A change that was under way when the
service died may have happened or not; but it has happened as a whole, and the change log says the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any

import httpx
import pytest

from tests.postgres import Postgres
from tests.service import Service, warm_service
from tests.waiting import until

WRITERS = 5
PAGE = 1_000
NO_TLS = httpx.create_ssl_context()  # made once: each client would take its time for one


def client_of(service: Service, token: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=service.url, headers=headers, timeout=60, verify=NO_TLS)


@dataclass(frozen=True)
class Change:
    """What a writer asks for: a request, and what is to be there after it."""

    method: str
    path: str
    body: dict[str, Any] | None
    state: tuple[str, Any]  # the name of something of the writer's, and what it is now; None: gone


@dataclass
class Writer:
    """Somebody who changes things, and remembers what was acknowledged."""

    name: str
    token: str
    state: dict[str, Any] = field(default_factory=dict)
    acknowledged: int = 0
    under_way: Change | None = None  # whose outcome is not known
    refused: list[str] = field(default_factory=list)
    number: int = 0

    @property
    def user(self) -> str:
        return f"user-of-{self.name}"

    def change(self) -> Change:
        """The next one. Rules are created, changed and deleted in turn; tiers and overrides go to and fro."""
        self.number += 1
        turn, limit = self.number % 5, self.number + 10
        rule_id = f"{self.name}-{self.number - turn}"
        body = {"dimension": "tenant", "limit": limit, "window": 3600}
        if turn == 0:
            return Change("POST", "/api/v1/rules", {"id": rule_id, **body}, (rule_id, limit))
        if turn == 1:
            return Change("PUT", f"/api/v1/rules/{rule_id}", body, (rule_id, limit))
        if turn == 2:
            tier = "free" if self.state.get("tier") == "pro" else "pro"  # what is so already is no change
            return Change("PUT", f"/api/v1/users/{self.user}/tier", {"tier": tier}, ("tier", tier))
        if turn == 3:
            override = {"rule": "user-free", "limit": limit}
            return Change("POST", f"/api/v1/users/{self.user}/override", override, ("override", limit))
        gone = f"{self.name}-{self.number - turn - 50}"
        if self.state.get(gone) is not None:
            return Change("DELETE", f"/api/v1/rules/{gone}", None, (gone, None))
        return Change("PUT", f"/api/v1/rules/{rule_id}", {**body, "enabled": True}, (rule_id, limit))

    def write(self, service: Service, until_dead: Event) -> None:
        """Change one thing after the other until the service does not answer any more."""
        with client_of(service, self.token) as client:
            while not until_dead.is_set():
                change = self.under_way = self.change()
                try:
                    answer = client.request(change.method, change.path, json=change.body)
                except httpx.TransportError:
                    return
                if not answer.is_success:
                    self.refused.append(f"{change}: {answer.status_code} {answer.text}")
                    return
                self.under_way = None
                self.acknowledge(change)

    def acknowledge(self, change: Change) -> None:
        self.acknowledged += 1
        name, value = change.state
        self.state[name] = value

    def settle(self, found: dict[str, Any]) -> None:
        """What is there must be what was acknowledged, with what was under way or without it."""
        expected = {name: value for name, value in self.state.items() if value is not None}
        if self.under_way is not None and found != expected:
            self.acknowledge(self.under_way)
            expected = {name: value for name, value in self.state.items() if value is not None}
        self.under_way = None
        assert found == expected


class Hammer:
    """Somebody who is refused, each time as another user, and looks how many of the events are on disk."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.safe: set[str] = set()

    def run(self, service: Service, until_dead: Event) -> None:
        began = len(self.tried)
        with client_of(service, "none") as client:
            try:
                while not until_dead.is_set():
                    for _ in range(5):
                        self.tried.append(f"refused-{len(self.tried)}")
                        facts = {"user": self.tried[-1], "cost": 1_000_000}
                        assert client.post("/v1/check", json=facts).status_code == 429
                    found = re.search(r"^headgate_audit_spooled_total (\S+)", client.get("/metrics").text, re.M)
                    assert found is not None
                    self.safe.update(self.tried[began : began + int(float(found[1]))])
            except httpx.TransportError:
                return


def pages(client: httpx.Client, path: str, name: str) -> Iterator[dict[str, Any]]:
    after = None
    while True:
        answer = client.get(path, params={"limit": PAGE} | ({} if after is None else {"after": after}))
        assert answer.status_code == 200, answer.text
        yield from answer.json()[name]
        after = answer.json()["next"]
        if after is None:
            return


def look(service: Service, writers: list[Writer]) -> None:
    """Compare everything with what the writers know."""
    with client_of(service, service.admin_token) as client:
        rules = {rule["id"]: rule for rule in pages(client, "/api/v1/rules", "rules")}
        changes = list(pages(client, "/api/v1/changes", "changes"))
        assert len({change["id"] for change in changes}) == len(changes)
        versions = [change["version"] for change in changes]
        assert versions == sorted(versions, reverse=True)
        for writer in writers:
            user = client.get(f"/api/v1/users/{writer.user}/limits").json()
            found = {id_: rule["limit"] for id_, rule in rules.items() if id_.startswith(f"{writer.name}-")}
            if user["own_tier"] is not None:
                found["tier"] = user["own_tier"]
            for override in user["overrides"]:
                found["override"] = override["limit"]
            writer.settle(found)
            assert writer.acknowledged == sum(1 for change in changes if change["actor"] == writer.name)
    in_force = httpx.post(f"{service.url}/v1/peek", json={"tenant": "t"}, verify=NO_TLS).json()["limits"]
    assert {limit["rule"] for limit in in_force} == {
        id_ for id_, rule in rules.items() if rule["dimension"] in ("tenant", "global")
    }


def kill_while_written(service: Service, writers: list[Writer], hammer: Hammer, acknowledged: int) -> None:
    """Kill it when it has acknowledged so many changes, while others are under way."""
    dead = Event()
    before = sum(writer.acknowledged for writer in writers)
    threads = [Thread(target=writer.write, args=(service, dead)) for writer in writers]
    threads.append(Thread(target=hammer.run, args=(service, dead)))
    for thread in threads:
        thread.start()
    until(
        lambda: (
            sum(writer.acknowledged for writer in writers) >= before + acknowledged
            or not any(thread.is_alive() for thread in threads)
        )
    )
    service.kill()
    dead.set()
    for thread in threads:
        thread.join()
    assert [refused for writer in writers for refused in writer.refused] == []


def killed_again_and_again(tmp_path: Path, rounds: int, **settings: Any) -> int:
    """Returns how many changes were acknowledged."""
    random = Random(rounds)
    hammer = Hammer()
    writers: list[Writer] = []
    for _ in range(rounds):
        with warm_service(tmp_path, **settings) as service:
            if not writers:
                with client_of(service, service.admin_token) as client:
                    for number in range(WRITERS):
                        wanted = {"name": f"w{number}", "role": "admin", "scopes": ["rules", "users"]}
                        token = client.post("/api/v1/tokens", json=wanted).json()["token"]
                        writers.append(Writer(f"w{number}", token))
            look(service, writers)
            kill_while_written(service, writers, hammer, random.randrange(50, 75))
    with warm_service(tmp_path, **settings) as service:
        look(service, writers)
        with client_of(service, service.admin_token) as client:

            def found() -> list[str]:
                return [event["user"] for event in pages(client, "/api/v1/events", "events")]

            until(lambda: hammer.safe <= set(found()))
            users = found()
            assert len(users) == len(set(users))
            assert set(users) <= set(hammer.tried)
            (top,) = client.get("/api/v1/events/top", params={"by": "rule"}).json()["top"]
            assert top["events"] == len(users)
        assert hammer.safe
    return sum(writer.acknowledged for writer in writers)


@pytest.mark.timeout(600)  # eleven starts take their time on a busy machine
def test_a_service_that_is_killed_loses_nothing_that_it_acknowledged(tmp_path: Path, thorough: bool) -> None:
    rounds = 10 if thorough else 2
    assert killed_again_and_again(tmp_path, rounds) >= rounds * 50


@pytest.mark.extended
def test_a_service_on_postgresql_that_is_killed_loses_nothing_either(
    tmp_path: Path, postgres: Postgres, thorough: bool
) -> None:
    rounds = 4 if thorough else 2
    assert killed_again_and_again(tmp_path, rounds, database_url=postgres.emptied()) >= rounds * 50
