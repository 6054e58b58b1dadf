"""Every store of ours keeps the contract that we ask of others' stores."""

from __future__ import annotations

import pytest

from headgate.testing import ReservingContract, SlotContract, StoreContract
from tests.contract.places import (
    InAsyncMemory,
    InMemory,
    OnAsyncCluster,
    OnAsyncRedis,
    OnAsyncSentinel,
    OnCluster,
    OnRedis,
    OnSentinel,
)


class TestMemoryStore(InMemory, StoreContract): ...


class TestAsyncMemoryStore(InAsyncMemory, StoreContract): ...


@pytest.mark.every_server
class TestRedisStore(OnRedis, StoreContract): ...


class TestAsyncRedisStore(OnAsyncRedis, StoreContract): ...


@pytest.mark.extended
class TestRedisStoreOfSentinel(OnSentinel, StoreContract): ...


@pytest.mark.extended
class TestAsyncRedisStoreOfSentinel(OnAsyncSentinel, StoreContract): ...


@pytest.mark.extended
class TestRedisStoreOfCluster(OnCluster, StoreContract): ...


class TestAsyncRedisStoreOfCluster(OnAsyncCluster, StoreContract): ...


class TestReservationsOfMemoryStore(InMemory, ReservingContract): ...


class TestReservationsOfAsyncMemoryStore(InAsyncMemory, ReservingContract): ...


@pytest.mark.every_server
class TestReservationsOfRedisStore(OnRedis, ReservingContract): ...


class TestReservationsOfAsyncRedisStore(OnAsyncRedis, ReservingContract): ...


class TestReservationsOfRedisStoreOfCluster(OnCluster, ReservingContract): ...


class TestReservationsOfAsyncRedisStoreOfCluster(OnAsyncCluster, ReservingContract): ...


class TestSlotsOfMemoryStore(InMemory, SlotContract): ...


class TestSlotsOfAsyncMemoryStore(InAsyncMemory, SlotContract): ...


@pytest.mark.every_server
class TestSlotsOfRedisStore(OnRedis, SlotContract): ...


class TestSlotsOfAsyncRedisStore(OnAsyncRedis, SlotContract): ...


class TestSlotsOfRedisStoreOfSentinel(OnSentinel, SlotContract): ...


class TestSlotsOfRedisStoreOfCluster(OnCluster, SlotContract): ...


class TestSlotsOfAsyncRedisStoreOfCluster(OnAsyncCluster, SlotContract): ...
