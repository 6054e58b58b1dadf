"""The whole service against what it should never be sent: a precise answer, and it goes on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from headgate.service.protos import rate_limiter_pb2 as rl
from headgate.service.protos import rls_pb2 as rls
from tests.service import Service, warm_service
from tests.waiting import until

STUCK = 60.0
OURS = "/headgate.v1.RateLimiter"
ENVOY = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
PATHS = [
    *(f"{OURS}/{name}" for name in ("CheckRateLimit", "CheckRateLimits", "GetRemainingQuota", "ResetLimit")),
    ENVOY,
]
CODE = grpc.StatusCode
NOT_UTF_8 = b"\x0a\x02\xff\xfe"  # field 1, a text
DATA = ("/v1/check", "/v1/check/batch", "/v1/peek", "/v1/reset")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with warm_service(tmp_path_factory.mktemp("input")) as service:
        yield service
        unexpected = [line for line in service.log.splitlines() if json.loads(line)["level"] not in ("info", "debug")]
        assert unexpected == []  # nobody can fill the log with nonsense


@pytest.fixture(scope="module")
def http(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=STUCK) as client:
        yield client


@pytest.fixture(scope="module")
def channel(service: Service) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(service.grpc_address, options=[("grpc.max_send_message_length", -1)]) as channel:
        yield channel


def code_of(channel: grpc.Channel, path: str, body: bytes, **options: Any) -> tuple[grpc.StatusCode, str]:
    method: Any = channel.unary_unary(path)
    try:
        method(body, timeout=STUCK, **options)
    except grpc.RpcError as error:
        told: Any = error
        return told.code(), told.details()
    return CODE.OK, ""


def serves(http: httpx.Client, channel: grpc.Channel) -> bool:
    """Whether it goes on, by both protocols."""
    ask = rl.CheckRequest(identifier="after", cost=0).SerializeToString()
    checked = http.post("/v1/check", json={"user": "after", "cost": 0})
    return checked.status_code == 200 and code_of(channel, f"{OURS}/CheckRateLimit", ask)[0] == CODE.OK


# gRPC, and Envoy's protocol


@pytest.mark.parametrize("path", PATHS)
def test_grpc_5_mb(http: httpx.Client, channel: grpc.Channel, path: str) -> None:
    code, details = code_of(channel, path, b"\0" * 5_000_000)
    assert (code, "larger than max" in details) == (CODE.RESOURCE_EXHAUSTED, True)
    assert serves(http, channel)


@pytest.mark.parametrize("path", PATHS)
def test_grpc_not_utf_8(http: httpx.Client, channel: grpc.Channel, path: str) -> None:
    body = b"\x0a\x04" + NOT_UTF_8 if path.endswith("CheckRateLimits") else NOT_UTF_8
    code, details = code_of(channel, path, body)
    assert (code, "not UTF-8" in details) == (CODE.INVALID_ARGUMENT, True)
    assert serves(http, channel)


def test_grpc_what_is_small_and_becomes_large(service: Service, http: httpx.Client, channel: grpc.Channel) -> None:
    """60 MB that compress to 60 kB are not decompressed."""
    before = memory_kb(service)
    code, details = code_of(channel, ENVOY, b"\0" * 60_000_000, compression=grpc.Compression.Gzip)
    assert (code, "larger than max" in details) == (CODE.RESOURCE_EXHAUSTED, True)
    assert memory_kb(service) < before + 40_000
    assert serves(http, channel)


def envoy(*descriptors: rls.RateLimitDescriptor, **fields: Any) -> bytes:
    return rls.RateLimitRequest(domain="d", descriptors=descriptors, **fields).SerializeToString()


def descriptor(entries: int = 1, hits: int | None = None, **fields: Any) -> rls.RateLimitDescriptor:
    entry = rls.RateLimitDescriptor.Entry(key="tenant", value="t")
    made = rls.RateLimitDescriptor(entries=[entry] * entries, **fields)
    if hits is not None:
        made.hits_addend.value = hits
    return made


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (f"{OURS}/CheckRateLimit", rl.CheckRequest(identifier="u", cost=-1), "cost: must be a whole number"),
        (f"{OURS}/GetRemainingQuota", rl.QuotaRequest(identifier="u", cost=-1), "cost: must be a whole number"),
        (
            f"{OURS}/CheckRateLimits",
            rl.CheckBatchRequest(checks=[rl.CheckRequest(), rl.CheckRequest(cost=-1)]),
            "checks[1]: cost: must be a whole number",
        ),
        (f"{OURS}/CheckRateLimits", rl.CheckBatchRequest(checks=[rl.CheckRequest()] * 10_000), "got 10,000"),
        (f"{OURS}/CheckRateLimit", rl.CheckRequest(facts={"usr": "u"}), "unknown fact 'usr'; did you mean 'user'"),
        (f"{OURS}/GetRemainingQuota", rl.QuotaRequest(facts={"usr": ""}), "unknown fact 'usr'; did you mean 'user'"),
        (f"{OURS}/CheckRateLimit", rl.CheckRequest(dimension=rl.USER), "identifier: dimension USER needs one"),
        (ENVOY, envoy(*[descriptor()] * 10_000), "descriptors: must be from 1 to 1,000, got 10,000"),
        (ENVOY, envoy(descriptor(), descriptor(hits=2**64 - 1)), "must be a whole number from 0 to 2^53-1"),
        (ENVOY, envoy(), "descriptors: must be from 1"),
    ],
)
def test_grpc_nonsense(http: httpx.Client, channel: grpc.Channel, path: str, body: Any, said: str) -> None:
    code, details = code_of(channel, path, body if isinstance(body, bytes) else body.SerializeToString())
    assert (code, said in details) == (CODE.INVALID_ARGUMENT, True), details
    assert serves(http, channel)


def test_what_is_not_grpc_at_the_port_of_grpc(service: Service, http: httpx.Client, channel: grpc.Channel) -> None:
    for sent in (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\0" * 100_000):
        with connected(service.grpc_address) as client:
            client.sendall(sent)
            client.recv(65_536)
    assert serves(http, channel)


# HTTP


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b'{"user":"' + b"x" * 5_000_000 + b'"}', 413, "bytes long"),
        (b'{"user":"\xff\xfe"}', 400, "UTF-8"),
        (b'{"user":"\\ud800"}', 400, "half of a pair"),
        (b"[" * 200_000, 400, "nested too deeply"),
        (b"9" * 10_000, 400, "too many digits"),
        (b"", 400, "empty"),
    ],
)
@pytest.mark.parametrize("path", DATA)
def test_http_bodies(http: httpx.Client, channel: grpc.Channel, path: str, body: bytes, status: int, said: str) -> None:
    answer = http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert said in answer.json()["detail"]
    assert serves(http, channel)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"usr": "u"}, "unknown fact 'usr'; did you mean 'user'"),
        ({"usr": None}, "unknown fact 'usr'; did you mean 'user'"),
        ({"user": None}, "user: must not be null"),
    ],
)
@pytest.mark.parametrize("path", DATA)
def test_http_mistyped_facts(http: httpx.Client, path: str, facts: dict[str, Any], said: str) -> None:
    answer = http.post(path, json={"checks": [facts]} if path.endswith("/batch") else facts)
    assert (answer.status_code, said in answer.json()["detail"]) == (400, True), answer.text


def test_http_costs_and_counts(http: httpx.Client, channel: grpc.Channel) -> None:
    negative = {"user": "u", "cost": -1}
    for path in ("/v1/check", "/v1/peek", "/v1/reset"):
        answer = http.post(path, json=negative)
        assert (answer.status_code, answer.json()["detail"].partition(":")[0]) == (400, "cost")
    batch = http.post("/v1/check/batch", json={"checks": [{"user": "u"}, negative]})
    assert (batch.status_code, batch.json()["detail"].partition(":")[0]) == (400, "checks[1]")
    many = http.post("/v1/check/batch", json={"checks": [{"user": "u"}] * 10_000})
    assert (many.status_code, "got 10,000" in many.json()["detail"]) == (400, True)
    assert http.get("/v1/authorize?cost=-1").status_code == 400
    assert http.get("/v1/authorize?user=%ff").status_code == 400
    assert serves(http, channel)


def connected(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=STUCK)


def exchange(service: Service, sent: bytes) -> bytes:
    """What a connection brings in answer, until it is closed."""
    with connected(service.url) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while part := client.recv(65_536):
            answer += part
        return answer


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"POST /v1/check HTTP/1.1\r\nHost: h\r\nContent-Length: -5\r\n\r\n", 400),
        (b"POST /v1/check HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400),
        (
            b"POST /v1/check HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n",
            400,
        ),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", 431),
    ],
)
def test_http_that_is_none(
    service: Service, http: httpx.Client, channel: grpc.Channel, sent: bytes, status: int
) -> None:
    answer = exchange(service, sent)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"content-type: application/problem+json\r\n" in answer
    assert serves(http, channel)


@pytest.mark.parametrize("upgrade", ["h2c", "websocket", "TLS/1.2"])
def test_an_offer_to_go_on_in_another_protocol_is_not_taken(service: Service, upgrade: str) -> None:
    """As Java's HttpClient and `curl --http2` make it with every request: the body is part of the request."""
    headers = {
        "Connection": "Upgrade, HTTP2-Settings",
        "Upgrade": upgrade,
        "HTTP2-Settings": "AAMAAABkAAQAoAAAAAIAAAAA",
    }
    client = HTTPConnection(service.url.removeprefix("http://"), timeout=STUCK)
    for _ in range(2):  # and the connection is good for more
        client.request("POST", "/v1/peek", b'{"user": "upgrades"}', headers)
        answer = client.getresponse()
        assert (answer.status, json.load(answer)["allowed"]) == (200, True)
    client.close()


# What was refused is kept, whatever it says


def test_texts_that_databases_cannot_keep_do_not_stop_the_events(tmp_path: Path, postgres_url: str) -> None:
    with warm_service(tmp_path, database_url=postgres_url) as service:
        for user in ("a\0b", "\U0010ffff", "x" * 100_000, "last"):
            refused = httpx.post(f"{service.url}/v1/check", json={"user": user, "cost": 1_000}, timeout=STUCK)
            assert refused.status_code == 429

        def kept() -> set[str]:
            events = httpx.get(f"{service.url}/api/v1/events", headers=service.headers, timeout=STUCK).json()["events"]
            return {event["user"][:20] for event in events}

        until(lambda: len(kept()) == 4)
        assert {"\U0010ffff", "x" * 20, "last"} < kept()


def memory_kb(service: Service) -> int:
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])
