"""Requests that are held back, under real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from tests.webserver import serving

SECONDS = 60.0


@pytest.fixture(scope="module", params=["uvicorn", "granian"])
def narrow_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """An app that holds back one request at a time."""
    env = {"HEADGATE_TEST_MAX_WAITING": "1"}
    with serving(request.param, "tests.acceptance.apps.starlette_app:app", env=env) as url:
        yield url


def test_throttled_requests_are_all_forwarded_in_their_turn(served: str, user: str) -> None:
    async def scenario() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=served, headers={"X-User": user}, timeout=SECONDS) as http:
            return await asyncio.gather(*(http.post("/throttled", content=b"body") for _ in range(4)))

    responses = asyncio.run(scenario())
    assert [response.text for response in responses] == ["reached by lifespan"] * 4
    # The last one's turn is three fifths of a second after the first one's.
    assert max(response.elapsed.total_seconds() for response in responses) >= 0.5


def test_when_no_place_is_left_requests_are_refused_and_cost_nothing(narrow_url: str, user: str) -> None:
    async def scenario() -> None:
        async with httpx.AsyncClient(base_url=narrow_url, headers={"X-User": user}, timeout=SECONDS) as http:
            assert (await http.get("/slow")).status_code == 200
            # Its turn is in an hour; of two that come, one has to go.
            waiting = {asyncio.create_task(http.get("/slow")) for _ in range(2)}
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            (refused,), (held,) = done, waiting
            assert refused.result().status_code == 429
            assert refused.result().json()["violated-policies"] == ["slow"]
            for _ in range(5):  # with a charge for each, the bucket would be full, and say so
                again = await http.get("/slow")
                assert (again.status_code, again.headers["x-ratelimit-remaining"]) == (429, "0")
                assert int(again.headers["retry-after"]) <= 7200
            # When its client leaves, its place is free: another one is held, and not answered.
            held.cancel()
            async with asyncio.timeout(SECONDS):
                while True:
                    try:
                        response = await http.get("/slow", timeout=1)
                    except httpx.ReadTimeout:
                        break
                    assert response.status_code == 429

    asyncio.run(scenario())
