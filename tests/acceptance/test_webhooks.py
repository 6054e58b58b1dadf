"""Webhooks: a real service tells a real receiver of refusals and changes; signed, retried, bounded, counted."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx

from headgate.audit.webhook import Webhook
from tests.service import warm_service

SECRET = "a-secret-of-thirty-two-characters"
LATEST = 30.0


class Receiver:
    """Keeps what it is sent, and answers with the statuses that it was told, then with 204."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.requests: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 204)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?team=api"

    def messages(self, kind: str) -> list[dict[str, Any]]:
        """Those that were delivered, by their type; each must be signed."""
        found = []
        for headers, body in list(self.requests):
            content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
            digest = hmac.new(SECRET.encode(), content, hashlib.sha256).digest()
            assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
            assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
            message = json.loads(body)
            if message["type"] == kind:
                found.append(message["data"])
        return found


@contextmanager
def receiving(*statuses: int) -> Iterator[Receiver]:
    receiver = Receiver(*statuses)
    thread = Thread(target=receiver.server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        thread.join()
        receiver.server.server_close()


def until(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LATEST
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)
    return found


def test_a_service_tells_of_refusals_and_changes(tmp_path: Path) -> None:
    with (
        receiving(500) as receiver,
        warm_service(tmp_path, samples=False, webhook_url=receiver.url, webhook_secret=SECRET) as service,
    ):
        service.secrets.append(SECRET)
        rule = {"id": "search", "limit": 1, "window": "1h", "algorithm": "fixed_window"}
        httpx.post(f"{service.url}/api/v1/rules", json=rule, headers=service.headers).raise_for_status()
        for _ in range(3):
            httpx.post(f"{service.url}/v1/check", json={"user": "alice", "endpoint": "/reset?token=s3cr3t"})
        refusals = until(lambda: [one for data in receiver.messages("refusals") for one in data["refusals"]])
        assert (refusals[0]["rule"], refusals[0]["user"], refusals[0]["allowed"]) == ("search", "alice", False)
        assert "s3cr3t" not in json.dumps(refusals)
        change = receiver.messages("changes")[0]
        assert (change["actor"], change["count"]) == ("bootstrap", 1)
        assert (change["changes"][0]["action"], change["changes"][0]["subject"]) == ("create", "search")
        # The first attempt was answered 500: the same message came again, under its id.
        assert receiver.requests[0][0]["webhook-id"] == receiver.requests[1][0]["webhook-id"]
        page = until(
            lambda: (
                text
                if 'headgate_webhook_messages_total{outcome="delivered"} 0.0'
                not in (text := httpx.get(f"{service.url}/metrics").text)
                else ""
            )
        )
        assert "headgate_webhook_retries_total 1.0" in page
        assert 'headgate_webhook_messages_total{outcome="dropped"} 0.0' in page


def test_tokens_that_are_created_and_revoked_are_changes(tmp_path: Path) -> None:
    with (
        receiving() as receiver,
        warm_service(tmp_path, webhook_url=receiver.url, webhook_secret=SECRET, webhook_events="changes") as service,
    ):
        wanted = {"name": "ci", "role": "viewer", "scopes": ["rules"]}
        created = httpx.post(f"{service.url}/api/v1/tokens", json=wanted, headers=service.headers).raise_for_status()
        token = created.json()
        url = f"{service.url}/api/v1/tokens/{token['id']}"
        for _ in range(2):  # to revoke it again changes nothing
            httpx.delete(url, headers=service.headers).raise_for_status()
        httpx.put(f"{service.url}/api/v1/users/alice/tier", json={"tier": "pro"}, headers=service.headers)
        messages = until(lambda: found if len(found := receiver.messages("changes")) == 3 else [])
    shown = [(one["actor"], one["changes"][0]["kind"], one["changes"][0]["action"]) for one in messages]
    assert shown == [
        ("bootstrap", "token", "create"),
        ("bootstrap", "token", "delete"),
        ("bootstrap", "user", "create"),
    ]
    assert [one["changes"][0]["subject"] for one in messages[:2]] == [token["id"]] * 2
    assert messages[0]["changes"][0]["after"]["name"] == "ci"
    assert all(token["token"].encode() not in body for _, body in receiver.requests)


def test_only_what_was_asked_for(tmp_path: Path) -> None:
    with (
        receiving() as receiver,
        warm_service(tmp_path, webhook_url=receiver.url, webhook_secret=SECRET, webhook_events="changes") as service,
    ):
        login = {"ip": "192.0.2.7", "endpoint": "/login", "method": "POST"}
        statuses = [httpx.post(f"{service.url}/v1/check", json=login).status_code for _ in range(6)]
        assert statuses[-1] == 429
        tier = {"tier": "pro"}
        done = httpx.put(f"{service.url}/api/v1/users/alice/tier", json=tier, headers=service.headers)
        assert done.status_code == 200, done.text
        until(lambda: receiver.messages("changes"))
        assert receiver.messages("refusals") == []


def test_what_a_receiver_refuses_is_given_up_and_what_it_cannot_do_is_tried_again() -> None:
    with receiving(400, 429, 503) as receiver:
        webhook = Webhook(receiver.url, SECRET, backoff=0.01)
        webhook.tell_changes(1, 0, "first", [])
        webhook.tell_changes(2, 0, "second", [{"kind": "rule"}] * 250)
        until(lambda: webhook.status().delivered)
        webhook.close()
    status = webhook.status()
    assert (status.delivered, status.failed, status.retries, status.queued) == (1, 1, 2, 0)
    actors = [data["actor"] for data in receiver.messages("changes")]
    assert actors == ["first", "second", "second", "second"]
    assert [(len(data["changes"]), data["count"]) for data in receiver.messages("changes")][-1] == (100, 250)


def test_the_queue_is_bounded_and_nobody_waits_for_it() -> None:
    webhook = Webhook("http://127.0.0.1:1/", SECRET, queue=3, backoff=60)
    began = time.monotonic()
    for version in range(10):
        webhook.tell_changes(version, 0, "x", [])
    assert time.monotonic() - began < 1
    assert webhook.status().dropped == 7
    webhook.close()
    assert time.monotonic() - began < 10


def test_a_secret_of_the_specification_is_base64() -> None:
    key = base64.b64encode(SECRET.encode()).decode()
    with receiving() as receiver:
        webhook = Webhook(receiver.url, f"whsec_{key}")
        webhook.tell_changes(1, 0, "x", [])
        until(lambda: webhook.status().delivered)
        webhook.close()
        assert len(receiver.messages("changes")) == 1
