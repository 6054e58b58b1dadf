"""HTTP/1.1 by hand: requests that no client library would send, or not in this way."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.service import Service, warm_service

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"
BODY = b'{"user":"ann"}'
CHECK = b"POST /v1/check HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
OFFERING = CHECK.replace(b"Content-Length", OFFER + b"Content-Length")
CHUNKED = b"POST /v1/check HTTP/1.1\r\nHost: here\r\n%bTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
LAST = b"GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with warm_service(tmp_path_factory.mktemp("pipelining")) as started:
        yield started


def statuses(service: Service, sent: bytes) -> list[int]:
    """Those of all answers, until the service hangs up."""
    host, _, port = service.url.rpartition("/")[2].rpartition(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=60) as client, suppress(ConnectionResetError):
        client.sendall(sent)
        while more := client.recv(65_536):
            received += more
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", received)]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"", 400),
        (b"Host: here\r\nHost: there\r\n", 400),
        (b"Host: here\r\nHost: here\r\n", 400),
        (b"Host: he re\r\n", 400),
        (b"Host: here@there\r\n", 400),
        (b"Host:\r\n", 200),
        (b"Host: here:80\r\n", 200),
        (b"Host: [::1]:80\r\n", 200),
    ],
)
def test_a_request_names_one_host(service: Service, host: bytes, status: int) -> None:
    assert statuses(service, b"GET /healthz HTTP/1.1\r\n%bConnection: close\r\n\r\n" % host) == [status]


def test_old_clients_need_name_no_host(service: Service) -> None:
    assert statuses(service, b"GET /healthz HTTP/1.0\r\n\r\n") == [200]


def test_pipelined_requests_are_no_large_head(service: Service) -> None:
    """70 KB of them, and a beginning of one more."""
    assert statuses(service, HEALTH * 2_000 + LAST) == [200] * 2_001
    assert statuses(service, HEALTH * 2_000 + b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000) == [200] * 2_000 + [431]


@pytest.mark.parametrize(
    "sent",
    [
        CHECK + OFFERING,
        OFFERING + OFFERING + CHECK,
        HEALTH + OFFERING,
        CHUNKED % (b"", len(BODY), BODY) + CHUNKED % (OFFER, len(BODY), BODY),
        CHUNKED % (OFFER, len(BODY), BODY) + OFFERING,
    ],
)
def test_who_offers_another_protocol_loses_no_body(service: Service, sent: bytes) -> None:
    expected = [200] * (sent.count(b"POST") + sent.count(b"GET") + 1)
    assert statuses(service, sent + LAST) == expected


@pytest.mark.parametrize(
    "garbage", [b"\0\0\r\n\r\n", b"GET / HTTP/1.1\r\nX y\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\n\r\n"]
)
def test_a_mistake_is_not_taken_for_one_in_the_requests_before_it(service: Service, garbage: bytes) -> None:
    assert statuses(service, CHECK + HEALTH + garbage + HEALTH) == [200, 200, 400]


def test_a_body_that_turns_out_to_make_no_sense(service: Service) -> None:
    begin = b"POST /v1/check HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert statuses(service, begin + b"1\r\n{\r\nno length\r\n" + HEALTH) == [400]
