"""Servers for acceptance tests, each started once, with the app of one framework."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from secrets import token_hex

import httpx
import pytest

from tests.webserver import serving

FRAMEWORKS = ("starlette", "fastapi", "litestar", "quart")
DEFAULT = {("uvicorn", "starlette"), ("granian", "fastapi"), ("uvicorn", "litestar"), ("uvicorn", "quart")}
SERVERS = [
    pytest.param(
        (server, framework),
        marks=() if (server, framework) in DEFAULT else pytest.mark.extended,
        id=f"{framework}-{server}",
    )
    for server, framework in [*product(("uvicorn", "granian"), FRAMEWORKS), ("hypercorn", "starlette")]
]


@pytest.fixture(scope="session", params=SERVERS)
def served(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of each framework's app under each server in turn. At the end, what it sent was in order."""
    server, framework = request.param
    with serving(server, f"tests.acceptance.apps.{framework}_app:app") as url:
        yield url
        assert httpx.get(f"{url}/-/wrong").text == ""


@pytest.fixture(scope="session")
def starlette_url() -> Iterator[str]:
    """The URL of Starlette's app under uvicorn, for what does not depend on the framework."""
    with serving("uvicorn", "tests.acceptance.apps.starlette_app:app") as url:
        yield url


@pytest.fixture
def user() -> str:
    """Somebody who has not been here before."""
    return token_hex(8)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.extended)])
def migrated_url(migrated_url: str) -> str:
    """The same, by default on SQLite alone: the contracts of rules, changes and tokens run on both."""
    return migrated_url
