"""Fixtures for all tests: real servers, a clean database for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import Postgres
from tests.servers import Server, binaries

TIMEOUT = "timeout=10"  # seconds: the machine that tests run on may be busy; deadlines have tests of their own


@pytest.fixture(scope="session", params=sorted(binaries()))
def redis_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Each kind of server at hand, in turn."""
    with Server(binaries()[request.param]) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: Server) -> str:
    """The URL of an empty database on `redis_server`, with a deadline that a busy machine keeps."""
    with redis_server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)  # what an earlier test has left open
        client.flushall()
    return f"{redis_server.url}?{TIMEOUT}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server."""
    with Postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Postgres) -> str:
    """The URL of an empty database on `postgres`."""
    return postgres.emptied()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/rules.db"
    url: str = request.getfixturevalue("postgres_url")
    return url
