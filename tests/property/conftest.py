"""How hard the property tests try, and the stores that they try it on.

The profile `headgate` is for `make test`; `--all` (`make test-all`) selects `thorough`, with ten times the examples.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from headgate.stores.memory import MemoryStore
from headgate.stores.redis.sync import RedisStore
from headgate.testing import FakeClock
from tests.conftest import TIMEOUT
from tests.property.world import World
from tests.servers import Server, default_binary

SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)  # a busy machine is no fault of the test
settings.register_profile("headgate", deadline=None, max_examples=20, suppress_health_check=SLOW)
settings.register_profile("thorough", deadline=None, max_examples=200, suppress_health_check=SLOW)


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile("thorough" if config.getoption("--all") else "headgate")


@pytest.fixture(scope="module", autouse=True)
def unmeasured() -> Iterator[None]:
    """Measure no coverage: thousands of examples would take three times as long, and reach what other tests reach."""
    coverage = sys.modules.get("coverage")
    measured = coverage.Coverage.current() if coverage else None
    if measured is None:
        yield
        return
    measured.stop()
    yield
    measured.start()


@pytest.fixture(scope="session")
def one_server() -> Iterator[Server]:
    """A server of the default kind: property tests are too long to run on each."""
    with Server(default_binary()) as server:
        yield server


@pytest.fixture(scope="session", params=["memory", "redis"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """The memory store, and the Redis store on one kind of server, each with a clock to move."""
    clock = FakeClock()
    if request.param == "memory":
        yield World(MemoryStore(clock=clock), clock)
        return
    server: Server = request.getfixturevalue("one_server")
    store = RedisStore(f"{server.url}?{TIMEOUT}", clock=clock)
    yield World(store, clock)
    store.close()


@pytest.fixture(scope="module")
def clock() -> FakeClock:
    """That of `redis_store`, and of what it is compared with."""
    return FakeClock()


@pytest.fixture(scope="module")
def redis_store(one_server: Server, clock: FakeClock) -> Iterator[RedisStore]:
    store = RedisStore(f"{one_server.url}?{TIMEOUT}", clock=clock)
    yield store
    store.close()
