"""The service's HTTP side under uvicorn, as real clients and unreal ones meet it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.servers import Server, default_binary, free_port
from tests.webserver import serving

APP = ("tests.acceptance.apps.service_app:made", "--factory", "--no-proxy-headers", "--http", "httptools")
TOKEN = "a data token of some length"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("uvicorn", *APP) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=30) as client:
        yield client
        assert client.get("/healthz").json() == {"status": "alive"}  # whatever the test did to it


def connected(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 30)


def head(length: int | None = None, *more: str, path: str = "/v1/check") -> bytes:
    size = [] if length is None else [f"Content-Length: {length}"]
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *size, *more]
    return "\r\n".join([*lines, "", ""]).encode()


def answer(connection: socket.socket, left: bytes = b"") -> tuple[int, bytes, bytes]:
    """Status and body of the next answer, and what came after it."""
    while b"\r\n\r\n" not in left:
        part = connection.recv(65536)
        assert part, f"closed after {left!r}"
        left += part
    start, _, left = left.partition(b"\r\n\r\n")
    lines = start.decode("latin-1").lower().split("\r\n")
    length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
    while len(left) < length:
        left += connection.recv(65536)
    return int(lines[0].split()[1]), left[:length], left[length:]


def remaining(client: httpx.Client, user: str) -> int:
    figure: int = client.post("/v1/peek", json={"user": user}).json()["remaining"]
    return figure


def test_a_check_is_allowed_until_its_rule_refuses(client: httpx.Client, user: str) -> None:
    facts = {"user": user, "endpoint": "/three", "method": "GET"}
    for left in (2, 1, 0):
        allowed = client.post("/v1/check", json=facts)
        assert allowed.status_code == 200
        assert allowed.headers["X-RateLimit-Remaining"] == str(left)
        assert allowed.json()["remaining"] == left
    refused = client.post("/v1/check", json=facts)
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) > 0
    assert refused.headers["RateLimit"].startswith('"three";r=0;t=')
    assert refused.json()["allowed"] is False
    assert refused.json()["rule"] == "three"
    assert client.post("/v1/reset", json=facts).status_code == 204
    assert client.post("/v1/check", json=facts).status_code == 200


def test_a_rules_own_status(client: httpx.Client, user: str) -> None:
    statuses = [client.post("/v1/check", json={"user": user, "endpoint": "/teapot"}).status_code for _ in range(2)]
    assert statuses == [200, 418]


def test_addresses_count_by_their_network(client: httpx.Client) -> None:
    addresses = ["2001:db8:7::1", "2001:db8:7::2", "[2001:DB8:7::3]:443", "2001:db8:7:0:ffff::4"]
    found = [client.post("/v1/check", json={"ip": ip, "endpoint": "/ip"}).status_code for ip in addresses]
    assert found == [200, 200, 200, 429]


def test_api_keys_are_nowhere_to_be_seen(client: httpx.Client, user: str) -> None:
    told = client.post("/v1/check", json={"api_key": user})
    assert told.json()["rule"] == "by-key"
    assert user not in told.text + str(told.headers)
    assert client.post("/v1/check", json={"api_key": "open sesame"}).json()["reason"] == "exempt"


def test_a_batch_is_decided_in_order_and_exactly(client: httpx.Client, user: str) -> None:
    checks = [{"user": user, "endpoint": "/three"}] * 5 + [{"user": f"{user}-2"}] * 995
    decisions = client.post("/v1/check/batch", json={"checks": checks}).json()["decisions"]
    assert [one["allowed"] for one in decisions[:5]] == [True, True, True, False, False]
    assert len(decisions) == 1000
    assert decisions[-1]["remaining"] == 1_000_000 - 995


def test_a_batch_with_a_fault_charges_nobody(client: httpx.Client, user: str) -> None:
    wrong: list[Any] = [{"user": user}] * 999 + [{"user": user, "cost": True}]
    got = client.post("/v1/check/batch", json={"checks": wrong})
    assert (got.status_code, got.json()["detail"][:19]) == (400, "checks[999]: cost: ")
    too_many = client.post("/v1/check/batch", json={"checks": [{"user": user}] * 1001})
    assert too_many.status_code == 400
    assert remaining(client, user) == 1_000_000


NONSENSE: list[tuple[bytes, str]] = [
    (b"", "empty"),
    (b"null", "must be an object"),
    (b'{"user": "\xff\xfe"}', "byte 10"),
    (b'{"user": "alice", "user": "bob"}', "user: given twice"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"user":' * 100_000, "nested too deeply"),
    (b'{"cost": NaN}', "NaN"),
    (b'{"cost": 1e999}', "cost: "),
    (b'{"cost": ' + b"9" * 400 + b"}", "cost: "),
    (b'{"cost": ' + b"9" * 100_000 + b"}", "too many digits"),
    (b'{"cost": -1}', "got -1"),
    (b'{"cost": true}', "got true"),
    (b'{"cost": "1"}', 'got "1"'),
    (b'{"ip": "999.1.1.1"}', "999.1.1.1"),
    (b'{"user": {"name": "alice"}}', "user: "),
    (b'{"user": "\\udfff"}', "half"),
]


@pytest.mark.parametrize(("body", "said"), NONSENSE, ids=lambda value: str(value)[:24])
@pytest.mark.parametrize("path", ["/v1/check", "/v1/peek", "/v1/reset"])
def test_nonsense_is_told_precisely(client: httpx.Client, path: str, body: bytes, said: str) -> None:
    got = client.post(path, content=body, headers=JSON)
    assert got.status_code == 400
    assert got.headers["Content-Type"] == "application/problem+json"
    assert said in got.json()["detail"]
    assert len(got.content) < 1000


def test_other_methods_paths_and_types(client: httpx.Client) -> None:
    for path in ("/v1/check", "/v1/check/batch", "/v1/peek", "/v1/reset"):
        got = client.get(path)
        assert (got.status_code, got.headers["Allow"]) == (405, "POST")
        assert client.post(path, content=b"user=alice", headers={"Content-Type": "text/plain"}).status_code == 415
    for path in ("/", "/v1", "/v1/nothing", "/api/v1/rules", "/%00", "/v1/check%2Fbatch/x"):
        got = client.get(path)
        assert got.status_code == 404
        assert got.json()["title"] == "Not Found"


def test_health_and_metrics(client: httpx.Client) -> None:
    assert client.get("/readyz").json() == {"status": "ready", "rules": "1", "faults": {}}
    assert client.get("/metrics").text == "headgate_up 1\n"
    assert client.head("/metrics").content == b""


def test_a_service_that_is_about_to_stop_is_alive_and_not_ready() -> None:
    with serving("uvicorn", *APP, env={"TEST_DRAINING": "1"}) as url:
        got = httpx.get(f"{url}/readyz")
        assert (got.status_code, got.json()["status"]) == (503, "draining")
        assert httpx.get(f"{url}/healthz").status_code == 200


def test_pipelined_checks_are_answered_in_order(url: str, client: httpx.Client, user: str) -> None:
    bodies = [json.dumps({"user": user, "cost": cost}).encode() for cost in range(1, 21)]
    with connected(url) as connection:
        connection.sendall(b"".join(head(len(body)) + body for body in bodies))
        left, figures = b"", []
        for _ in bodies:
            status, body, left = answer(connection, left)
            assert status == 200
            figures.append(json.loads(body)["remaining"])
    assert figures == [1_000_000 - cost * (cost + 1) // 2 for cost in range(1, 21)]


def test_a_body_may_dribble_in_while_others_are_served(url: str, client: httpx.Client, user: str) -> None:
    body = json.dumps({"user": user}).encode()
    with connected(url) as connection:
        connection.sendall(head(len(body)))
        for byte in body:
            connection.sendall(bytes([byte]))
            assert client.get("/healthz").status_code == 200
        assert answer(connection)[0] == 200
    assert remaining(client, user) == 999_999


def test_clients_that_leave_half_way_are_not_charged(url: str, client: httpx.Client, user: str) -> None:
    body = json.dumps({"user": user}).encode()
    for sent in (b"", body[:5], body[:-1]):
        with connected(url) as connection:
            connection.sendall(head(len(body)) + sent)
    with connected(url) as connection:
        connection.sendall(head(None, "Transfer-Encoding: chunked") + b"%x\r\n%b\r\n" % (len(body), body))
    assert remaining(client, user) == 1_000_000


def test_a_body_that_is_too_long_is_refused_before_it_is_sent(url: str) -> None:
    for path, limit in (("/v1/check", 1 << 20), ("/v1/check/batch", 4 << 20)):
        with connected(url) as connection:
            connection.sendall(head(limit + 1, path=path))
            status, body, _ = answer(connection)
            assert (status, json.loads(body)["status"]) == (413, 413)
        with connected(url) as connection:
            connection.sendall(head(None, "Transfer-Encoding: chunked", path=path))
            chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
            for _ in range(limit // 0x10000 + 1):
                connection.sendall(chunk)
            assert answer(connection)[0] == 413  # though the last chunk has not come


def test_5_mb_are_refused_and_the_connection_is_good_for_more(client: httpx.Client, user: str) -> None:
    got = client.post("/v1/check/batch", content=b" " * (5 << 20), headers=JSON)
    assert got.status_code == 413
    assert client.post("/v1/check", json={"user": user}).status_code == 200


def test_a_body_of_just_the_limit_is_taken(client: httpx.Client, user: str) -> None:
    body = json.dumps({"user": user}).encode()
    got = client.post("/v1/check", content=body + b" " * ((1 << 20) - len(body)), headers=JSON)
    assert got.status_code == 200


def test_long_and_many_headers(client: httpx.Client, user: str) -> None:
    assert client.post("/v1/check", json={"user": user}, headers={"X-Long": "x" * 65_000}).status_code == 200
    many = {f"X-{number}": "x" for number in range(1000)}
    assert client.post("/v1/check", json={"user": user}, headers=many).status_code == 200
    long = client.get("/v1/authorize", headers={"X-Original-URI": "/" + "a/" * 30_000})
    assert long.status_code == 200
    assert client.get("/v1/authorize", headers={"X-Forwarded-For": "1," * 30_000}).status_code == 200


def test_bytes_that_are_no_text_in_headers(url: str) -> None:
    with connected(url) as connection:
        lines = b"X-Original-URI: /\xff\xfe\r\nX-API-Key: \xff\r\nX-Forwarded-For: \xff\r\n"
        connection.sendall(b"GET /v1/authorize HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n")
        assert answer(connection)[0] == 200


def test_authorize_takes_facts_from_the_original_request(client: httpx.Client) -> None:
    headers = {"X-Original-URI": "/ip/x?q", "X-Original-Method": "GET", "X-Forwarded-For": "6.6.6.6, 203.0.113.50"}
    found = [client.get("/v1/authorize?deny_status=403", headers=headers) for _ in range(4)]
    assert [one.status_code for one in found] == [200, 200, 200, 403]
    assert [one.headers["X-RateLimit-Remaining"] for one in found] == ["2", "1", "0", "0"]
    assert found[0].content == b""
    assert found[3].headers["X-RateLimit-Status"] == "429"
    assert client.get("/v1/authorize", headers={**headers, "X-Forwarded-For": "203.0.113.51"}).status_code == 200


def test_many_callers_at_once_are_admitted_exactly(url: str, user: str) -> None:
    facts = {"user": user, "endpoint": "/three"}

    def caller(_: int) -> list[int]:
        with httpx.Client(base_url=url, timeout=30) as client:
            return [client.post("/v1/check", json=facts).status_code for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        statuses = [status for found in pool.map(caller, range(8)) for status in found]
    assert (statuses.count(200), statuses.count(429)) == (3, 157)


def test_with_a_token_nobody_else_is_served(user: str) -> None:
    env = {"TEST_DATA_TOKEN": TOKEN, "TEST_ADMIN_TOKEN": "bootstrap"}
    with serving("uvicorn", *APP, env=env) as url, httpx.Client(base_url=url) as client:
        for path in ("/v1/check", "/v1/peek", "/v1/reset", "/v1/authorize"):
            for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
                got = client.post(path, json={"user": user}, headers=wrong)
                assert (got.status_code, got.headers["WWW-Authenticate"]) == (401, "Bearer")
            for good in (TOKEN, "bootstrap"):
                got = client.post(path, json={"user": user}, headers={"Authorization": f"Bearer {good}"})
                assert got.status_code in (200, 204)
        assert client.get("/healthz").status_code == 200


def test_a_store_that_is_away() -> None:
    """Rules decide by their failure modes; what cannot be decided is told."""
    env = {"TEST_STORE": f"redis://127.0.0.1:{free_port()}/0"}
    with serving("uvicorn", *APP, env=env) as url, httpx.Client(base_url=url) as client:
        opened = client.post("/v1/check", json={"user": "alice"})
        assert (opened.status_code, opened.json()["reason"]) == (200, "fail_open")
        closed = client.post("/v1/check", json={"ip": "192.0.2.1", "endpoint": "/closed"})
        assert (closed.status_code, closed.json()["reason"]) == (503, "fail_closed")
        assert closed.headers["Retry-After"] == "1"
        headers = {"X-Original-URI": "/closed"}
        assert client.get("/v1/authorize", headers=headers).status_code == 503
        mapped = client.get("/v1/authorize?deny_status=403", headers=headers)
        assert (mapped.status_code, mapped.headers["X-RateLimit-Status"]) == (403, "503")
        reset = client.post("/v1/reset", json={"user": "alice"})
        assert (reset.status_code, reset.headers["Retry-After"]) == (503, "1")
        assert "127.0.0.1" not in reset.text


def test_two_servers_on_one_redis_admit_the_limit_between_them(user: str) -> None:
    with Server(default_binary()) as redis:
        env = {"TEST_STORE": f"{redis.url}?timeout=10"}
        with serving("uvicorn", *APP, env=env) as one, serving("uvicorn", *APP, env=env) as two:
            facts = {"user": user, "endpoint": "/three"}
            statuses = [httpx.post(f"{url}/v1/check", json=facts).status_code for url in (one, two) * 4]
    assert statuses.count(200) == 3


def test_idle_and_half_sent_connections_do_not_matter(url: str, client: httpx.Client, user: str) -> None:
    idle: list[socket.socket] = []
    try:
        for number in range(500):
            connection = connected(url)
            if number % 2:
                connection.sendall(head(100) + b"{")
            idle.append(connection)
        for _ in range(50):
            assert client.post("/v1/check", json={"user": user}).status_code == 200
    finally:
        for connection in idle:
            connection.close()
