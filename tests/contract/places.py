"""Where the states are that a contract is proved with: put one of these before the contract."""

from __future__ import annotations

import pytest

from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.stores.redis.aio import AsyncRedisStore
from headgate.stores.redis.sync import RedisStore
from headgate.testing import FakeClock


class InMemory:
    def make_store(self, clock: FakeClock) -> MemoryStore:
        return MemoryStore(clock=clock)


class InAsyncMemory:
    def make_store(self, clock: FakeClock) -> AsyncMemoryStore:
        return AsyncMemoryStore(MemoryStore(clock=clock))


class _Elsewhere:
    url: str

    def make_store(self, clock: FakeClock) -> RedisStore:
        return RedisStore(self.url, clock=clock)


class _AsyncElsewhere:
    url: str

    def make_store(self, clock: FakeClock) -> AsyncRedisStore:
        return AsyncRedisStore(self.url, clock=clock)


class _Single:
    """Each kind of server at hand."""

    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str) -> None:
        self.url = redis_url


class _Sentinel:
    @pytest.fixture(autouse=True)
    def _server(self, sentinel_url: str) -> None:
        self.url = sentinel_url


class _Cluster:
    @pytest.fixture(autouse=True)
    def _server(self, cluster_url: str) -> None:
        self.url = cluster_url


class OnRedis(_Single, _Elsewhere): ...


class OnAsyncRedis(_Single, _AsyncElsewhere): ...


class OnSentinel(_Sentinel, _Elsewhere): ...


class OnAsyncSentinel(_Sentinel, _AsyncElsewhere): ...


class OnCluster(_Cluster, _Elsewhere): ...


class OnAsyncCluster(_Cluster, _AsyncElsewhere): ...
