"""Every store of ours keeps the contract that we ask of others' stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.stores.redis.aio import AsyncRedisStore
from headgate.stores.redis.sync import RedisStore
from headgate.testing import FakeClock, ReservingContract, StoreContract
from tests.conftest import TIMEOUT
from tests.topologies import Cluster, SentinelTrio


class TestMemoryStore(StoreContract):
    def make_store(self, clock: FakeClock) -> MemoryStore:
        return MemoryStore(clock=clock)


class TestAsyncMemoryStore(StoreContract):
    def make_store(self, clock: FakeClock) -> AsyncMemoryStore:
        return AsyncMemoryStore(MemoryStore(clock=clock))


class TestRedisStore(StoreContract):
    """On each kind of server at hand."""

    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str) -> None:
        self.url = redis_url

    def make_store(self, clock: FakeClock) -> RedisStore:
        return RedisStore(self.url, clock=clock)


class TestAsyncRedisStore(StoreContract):
    """On each kind of server at hand."""

    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str) -> None:
        self.url = redis_url

    def make_store(self, clock: FakeClock) -> AsyncRedisStore:
        return AsyncRedisStore(self.url, clock=clock)


class TestReservationsOfMemoryStore(ReservingContract):
    def make_store(self, clock: FakeClock) -> MemoryStore:
        return MemoryStore(clock=clock)


class TestReservationsOfAsyncMemoryStore(ReservingContract):
    def make_store(self, clock: FakeClock) -> AsyncMemoryStore:
        return AsyncMemoryStore(MemoryStore(clock=clock))


class TestReservationsOfRedisStore(ReservingContract):
    """On each kind of server at hand."""

    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str) -> None:
        self.url = redis_url

    def make_store(self, clock: FakeClock) -> RedisStore:
        return RedisStore(self.url, clock=clock)


class TestReservationsOfAsyncRedisStore(ReservingContract):
    """On each kind of server at hand."""

    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str) -> None:
        self.url = redis_url

    def make_store(self, clock: FakeClock) -> AsyncRedisStore:
        return AsyncRedisStore(self.url, clock=clock)


@pytest.fixture(scope="module")
def trio() -> Iterator[SentinelTrio]:
    with SentinelTrio() as trio:
        yield trio


@pytest.fixture(scope="module")
def whole_cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def sentinel_url(trio: SentinelTrio) -> str:
    """The URL of a master behind Sentinel."""
    return f"{trio.url}?{TIMEOUT}"


@pytest.fixture
def cluster_url(whole_cluster: Cluster) -> str:
    """The URL of an empty cluster."""
    whole_cluster.empty()
    return f"{whole_cluster.url}?{TIMEOUT}"


class TestRedisStoreOfSentinel(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, sentinel_url: str) -> None:
        self.url = sentinel_url

    def make_store(self, clock: FakeClock) -> RedisStore:
        return RedisStore(self.url, clock=clock)


class TestAsyncRedisStoreOfSentinel(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, sentinel_url: str) -> None:
        self.url = sentinel_url

    def make_store(self, clock: FakeClock) -> AsyncRedisStore:
        return AsyncRedisStore(self.url, clock=clock)


class TestRedisStoreOfCluster(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, cluster_url: str) -> None:
        self.url = cluster_url

    def make_store(self, clock: FakeClock) -> RedisStore:
        return RedisStore(self.url, clock=clock)


class TestAsyncRedisStoreOfCluster(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, cluster_url: str) -> None:
        self.url = cluster_url

    def make_store(self, clock: FakeClock) -> AsyncRedisStore:
        return AsyncRedisStore(self.url, clock=clock)


class TestReservationsOfRedisStoreOfCluster(ReservingContract):
    @pytest.fixture(autouse=True)
    def _server(self, cluster_url: str) -> None:
        self.url = cluster_url

    def make_store(self, clock: FakeClock) -> RedisStore:
        return RedisStore(self.url, clock=clock)


class TestReservationsOfAsyncRedisStoreOfCluster(ReservingContract):
    @pytest.fixture(autouse=True)
    def _server(self, cluster_url: str) -> None:
        self.url = cluster_url

    def make_store(self, clock: FakeClock) -> AsyncRedisStore:
        return AsyncRedisStore(self.url, clock=clock)
