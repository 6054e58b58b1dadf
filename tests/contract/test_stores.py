"""Every store of ours keeps the contract that we ask of others' stores."""

from __future__ import annotations

import pytest

from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.stores.redis.aio import AsyncRedisStore
from headgate.stores.redis.sync import RedisStore
from headgate.testing import FakeClock, ReservingContract, StoreContract


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
