"""Fixtures for all tests: real servers, a clean database for each test."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from headgate.db import migrate
from tests.postgres import Postgres
from tests.servers import Server, binaries
from tests.topologies import Cluster

TIMEOUT = "timeout=10"  # seconds: the machine that tests run on may be busy; deadlines have tests of their own


@pytest.fixture(scope="session", autouse=True)
def one_trust() -> Iterator[None]:
    """Clients of tests read once whom the system trusts: each by itself, that takes longer than most requests."""
    trusted = cache(httpx.create_ssl_context)

    def context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        own = verify is not True or cert is not None
        return httpx.create_ssl_context(verify, cert, trust_env) if own else trusted(trust_env=trust_env)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", context)
        yield


@pytest.fixture(scope="session", params=sorted(binaries()))
def redis_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Each kind of server at hand, in turn."""
    with Server(binaries()[request.param]) as server:
        yield server


@pytest.fixture(scope="session")
def redis_broom(redis_server: Server) -> Iterator[redis.Redis]:
    """The client that empties `redis_server` between tests."""
    with redis.Redis(port=redis_server.port, driver_info=None) as client:
        yield client


@pytest.fixture
def redis_url(redis_server: Server, redis_broom: redis.Redis) -> str:
    """The URL of an empty database on `redis_server`, with a deadline that a busy machine keeps."""
    with redis_broom.pipeline(transaction=False) as commands:
        commands.client_kill_filter(_type="normal", skipme=True)  # what an earlier test has left open
        commands.flushall()
        commands.execute()
    return f"{redis_server.url}?{TIMEOUT}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster of three masters."""
    with Cluster() as cluster:
        yield cluster


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


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database with Headgate's tables, to be copied: that is quicker than to make them."""
    file: Path = tmp_path_factory.mktemp("migrated") / "rules.db"
    migrate(f"sqlite:///{file}")
    return file


@pytest.fixture
def migrated_url(database_url: str, tmp_path: Path, migrated_file: Path) -> str:
    """The same with Headgate's tables in it, which are empty."""
    if database_url.startswith("sqlite:"):
        shutil.copy(migrated_file, tmp_path / "rules.db")
    else:
        migrate(database_url)
    return database_url
