"""Fixtures for all tests: real servers, a clean database for each test; and what runs when.

`make test` runs what tells most in little time. `make test-all` passes `--all`: tests marked `extended` run too, every
store test runs on every kind of server, and property tests try more examples.
"""

from __future__ import annotations

import gc
import re
import shutil
import ssl
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from tests.postgres import Postgres
from tests.servers import Server, binaries, default_kind
from tests.topologies import Cluster

TESTS = Path(__file__).parent
CONTRACTS = TESTS.parent / "src/headgate/testing"
TIMEOUT = "timeout=10"  # seconds: the machine that tests run on may be busy; deadlines have tests of their own


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run extended tests too, on every kind of server")


def pytest_configure() -> None:
    """Collect no garbage while tests are imported, which makes hardly any."""
    gc.disable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-k name`, import only the files that have the name, so that the first test runs at once."""
    wanted = wanted_by(config.getoption("keyword"))
    if collection_path.suffix != ".py" or wanted is None:
        return None
    text = f"{collection_path.relative_to(config.rootpath)} {collection_path.read_text()}".lower()
    return None if any(name in text for name in wanted) else True


@cache
def wanted_by(expression: str) -> frozenset[str] | None:
    """Return what files with such tests have: names, shared fixtures with parameters of these names, or contracts.

    None: tests in any file may match, as with `not`.
    """
    words = frozenset(re.findall(r"\w+", expression.lower())) - {"and", "or"}
    shared = [file.read_text() for file in TESTS.rglob("*.py") if file.parent == TESTS or file.name == "conftest.py"]
    blocks = [block.strip() for text in shared for block in text.split("\n\n\n")]
    having = [block for block in blocks if words.intersection(re.findall(r'"(\w+)"', block.lower()))]
    if not words or "not" in words or not all(block.startswith("@pytest.fixture") for block in having):
        return None
    fixtures: set[str] = set()
    while having:
        fixtures.update(name for block in having for name in re.findall(r"^def (\w+)", block, re.MULTILINE))
        blocks = [block for block in blocks if block not in having]
        having = [block for block in blocks if block.startswith("@pytest.fixture") and names_in(block, fixtures)]
    contracts = [file.read_text() for file in CONTRACTS.glob("*.py")]
    if any(word in text for word in words for text in contracts):
        fixtures.update(
            name.lower() for text in contracts for name in re.findall(r"^class (\w+Contract)", text, re.MULTILINE)
        )
    return words | fixtures


def names_in(block: str, names: set[str]) -> bool:
    return not names.isdisjoint(re.findall(r"\w+", block))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    extended = [item for item in items if item.get_closest_marker("extended")]
    if extended:
        config.hook.pytest_deselected(items=extended)
        items[:] = [item for item in items if not item.get_closest_marker("extended")]


def pytest_collection_finish() -> None:
    """Keep the garbage collector from modules and tests, which live to the end: looking at them takes 0.2 s."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that need a server on one kind, and those marked `every_server` on each kind at hand."""
    if "redis_server" in metafunc.fixturenames:
        every = metafunc.config.getoption("--all") or metafunc.definition.get_closest_marker("every_server")
        kinds = sorted(binaries()) if every else [default_kind()]
        metafunc.parametrize("redis_server", kinds, indirect=True, scope="session")


@pytest.fixture(scope="session")
def thorough(pytestconfig: pytest.Config) -> bool:
    """Whether `--all` was given: a test that repeats something may then do so more often."""
    return bool(pytestconfig.getoption("--all"))


@pytest.fixture(scope="module", autouse=True)
def collected_garbage() -> Iterator[None]:
    """Collect garbage after each file, so that what a test left open fails that file and not a later one."""
    yield
    gc.collect()  # such as a pool of connections, whose finalizer refers to them …
    gc.collect()  # … and then these


@pytest.fixture(scope="session", autouse=True)
def one_trust() -> Iterator[None]:
    """Let the clients of tests share one TLS context of the system's authorities: making one takes 20 ms."""

    def context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        own = verify is not True or cert is not None
        return make(verify, cert, trust_env) if own else shared(trust_env)

    import httpx

    make = httpx.create_ssl_context
    shared = cache(lambda trust_env: make(trust_env=trust_env))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", context)
        yield


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the kind that `pytest_generate_tests` chose."""
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
    from headgate.db import migrate

    migrate(f"sqlite:///{file}")
    return file


@pytest.fixture(scope="session")
def migrated_template(postgres: Postgres) -> str:
    """The name of a PostgreSQL database with Headgate's tables, to be copied."""
    from headgate.db import migrate

    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE migrated")
    migrate(postgres.database("migrated"))
    return "migrated"


@pytest.fixture(params=["sqlite", "postgresql"])
def migrated_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database with Headgate's tables, which are empty; of each kind in turn."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("migrated_file"), tmp_path / "rules.db")
        return f"sqlite:///{tmp_path}/rules.db"
    server: Postgres = request.getfixturevalue("postgres")
    return server.copy(request.getfixturevalue("migrated_template"))
