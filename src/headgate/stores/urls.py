"""Open stores by URL. Imports what a store needs only when it is opened.

No error message shows any part of a URL that may be a password.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from headgate.core.clock import Clock
from headgate.core.key import checked_prefix
from headgate.errors import InvalidStore

if TYPE_CHECKING:
    from headgate.stores.memory import MemoryStore
    from headgate.stores.protocol import AsyncStore, Store, StoreObserver

REDIS = (
    *("redis", "rediss", "unix"),
    *("redis+sentinel", "rediss+sentinel"),
    *("redis+cluster", "rediss+cluster"),
)
SCHEMES = ("memory", "embedded", *REDIS)
FORMS = (
    "memory://, embedded://, redis://host:6379/0, rediss://, unix://path, "
    "redis+sentinel://host:26379,host:26379/service/0 or redis+cluster://host:7000,host:7001"
)
_AUTHORITY: Final = re.compile(r"(?<=://)[^/?#]*").search  # user, password and hosts


def open_store(url: str, clock: Clock | None, *, observer: StoreObserver | None = None) -> Store:
    """Open the store of a URL, for threads.

    Raises `InvalidStore` if the URL is not that of a store, and `ImportError` if a required package is missing.
    `embedded://` raises `StoreUnavailable` if no server can be started.

    The store reports its calls to a server to `observer`; a memory store makes no calls.
    """
    scheme = _scheme(url)
    if scheme == "memory":
        return _open_memory(url, clock)
    store: Store
    if scheme == "embedded":
        store = _module("embedded.sync", url).EmbeddedStore(url, clock=clock, observer=observer)
    else:
        store = _module("redis.sync", url).RedisStore(url, clock=clock, observer=observer)
    return store


def open_async_store(url: str, clock: Clock | None, *, observer: StoreObserver | None = None) -> AsyncStore:
    """Open the store of a URL, for asyncio. Raises as `open_store` does."""
    scheme = _scheme(url)
    if scheme == "memory":
        opened: AsyncStore = _module("memory", url).AsyncMemoryStore(_open_memory(url, clock))
        return opened
    store: AsyncStore
    if scheme == "embedded":
        store = _module("embedded.aio", url).AsyncEmbeddedStore(url, clock=clock, observer=observer)
    else:
        store = _module("redis.aio", url).AsyncRedisStore(url, clock=clock, observer=observer)
    return store


def check_url(url: str) -> None:
    """Raise what opening the store would raise because of its URL, without opening it or starting a server."""
    scheme = _scheme(url)
    if scheme == "memory":
        _open_memory(url, None)
    elif scheme == "embedded":
        options = _module("embedded.options", url).read_url(url)
        _module("redis.options", url).read_url(f"unix:///socket?{options.query}")
    else:
        _module("redis.options", url).read_url(url)


def no_store(store: object) -> InvalidStore:
    """Return the error for something that is neither a URL nor a store."""
    return InvalidStore(
        f"store: must be a URL or a store, got an object of type {type(store).__qualname__}; use {FORMS}"
    )


def _scheme(url: str) -> str:
    scheme = parts_of(url).scheme
    if scheme not in SCHEMES:
        raise InvalidStore(f"store: {_shown(url)} is not a store URL; use {FORMS}")
    return scheme


def _open_memory(url: str, clock: Clock | None) -> MemoryStore:
    options: dict[str, int] = {}
    for name, value in parse_qsl(parts_of(url).query, keep_blank_values=True):
        if name == "prefix":  # has no effect: no other process shares this store
            read_prefix(value)
        elif name == "max_keys" and value.isdecimal() and int(value) > 0:
            options[name] = int(value)
        else:
            known = "max_keys=<whole number>, from 1, and prefix"
            raise InvalidStore(f"store URL: {name}={value!r}: memory:// takes only {known}")
    store: MemoryStore = _module("memory", url).MemoryStore(clock=clock, **options)
    return store


def _module(name: str, url: str) -> Any:
    if name.startswith("embedded") and sys.platform == "win32":
        raise ImportError(f"store {_shown(url)} needs Linux or macOS: use memory:// or redis://host:6379/0")
    try:
        return import_module(f"headgate.stores.{name}")
    except ImportError as error:
        extra = "embedded" if name.startswith("embedded") else "redis"
        raise ImportError(f"store {_shown(url)} needs redis and hiredis: pip install 'headgate[{extra}]'") from error


def _shown(url: str) -> str:
    """Return a URL without user, password and options, for messages."""
    _, at, rest = url.rpartition("@")
    return repr((f"{urlsplit(url).scheme}://***@{rest}" if at else url).partition("?")[0])


def parts_of(url: str) -> SplitResult:
    """Split a URL. Raises `InvalidStore` if a delimiter is not escaped, as often happens in generated passwords."""
    try:
        parts = _split(url)
    except ValueError:
        raise InvalidStore(_message_of("it cannot be parsed")) from None
    to_host = parts.scheme.partition("+")[0] in ("redis", "rediss")  # others have no host, and any path
    if "#" in url or (to_host and "@" in parts.path + parts.query):
        raise InvalidStore(_message_of("a / ? # or @ is in the wrong place"))
    return parts


def _split(url: str) -> SplitResult:
    """Split a URL that may have several hosts. Newer versions of `urlsplit` reject lists with IPv6 addresses."""
    authority = _AUTHORITY(url)
    if authority is None or "," not in authority[0]:
        return urlsplit(url)
    return urlsplit(url[: authority.start()] + url[authority.end() :])._replace(netloc=authority[0])


def read_options(parts: SplitResult) -> list[tuple[str, str]]:
    """Return the names and values of a URL's options. Raises `InvalidStore`."""
    try:
        return parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:  # its message may show a password
        raise InvalidStore(_message_of("an option is not of the form name=value")) from None


def read_prefix(value: str) -> str:
    """Parse the option `prefix`, with which all keys and channels of a store begin. Raises `InvalidStore`."""
    try:
        return checked_prefix(value)
    except ValueError as error:
        raise InvalidStore(f"store URL: prefix: {error}") from None


def with_prefix(url: str, prefix: str | None) -> str:
    """Return the URL with a prefix, unless it has its own."""
    options = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    if prefix is None or any(name == "prefix" for name, _ in options):
        return url
    return f"{url}{'&' if '?' in url else '?'}prefix={prefix}"


def _message_of(what: str) -> str:
    return f"store URL: {what}: in user, password, path and options, escape / ? # @ as %2F %3F %23 %40"
