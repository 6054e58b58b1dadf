"""One suite for every middleware and server: the apps in tests/acceptance/apps have the same rules and URLs."""

from __future__ import annotations

import http.client
import itertools
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import httpx
import pytest

from tests.acceptance.apps.rules import CHUNK, MANY
from tests.waiting import until
from tests.webserver import serving

FIELDS = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "RateLimit-Policy", "RateLimit")
ANY_HEADERS = (
    "--limit-request-fields",
    "32768",
    "--limit-request-field_size",
    "100000",
    "--limit-request-line",
    "8190",
)


class Suite:
    """Runs on one server, which the class starts once."""

    server: ClassVar[str]
    app: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()

    @pytest.fixture(scope="class")
    @classmethod
    def url(cls) -> Iterator[str]:
        with serving(cls.server, cls.app, *cls.options) as url:
            yield url

    @pytest.fixture
    def client(self, url: str) -> Iterator[httpx.Client]:
        with httpx.Client(base_url=url, timeout=30) as client:
            yield client

    @pytest.mark.parametrize(("path", "status"), [("/ok", 200), ("/missing", 404), ("/boom", 500), ("/large", 200)])
    def test_every_response_tells_of_limits_once(self, client: httpx.Client, path: str, status: int) -> None:
        response = client.get(path)
        assert response.status_code == status
        times = len(response.headers.get_list("X-Process"))  # gunicorn keeps what an app has taken back with exc_info
        assert times == 1 or (self.server, path) == ("gunicorn", "/boom")
        assert [len(response.headers.get_list(name)) for name in FIELDS] == [times] * len(FIELDS)
        assert response.headers.get_list("X-RateLimit-Limit")[0] == "1000000"
        assert response.headers.get_list("RateLimit-Policy")[0] == '"all";q=1000000;w=31622400'
        assert "Retry-After" not in response.headers
        if path == "/large":
            assert response.content == CHUNK * MANY

    def test_head_and_options(self, client: httpx.Client) -> None:
        for method in ("HEAD", "OPTIONS"):
            assert client.request(method, "/ok").headers["X-RateLimit-Limit"] == "1000000"

    def test_a_refusal(self, client: httpx.Client) -> None:
        told = [client.get("/few") for _ in range(3)]
        assert [response.status_code for response in told] == [200] * 3
        assert [response.headers["X-RateLimit-Remaining"] for response in told] == ["2", "1", "0"]
        before = _remaining(client.get("/ok"), "all")
        refused = client.get("/few")
        assert refused.status_code == 429
        assert [len(refused.headers.get_list(name)) for name in FIELDS] == [1] * len(FIELDS)
        assert refused.headers["Content-Type"] == "application/problem+json"
        problem = refused.json()
        assert problem["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
        assert (problem["status"], problem["detail"]) == (429, "Only three.")
        assert problem["violated-policies"] == ["few"]
        assert refused.headers["Retry-After"] == str(problem["retry_after"])
        assert 0 < problem["retry_after"] <= 3600
        assert _remaining(client.get("/ok"), "all") == before - 1  # what was refused cost nothing

    def test_streams_pass_as_they_are_made(self, client: httpx.Client, tmp_path: Path) -> None:
        file = tmp_path / "go"
        with client.stream("GET", "/stream", params={"file": str(file)}) as response:
            assert response.headers["X-RateLimit-Limit"] == "1000000"
            parts = response.iter_bytes()
            assert next(parts) == b"first\n"  # the app has not made the rest yet
            file.touch()
            assert b"".join(parts) == b"second\n"

    def test_bodies_are_closed(self, client: httpx.Client, tmp_path: Path) -> None:
        file = tmp_path / "closed"
        assert client.get("/closing", params={"file": str(file)}).text == "something"
        until(lambda: file.exists() and file.read_text(), "a body that says that it was closed")
        assert file.read_text() == "closed\n"

    def test_throttled_requests_leave_at_their_rate(self, client: httpx.Client) -> None:
        begin = time.monotonic()
        for _ in range(4):
            assert client.get("/slow").text == "view slow"
        assert time.monotonic() - begin >= 0.3  # three tenths of a second lie between the turns of the first and last

    def test_skipped_paths_are_not_told_of_limits(self, client: httpx.Client) -> None:
        before = _remaining(client.get("/ok"), "all")
        response = client.get("/health")
        assert response.text == "view health"
        assert not [name for name in response.headers if "ratelimit" in name.lower()]
        assert _remaining(client.get("/ok"), "all") == before - 1

    def test_large_and_many_headers(self, client: httpx.Client) -> None:
        large = {"X-Large": "x" * 65_000}
        many = {f"X-Header-{number}": "x" for number in range(990)}
        for headers in (large, many):
            response = client.get("/ok", headers=headers)
            if self.server == "gunicorn":
                assert response.status_code == 200
            if response.status_code == 200:
                assert response.headers["X-RateLimit-Limit"] == "1000000"
            else:  # the server has a limit of its own
                assert response.status_code in (400, 431)
        assert client.get("/ok").status_code == 200

    def test_no_spelling_of_a_path_dodges_a_rule(self, url: str) -> None:
        reached = others = 0
        wrong: list[tuple[str, str | int | None]] = []
        last: int | None = None
        with _raw(url) as connection:
            for path in spellings():
                try:
                    connection.putrequest("GET", path, skip_accept_encoding=True)
                    connection.endheaders()
                    response = connection.getresponse()
                    body = response.read()
                except (http.client.HTTPException, OSError):  # the server will not have it
                    connection.close()
                    continue
                found = re.search(r'"guarded";r=(\d+)', response.getheader("RateLimit", ""))
                if response.status >= 500:
                    wrong.append((path, response.status))
                if body == b"view guarded":
                    reached += 1
                    if found is None or (last is not None and int(found[1]) >= last):
                        wrong.append((path, response.getheader("RateLimit")))
                if found is not None:
                    last = int(found[1])
                else:
                    others += 1
        assert not wrong
        assert reached > 50  # so that the spellings are worth something
        assert others > 5


class ThreadedSuite(Suite):
    """For servers that answer several requests at a time."""

    def test_only_so_many_wait(self, client: httpx.Client) -> None:
        with ThreadPoolExecutor(4) as pool:
            responses = list(pool.map(client.get, ["/crowd"] * 4))
        told = sorted(response.status_code for response in responses)
        assert told == [200, 200, 429, 429]  # one passed, one waited, two found no place
        refused = next(response for response in responses if response.status_code == 429)
        assert 0 < int(refused.headers["Retry-After"]) <= 16


def spellings() -> Iterator[str]:
    """Paths of a guarded view, and of many that are nearly so. Characters are bytes in the guise of Latin-1."""
    yield from ("/exact", "/items/7", "/guarded/a", "/guarded/a/b/c", "/caf%C3%A9", "/caf%c3%a9", "/caf\xc3\xa9")
    strange = (
        r". .. %2e%2e %2E. %252e%252e %2f %2F %252f %5c \ %3f %23 %25 % ;x=1 %00 %ff %C3 %20 + ~ %7e caf%e9 * {id}"
    )
    pieces = ("", *strange.split(), "\xff", "a", "health", "exact")
    for piece in pieces:
        yield from (f"/{piece}/exact", f"/exact/{piece}", f"/exact{piece}", f"/{piece}exact", f"/items/{piece}")
        yield from (f"/items/{piece}/", f"/guarded/{piece}", f"/{piece}/guarded/a", f"/items/7{piece}")
        yield from (f"/guarded/{piece}/../health", f"/guarded/..{piece}health", f"/items/{piece}?x=/health")
    for first, second in itertools.product(pieces[:12], repeat=2):
        yield from (f"/guarded/{first}/{second}", f"/{first}{second}/exact", f"/items/{first}{second}")
    yield from ("//exact", "///exact", "/exact//", "/./exact", "/x/../exact", "/%65xact", "/%65%78%61%63%74", "/EXACT")
    yield from ("/guarded/../health", "/guarded/x/../../health", "/guarded/%2e%2e/health", "/items/../health")
    yield from ("/health/../exact", "/health/%2e%2e/exact", "/exact?x", "/exact?/../../health", "/exact#health")
    yield from ("http://127.0.0.1/exact", "http://127.0.0.1/health/../exact", "/exact;a=b", "/exact%3f", "/exact%23")


class _Raw(http.client.HTTPConnection):
    """Sends a path as it is."""

    def _validate_path(self, url: str) -> None:
        pass

    def _encode_request(self, request: str) -> bytes:
        return request.encode("latin-1")


@contextmanager
def _raw(url: str) -> Iterator[_Raw]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = _Raw(parts.hostname, parts.port, timeout=10)
    try:
        yield connection
    finally:
        connection.close()


def _remaining(response: httpx.Response, rule: str) -> int:
    found = re.search(rf'"{rule}";r=(\d+)', response.headers["RateLimit"])
    assert found is not None
    return int(found[1])
