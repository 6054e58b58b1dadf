"""Stores by URL. What a store needs is imported when it is opened, not before."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from headgate.core.clock import Clock
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.stores.observer import StoreObserver
from headgate.stores.protocol import AsyncStore, Store

REDIS = (
    *("redis", "rediss", "unix"),
    *("redis+sentinel", "rediss+sentinel"),
    *("redis+cluster", "rediss+cluster"),
)


def open_store(url: str, clock: Clock | None, *, observer: StoreObserver | None = None) -> Store:
    """The store that a URL names, for threads. Raises `ValueError` on a URL that names none.

    `observer` is told of its calls to a server; memory has none.
    """
    if _scheme(url) == "memory":
        return _open_memory(url, clock)
    store: Store = _module("sync", url).RedisStore(url, clock=clock, observer=observer)
    return store


def open_async_store(url: str, clock: Clock | None, *, observer: StoreObserver | None = None) -> AsyncStore:
    """The store that a URL names, for asyncio. The same otherwise."""
    if _scheme(url) == "memory":
        return AsyncMemoryStore(_open_memory(url, clock))
    store: AsyncStore = _module("aio", url).AsyncRedisStore(url, clock=clock, observer=observer)
    return store


def _scheme(url: str) -> str:
    scheme = urlsplit(url).scheme
    if scheme != "memory" and scheme not in REDIS:
        raise ValueError(
            f"store: {url!r} is not a URL of a store; use memory://, redis://host:6379/0, rediss://, unix://path, "
            "redis+sentinel://host:26379,host:26379/service/0 or redis+cluster://host:7000,host:7001"
        )
    return scheme


def _open_memory(url: str, clock: Clock | None) -> MemoryStore:
    options: dict[str, int] = {}
    for name, value in parse_qsl(urlsplit(url).query, keep_blank_values=True):
        if name != "max_keys" or not value.isdecimal():
            raise ValueError(f"store URL: {name}={value!r}: memory:// knows max_keys=<whole number> only")
        options[name] = int(value)
    return MemoryStore(clock=clock, **options)


def _module(name: str, url: str) -> Any:
    try:
        return import_module(f"headgate.stores.redis.{name}")
    except ImportError as error:
        raise ImportError(f"store {url!r} needs redis and hiredis: pip install 'headgate[redis]'") from error
