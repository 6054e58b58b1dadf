"""The web apps in examples/, started as their first lines say, and asked over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.webserver import serving

PROBLEM = "application/problem+json"


def statuses(http: httpx.Client, path: str, times: int, **headers: str) -> list[int]:
    return [http.get(path, headers=headers).status_code for _ in range(times)]


@pytest.mark.parametrize("framework", ["starlette", "litestar", "quart"])
def test_apps_with_the_asgi_middleware(framework: str) -> None:
    with serving("uvicorn", f"examples.{framework}_app:app") as url, httpx.Client(base_url=url, timeout=60) as http:
        home = http.get("/")
        assert home.json() == {"hello": "world", "remaining": 99}
        assert home.headers["RateLimit-Policy"] == '"address";q=100;w=3600'
        answers = [http.get("/search") for _ in range(12)]  # more than fit even if a minute ends in between
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert answers[0].status_code == 200
        assert refused.headers["Content-Type"] == PROBLEM
        assert refused.json()["detail"] == "Five searches a minute."
        assert http.get("/nowhere").headers["X-RateLimit-Limit"] == "100"


@pytest.fixture(scope="module", params=["uvicorn", "granian"])
def fastapi(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with serving(request.param, "examples.fastapi_app:app") as url, httpx.Client(base_url=url, timeout=60) as http:
        yield http


def test_fastapi_counts_by_route(fastapi: httpx.Client) -> None:
    answers = [fastapi.get(f"/users/{number}") for number in range(12)]
    assert answers[0].json() == {"user": 0}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["violated-policies"] == ["GET /users/{user_id}"]


def test_fastapi_counts_by_key_and_cost(fastapi: httpx.Client) -> None:
    assert statuses(fastapi, "/export?full=1", 3, **{"X-Organisation": "a"}) == [200, 200, 429]
    assert statuses(fastapi, "/export?full=1", 1, **{"X-Organisation": "b"}) == [200]


def test_fastapi_shares_a_limit_in_a_router(fastapi: httpx.Client) -> None:
    answers = [fastapi.get(f"/reports/{name}") for _ in range(11) for name in ("daily", "weekly")]
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["violated-policies"] == ["reports"]


def test_fastapi_counts_the_handshakes_of_websockets(fastapi: httpx.Client) -> None:
    address = str(fastapi.base_url.copy_with(scheme="ws", path="/live"))
    for _ in range(2):
        with connect(address, proxy=None) as socket:
            assert socket.recv() == "hello"
    with pytest.raises(InvalidStatus) as refused:
        connect(address, proxy=None)
    response = refused.value.response
    assert (response.status_code, response.headers["Content-Type"]) == (429, PROBLEM)
    assert response.headers.get_all("RateLimit-Policy") == ['"WEBSOCKET /live";q=2;w=3600, "address";q=100;w=3600']


def test_fastapi_shows_refusals_in_its_documentation(fastapi: httpx.Client) -> None:
    paths = fastapi.get("/openapi.json").json()["paths"]
    limited = {path for path, operations in paths.items() if "429" in operations["get"]["responses"]}
    assert limited == {"/users/{user_id}", "/export", "/reports/daily", "/reports/weekly"}
    assert "RateLimit" not in fastapi.get("/health").headers
