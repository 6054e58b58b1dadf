"""The ASGI middleware around the app of each framework, under real servers, with real clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import http_sf
import httpx
import pytest
import websockets
from websockets.exceptions import InvalidStatus

from tests.acceptance.apps.common import BIG, CHUNK, ODD

SECONDS = 60.0  # that a client waits before it takes something for stuck
FIELDS = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit", "ratelimit-policy")
PROBLEM = "application/problem+json"


def client(url: str, user: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"X-User": user}, timeout=SECONDS)


def policies(response: httpx.Response) -> dict[str, dict[str, Any]]:
    """The limits that a response tells of, read by somebody else's parser."""
    read: Any = http_sf.parse(response.headers["RateLimit-Policy"].encode(), tltype="list")
    return {name: dict(parameters) for name, parameters in read}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/ok", 200),
        ("POST", "/ok", 200),
        ("GET", "/missing", 404),
        ("DELETE", "/ok", 405),
        ("GET", "/boom", 500),
    ],
)
def test_every_response_tells_of_limits_once(served: str, user: str, method: str, path: str, status: int) -> None:
    with client(served, user) as http:
        response = http.request(method, path)
    assert response.status_code == status
    assert [len(response.headers.get_list(field)) for field in FIELDS] == [1] * len(FIELDS)
    assert response.headers["x-ratelimit-remaining"] == "999999"
    assert policies(response) == {"all": {"q": 1_000_000, "w": 3600}}
    assert "retry-after" not in response.headers


def test_lifespan_reaches_the_app(served: str, user: str) -> None:
    with client(served, user) as http:
        assert http.get("/ok").text == "reached by lifespan"
        assert http.get("/-/lifespans").text == "1"


def test_a_refusal(served: str, user: str) -> None:
    with client(served, user) as http:
        first, second, refused = [http.get("/limited") for _ in range(3)]
        assert [first.status_code, second.status_code, refused.status_code] == [200, 200, 429]
        assert http.get("/ok").headers["x-ratelimit-remaining"] == "999997"  # a refusal costs nothing
    assert refused.headers.get_list("content-type") == [PROBLEM]
    assert int(refused.headers["retry-after"]) in range(1790, 1801)
    assert [len(refused.headers.get_list(field)) for field in FIELDS] == [1] * len(FIELDS)
    problem = refused.json()
    assert (problem["status"], problem["detail"], problem["violated-policies"]) == (429, "Enough.", ["limited"])
    assert str(problem["retry_after"]) == refused.headers["retry-after"]


def test_skipped_paths_pass_unseen(served: str, user: str) -> None:
    with client(served, user) as http:
        response = http.get("/skipped")
    assert (response.text, response.headers.get("ratelimit")) == ("reached by lifespan", None)


def test_odd_names_of_rules_can_be_read_by_others(served: str, user: str) -> None:
    with client(served, user) as http:
        response = http.get("/odd")
    names = [name if name.isascii() else "na%C3%AFve %E6%97%A5%E6%9C%AC %E2%9C%93" for name in ODD]
    assert policies(response) == {
        "all": {"q": 1_000_000, "w": 3600},
        **{name: {"q": number, "w": 3600} for number, name in enumerate(names, start=5)},
    }
    left: Any = http_sf.parse(response.headers["RateLimit"].encode(), tltype="list")
    assert [(name, parameters["r"]) for name, parameters in left] == [
        *((name, number - 1) for number, name in enumerate(names, start=5)),
        ("all", 999_999),
    ]
    assert all(0 < parameters["t"] <= 7200 for _, parameters in left)


def test_a_limit_that_is_nearly_used_up_warns(served: str, user: str) -> None:
    with client(served, user) as http:
        calm, warned = http.get("/warned"), http.get("/warned")
    assert "x-ratelimit-warning" not in calm.headers
    warning: Any = http_sf.parse(warned.headers["x-ratelimit-warning"].encode(), tltype="item")
    assert warning == ("warned", {"r": 0, "q": 2})


def test_events_arrive_one_by_one(served: str, user: str) -> None:
    """The app sends each event when the client has seen the one before."""
    with client(served, user) as http, http.stream("GET", "/events") as response, client(served, user) as other:
        assert response.headers["x-ratelimit-remaining"] == "999999"
        seen = []
        for line in response.iter_lines():
            if line:
                seen.append(line)
                other.put(f"/-/{user}-{len(seen) - 1}")
    assert seen == ["data: 0", "data: 1", "data: 2"]


def test_a_large_response_passes_in_bounded_memory(served: str, user: str) -> None:
    with client(served, user) as http:
        before, size = int(http.get("/-/memory").text), 0
        with http.stream("GET", "/big") as response:
            for chunk in response.iter_raw():
                size += len(chunk)
        grown = int(http.get("/-/memory").text) - before
    assert size == BIG
    assert "ratelimit" in response.headers
    assert grown < BIG // 1024 // 2


def test_an_upload_reaches_the_app_as_it_comes(served: str, user: str) -> None:
    """The client sends the last part when the app has told that it has the first."""

    async def scenario() -> dict[str, int]:
        async with httpx.AsyncClient(base_url=served, headers={"X-User": user}, timeout=SECONDS) as http:

            async def parts() -> AsyncIterator[bytes]:
                for _ in range(32):
                    yield CHUNK
                await http.get(f"/-/{user}-first")
                yield b"end"

            response = await http.post("/upload", content=parts())
            assert response.status_code == 200
            return dict(response.json())

    taken = asyncio.run(scenario())
    assert taken["size"] == 32 * len(CHUNK) + 3
    assert taken["chunks"] > 1


def test_websockets_are_limited_when_they_are_opened(served: str, user: str) -> None:
    server = httpx.get(f"{served}/ok").headers["server"]
    limit = None if server.startswith("granian") else "2"  # it sends no headers of ours with a handshake

    async def scenario() -> Any:
        address = served.replace("http", "ws") + "/ws"
        for _ in range(2):
            async with websockets.connect(address, additional_headers={"X-User": user}, proxy=None) as socket:
                assert socket.response is not None
                assert socket.response.headers.get("X-RateLimit-Limit") == limit
                await socket.send("hello")
                assert await socket.recv() == "hello"
        with pytest.raises(InvalidStatus) as refused:
            await websockets.connect(address, additional_headers={"X-User": user}, proxy=None)
        return refused.value.response

    response = asyncio.run(asyncio.wait_for(scenario(), SECONDS))
    assert (response.status_code, response.headers["Content-Type"]) == (429, PROBLEM)
    assert "Retry-After" in response.headers


def test_many_and_long_headers(served: str, user: str) -> None:
    """Servers may refuse them; if they do not, they are counted like any others."""
    with client(served, user) as http:
        http.get("/limited"), http.get("/limited")
        for headers in ({f"X-{number}": "v" for number in range(1_000)}, {"X-Long": "v" * 65_000}):
            try:
                response = http.get("/limited", headers=headers)
            except httpx.HTTPError:
                continue  # the server hung up
            assert response.status_code in (429, 400, 431)
            assert response.status_code != 429 or response.json()["violated-policies"] == ["limited"]
        assert http.get("/limited").status_code == 429
