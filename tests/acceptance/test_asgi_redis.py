"""Two servers on one Redis: the limit holds for both together, and its loss follows the failure policy."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import httpx
import pytest

from tests.conftest import TIMEOUT
from tests.servers import Server, default_binary
from tests.waiting import until
from tests.webserver import serving

SECONDS = 60.0
PROBLEM = "application/problem+json"


class Pair(NamedTuple):
    """Two processes on one Redis, one of which refuses when it is away."""

    redis: Server
    opened: str
    closed: str


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    app = "tests.acceptance.apps.starlette_app:app"
    with Server(default_binary()) as redis:
        env = {"HEADGATE_TEST_STORE": f"{redis.url}?{TIMEOUT}"}
        with (
            serving("uvicorn", app, env=env) as opened,
            serving("granian", app, env={**env, "HEADGATE_TEST_FAILURE_MODE": "closed"}) as closed,
        ):
            yield Pair(redis, opened, closed)


def test_two_processes_admit_exactly_the_limit_between_them(pair: Pair, user: str) -> None:
    async def scenario() -> Counter[int]:
        seen = Counter[int]()
        async with httpx.AsyncClient(headers={"X-User": user}, timeout=SECONDS) as http:

            async def load(url: str) -> None:
                for _ in range(15):
                    seen[(await http.get(f"{url}/shared")).status_code] += 1

            await asyncio.gather(*(load(url) for _ in range(10) for url in (pair.opened, pair.closed)))
        return seen

    assert asyncio.run(scenario()) == {200: 100, 429: 200}


def test_without_redis_the_policy_decides_and_never_a_500(pair: Pair, user: str) -> None:
    with httpx.Client(headers={"X-User": user}, timeout=SECONDS) as http:
        assert http.get(f"{pair.opened}/limited").status_code == 200
        pair.redis.stop()
        try:
            opened = [http.get(f"{pair.opened}/limited") for _ in range(5)]
            closed = [http.get(f"{pair.closed}/limited") for _ in range(5)]
        finally:
            pair.redis.start()
        assert [response.status_code for response in opened] == [200] * 5
        assert [response.status_code for response in closed] == [503] * 5
        assert closed[0].headers["content-type"] == PROBLEM
        assert closed[0].headers["retry-after"] == "1"
        assert closed[0].json()["type"].endswith("#temporary-reduced-capacity")
        for url in (pair.opened, pair.closed):
            ok = f"{url}/ok"
            until(lambda: int(http.get(ok).headers.get("x-ratelimit-remaining", 0)) > 0, "all is well again")  # noqa: B023
