"""The routes, in one process: what is sent back, and what is charged."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from headgate import AsyncLimiter, Rule
from headgate.core.decision import Decision
from headgate.http.asgi import App
from headgate.rules import Snapshot
from headgate.service.access import Access
from headgate.service.data_plane import DataPlane
from headgate.service.http import exchange as exchange_module
from headgate.service.http.app import HttpApp
from headgate.service.http.data_plane import MAX_CHECK
from headgate.service.http.deprecation import Deprecated
from headgate.telemetry.meter import Meter
from headgate.testing import FakeClock
from tests.unit.service.http.call import Got, call, exchange

RULES = [
    Rule(id="user", quota="3/hour fixed_window", dimension="user", message="Only three.", status=418),
    Rule(id="address", quota="3/hour fixed_window", dimension="ip"),
]


class State:
    """A service that is as well as a test wants it."""

    def __init__(
        self, version: str | None = "7", draining: bool = False, faults: Mapping[str, str] | None = None
    ) -> None:
        self._version, self._draining, self._faults = version, draining, faults or {}

    def rules_version(self) -> str | None:
        return self._version

    def is_draining(self) -> bool:
        return self._draining

    def faults(self) -> Mapping[str, str]:
        return self._faults


class Counting(Meter):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, int]] = []
        self.decisions: list[Decision] = []

    def record_decision(self, decision: Decision) -> None:
        self.decisions.append(decision)

    def record_call(self, protocol: str, seconds: float, checks: int = 1) -> None:
        assert seconds >= 0
        self.told.append((protocol, checks))


async def page(accept: str) -> tuple[bytes, str]:
    return b"up 1\n", accept or "text/plain; version=0.0.4"


def made(
    *, access: Access | None = None, state: State | None = None, meter: Meter | None = None, **more: Any
) -> HttpApp:
    limiter = AsyncLimiter(Snapshot(RULES), clock=FakeClock(start=1_000_000))
    return HttpApp(
        DataPlane(limiter, meter=meter),
        access or Access(),
        health=state or State(),
        metrics=page,
        **more,
    )


def test_a_check_answers_with_the_decision_and_the_fields() -> None:
    got = call(made(), "POST", "/v1/check", {"user": "alice", "ip": "192.0.2.7"})
    assert got.status == 200
    assert got.headers["content-type"] == "application/json"
    assert got.headers["content-length"] == str(len(got.body))
    assert got.headers["x-ratelimit-limit"] == "3"
    assert got.headers["x-ratelimit-remaining"] == "2"
    assert got.headers["ratelimit-policy"] == '"address";q=3;w=3600, "user";q=3;w=3600'
    assert got.json["allowed"] is True
    assert [limit["rule"] for limit in got.json["limits"]] == ["address", "user"]


def test_a_refusal_has_the_rules_status_and_the_decision_as_its_body() -> None:
    app = made()
    for _ in range(3):
        call(app, "POST", "/v1/check", {"user": "alice"})
    got = call(app, "POST", "/v1/check", {"user": "alice"})
    assert got.status == 418
    assert got.headers["content-type"] == "application/json"
    assert got.headers["retry-after"] == "800"  # until the hour is over
    assert (got.json["allowed"], got.json["rule"], got.json["reason"]) == (False, "user", "over_limit")


def test_the_cost_is_charged_and_told() -> None:
    got = call(made(), "POST", "/v1/check", {"user": "alice", "cost": 2})
    assert got.json["remaining"] == 1
    assert got.headers["x-ratelimit-cost"] == "2"


def test_an_idempotency_key_is_charged_once() -> None:
    app = made()
    for _ in range(2):
        got = call(app, "POST", "/v1/check", {"user": "alice", "idempotency_key": "k"})
        assert got.json["remaining"] == 2
    conflict = call(app, "POST", "/v1/check", {"user": "bob", "idempotency_key": "k"})
    assert conflict.status == 422
    assert "'k'" in conflict.json["detail"]


def test_a_batch_decides_in_order() -> None:
    meter = Counting()
    checks = [{"user": "alice"}] * 4 + [{"user": "bob"}]
    got = call(made(meter=meter), "POST", "/v1/check/batch", {"checks": checks})
    assert got.status == 200
    assert [one["allowed"] for one in got.json["decisions"]] == [True, True, True, False, True]
    assert meter.told == [("http", 5)]
    assert len(meter.decisions) == 5


def test_one_bad_check_of_a_batch_and_nothing_is_charged() -> None:
    app = made()
    got = call(app, "POST", "/v1/check/batch", {"checks": [{"user": "alice"}, {"user": "alice", "cost": -1}]})
    assert got.status == 400
    assert got.json["detail"].startswith("checks[1]: cost: ")
    assert call(app, "POST", "/v1/peek", {"user": "alice"}).json["remaining"] == 3


@pytest.mark.parametrize("value", ["alice", None])
def test_an_unknown_fact_of_a_batch_is_reported_with_its_check(value: str | None) -> None:
    app = made()
    got = call(app, "POST", "/v1/check/batch", {"checks": [{"user": "alice"}, {"usr": value}]})
    assert got.status == 400
    assert got.json["detail"].startswith("checks[1]: unknown fact 'usr'; did you mean 'user'")
    assert call(app, "POST", "/v1/peek", {"user": "alice"}).json["remaining"] == 3


def test_an_empty_batch_is_answered() -> None:
    assert call(made(), "POST", "/v1/check/batch", {"checks": []}).json == {"decisions": []}


def test_a_peek_charges_nothing_and_is_answered_either_way() -> None:
    app = made()
    for cost, allowed in ((3, True), (4, False)):
        got = call(app, "POST", "/v1/peek", {"user": "alice", "cost": cost})
        assert (got.status, got.json["allowed"], got.json["remaining"]) == (200, allowed, 3)


def test_a_reset_forgets() -> None:
    app = made()
    call(app, "POST", "/v1/check", {"user": "alice", "cost": 3})
    got = call(app, "POST", "/v1/reset", {"user": "alice"})
    assert (got.status, got.body) == (204, b"")
    assert call(app, "POST", "/v1/peek", {"user": "alice"}).json["remaining"] == 3


def test_what_is_not_there_is_not_found() -> None:
    got = call(made(), "GET", "/v1/chekc")
    assert got.status == 404
    assert got.headers["content-type"] == "application/problem+json"
    assert got.json["detail"] == "there is nothing at '/v1/chekc'"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("GET", "/v1/check", "POST"), ("OPTIONS", "/v1/reset", "POST"), ("POST", "/healthz", "GET, HEAD")],
)
def test_another_method_is_told_which_to_use(method: str, path: str, allow: str) -> None:
    got = call(made(), method, path)
    assert got.status == 405
    assert got.headers["allow"] == allow


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonish", ""])
def test_bodies_that_are_not_json_are_not_taken(kind: str) -> None:
    got = call(made(), "POST", "/v1/check", b'{"user": "alice"}', {"Content-Type": kind})
    assert got.status == 415
    assert "Content-Type" in got.json["detail"]


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/ld+json", None])
def test_json_by_other_names_is_taken(kind: str | None) -> None:
    got = call(made(), "POST", "/v1/check", b'{"user": "a"}', {} if kind is None else {"Content-Type": kind})
    assert got.status == 200


def test_a_web_page_must_say_that_it_sends_json() -> None:
    """A browser asks us first, before it sends that; what says nothing, it sends to anybody."""
    got = call(made(), "POST", "/v1/reset", b'{"user": "a"}', {"Origin": "https://evil.example"})
    assert got.status == 415


def test_a_compressed_body_is_not_decompressed() -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    got = call(made(), "POST", "/v1/check", b"\x1f\x8b\x08\x00", headers)
    assert got.status == 415
    assert "Content-Encoding" in got.json["detail"]


def test_a_long_body_is_refused_before_it_is_read() -> None:
    got = call(made(), "POST", "/v1/check", b"", {"Content-Length": str(MAX_CHECK + 1)}, messages=[{"type": "never"}])
    assert got.status == 413


def test_a_long_body_without_a_length_is_refused_when_it_is_too_long() -> None:
    part = {"type": "http.request", "body": b" " * (MAX_CHECK // 2 + 1), "more_body": True}
    got = call(made(), "POST", "/v1/check", b"", messages=[part, part, {"type": "never"}])
    assert got.status == 413
    whole = {"type": "http.request", "body": b" " * (MAX_CHECK + 1), "more_body": False}
    assert call(made(), "POST", "/v1/check", b"", messages=[whole]).status == 413


def test_a_body_in_parts_is_put_together() -> None:
    parts: list[dict[str, Any]] = [
        {"type": "http.request", "body": b'{"user": ', "more_body": True},
        {"type": "http.request", "more_body": True},
        {"type": "http.request", "body": b'"alice"}'},
    ]
    assert call(made(), "POST", "/v1/check", b"", messages=parts).status == 200


@pytest.mark.parametrize("before", [0, 1])
def test_a_client_that_leaves_gets_no_answer_and_costs_nothing(before: int) -> None:
    app = made()
    part = {"type": "http.request", "body": b'{"user": "alice"}', "more_body": True}
    messages: list[dict[str, Any]] = [part] * before + [{"type": "http.disconnect"}]
    assert asyncio.run(exchange(app, "POST", "/v1/check", messages=messages)) is None
    assert call(app, "POST", "/v1/peek", {"user": "alice"}).json["remaining"] == 3


def test_a_body_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "BODY_SECONDS", 0.01)
    app = made()

    async def run() -> list[Any]:
        sent: list[Any] = []
        parts = iter([{"type": "http.request", "body": b"{", "more_body": True}])

        async def receive() -> Any:
            part = next(parts, None)
            if part is None:
                await asyncio.Event().wait()
            return part

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/check", "query_string": b"", "headers": []}
        await app(scope, receive, send)
        return sent

    assert asyncio.run(run())[0]["status"] == 408


OPERATOR, VIEWER = "data-token", "viewer-token"


class Tokens(Access):
    """With a token that may look, and no more."""

    async def caller(self, token: str | None, *, stale: bool = False) -> Any:
        known = await super().caller(OPERATOR if token == VIEWER else token, stale=stale)
        return known._replace(role="viewer") if token == VIEWER else known


@pytest.mark.parametrize("path", ["/v1/check", "/v1/check/batch", "/v1/peek", "/v1/reset"])
def test_a_token_is_asked_for_where_there_is_one(path: str) -> None:
    app = made(access=Tokens(data_token=OPERATOR))
    body: Any = {"checks": []} if path.endswith("batch") else {"user": "alice"}
    none = call(app, "POST", path, body)
    assert none.status == 401
    assert none.headers["www-authenticate"] == "Bearer"
    for wrong in ("Bearer wrong", "Basic " + OPERATOR, "Bearer", OPERATOR):
        assert call(app, "POST", path, body, {"Authorization": wrong}).status == 401
    assert call(app, "POST", path, body, {"Authorization": f"bearer {OPERATOR}"}).status in (200, 204)
    viewer = call(app, "POST", path, body, {"Authorization": f"Bearer {VIEWER}"})
    assert viewer.status == (403 if path == "/v1/reset" else 200)


def test_nobody_without_a_token_has_their_body_read() -> None:
    app = made(access=Access(data_token=OPERATOR))
    assert call(app, "POST", "/v1/check", messages=[{"type": "never"}]).status == 401


def test_what_goes_wrong_inside_is_a_500_and_not_told() -> None:
    class Broken(Counting):
        def record_decision(self, decision: Decision) -> None:
            raise ZeroDivisionError(f"inside {decision}")

    got = call(made(meter=Broken()), "POST", "/v1/check", {"user": "alice"})
    assert got.status == 500
    assert "inside" not in got.body.decode()
    assert got.json["id"]


@pytest.mark.parametrize(
    ("state", "status", "said"),
    [
        (State(), 200, {"status": "ready", "rules": "7", "faults": {}}),
        (State(faults={"store": "down"}), 200, {"status": "degraded", "rules": "7", "faults": {"store": "down"}}),
        (State(version=None), 503, {"status": "no_rules", "rules": None, "faults": {}}),
        (State(draining=True), 503, {"status": "draining", "rules": "7", "faults": {}}),
    ],
)
def test_readiness(state: State, status: int, said: dict[str, Any]) -> None:
    app = made(state=state)
    got = call(app, "GET", "/readyz")
    assert (got.status, got.json) == (status, said)
    assert call(app, "GET", "/healthz").status == 200


def test_health_and_metrics_are_open_and_have_heads() -> None:
    app = made(access=Access(data_token=OPERATOR))
    assert call(app, "GET", "/metrics", headers=[("accept", "text/x")]).headers["content-type"] == "text/x"
    got = call(app, "GET", "/metrics")
    assert (got.status, got.body, got.headers["content-type"]) == (200, b"up 1\n", "text/plain; version=0.0.4")
    head = call(app, "HEAD", "/metrics")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", "5")


async def admin(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await send({"type": "lifespan.startup.complete"})
        return
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


@pytest.mark.parametrize("path", ["/", "/docs", "/api/v1/rules", "/openapi.json", "/healthz/x"])
def test_all_else_is_the_admins(path: str) -> None:
    got = call(made(admin=admin), "GET", path)
    assert (got.status, got.body) == (299, path.encode())


@pytest.mark.parametrize("path", ["/v1/check/", "/v1/", "/v1/nothing"])
def test_the_data_plane_is_not(path: str) -> None:
    assert call(made(admin=admin), "POST", path, {}).status == 404


@pytest.mark.parametrize("inner", [None, admin])
def test_the_servers_start_and_end(inner: App | None) -> None:
    sent: list[str] = []

    async def run() -> None:
        events = iter(["lifespan.startup", "lifespan.shutdown"])

        async def receive() -> Any:
            return {"type": next(events)}

        async def send(message: Any) -> None:
            sent.append(message["type"])

        await made(admin=inner)({"type": "lifespan"}, receive, send)

    asyncio.run(run())
    assert sent[0] == "lifespan.startup.complete"
    assert sent[1:] == (["lifespan.shutdown.complete"] if inner is None else [])


def test_websockets_are_turned_away() -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(made()({"type": "websocket", "path": "/"}, receive, send))
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_routes_that_are_deprecated_say_so() -> None:
    old = Deprecated(since=datetime(2027, 1, 1, tzinfo=UTC))
    app = made(admin=admin, deprecated={"/v1/check": old, "/api/v1/*": old})

    def said(got: Got) -> str | None:
        return got.headers.get("deprecation")

    assert said(call(app, "POST", "/v1/check", {"user": "a"})) == "@1798761600"
    assert said(call(app, "GET", "/v1/check")) == "@1798761600"  # the errors, too
    assert said(call(app, "GET", "/api/v1/rules")) == "@1798761600"
    assert said(call(app, "POST", "/v1/peek", {"user": "a"})) is None
    assert said(call(made(), "POST", "/v1/check", {"user": "a"})) is None
