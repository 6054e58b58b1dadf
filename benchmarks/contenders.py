"""Headgate and its peers behind one small interface: what is timed is what their documentation tells users
to call.

A contender is opened with an algorithm, by Headgate's name for it, and a limit per hour. It then has
`check`, the very function or method that a user calls, with the fewest possible layers of ours in between
(`functools.partial` at most). Peers are imported when they are opened: one that is not installed is
reported and left out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Protocol

from headgate import AsyncLimiter, Decision, Limiter

ALGORITHMS = (
    "fixed_window",
    "sliding_window_counter",
    "sliding_window_log",
    "token_bucket",
    "leaky_bucket",
    "gcra",
)


def nothing() -> None:
    """Closes what needs no closing."""


async def nothing_async() -> None:
    """The same, awaited."""


@dataclass(frozen=True)
class Contender:
    """An open limiter. `allowed` reads what `check` returned; `figures` also asks what is left."""

    check: Callable[[str], Any]
    allowed: Callable[[Any], bool] = bool
    figures: Callable[[str], Any] | None = None
    close: Callable[[], object] = nothing


@dataclass(frozen=True)
class AsyncContender:
    """The same for asyncio."""

    check: Callable[[str], Awaitable[Any]]
    allowed: Callable[[Any], bool] = bool
    close: Callable[[], Awaitable[object]] = nothing_async


class Peer(Protocol):
    """A library. Of `packages`, all must be there."""

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    algorithms: ClassVar[tuple[str, ...]]

    def memory(self, algorithm: str, limit: int) -> Contender: ...

    def redis(self, algorithm: str, limit: int, url: str) -> Contender: ...

    async def asyncio(self, algorithm: str, limit: int, url: str) -> AsyncContender: ...


class Headgate:
    name: ClassVar[str] = "headgate"
    packages: ClassVar[tuple[str, ...]] = ("headgate",)
    algorithms: ClassVar[tuple[str, ...]] = ALGORITHMS

    def memory(self, algorithm: str, limit: int) -> Contender:
        return self._contender(Limiter(f"{limit}/hour {algorithm}"))

    def redis(self, algorithm: str, limit: int, url: str) -> Contender:
        return self._contender(Limiter(f"{limit}/hour {algorithm}", store=f"{url}?timeout=5"))

    async def asyncio(self, algorithm: str, limit: int, url: str) -> AsyncContender:
        limiter = AsyncLimiter(f"{limit}/hour {algorithm}", store=f"{url}?timeout=5")
        return AsyncContender(limiter.check, self._allowed, limiter.close)

    def _contender(self, limiter: Limiter) -> Contender:
        def figures(subject: str) -> tuple[int, float]:
            decision = limiter.check(subject)
            return decision.remaining, decision.reset_after

        return Contender(limiter.check, self._allowed, figures, limiter.close)

    @staticmethod
    def _allowed(decision: Decision) -> bool:
        """Also makes sure that it was the store that decided: a failure mode would be quick."""
        if decision.reason not in ("within_limit", "over_limit"):
            raise RuntimeError(f"the store did not decide: {decision.reason}")
        return decision.allowed


class Limits:
    name: ClassVar[str] = "limits"
    packages: ClassVar[tuple[str, ...]] = ("limits",)
    algorithms: ClassVar[tuple[str, ...]] = ("fixed_window", "sliding_window_counter", "sliding_window_log")
    implementation: ClassVar[str] = "redispy"
    _strategies: ClassVar[dict[str, str]] = {
        "fixed_window": "FixedWindowRateLimiter",
        "sliding_window_counter": "SlidingWindowCounterRateLimiter",
        "sliding_window_log": "MovingWindowRateLimiter",
    }

    def memory(self, algorithm: str, limit: int) -> Contender:
        from limits.storage import MemoryStorage

        storage = MemoryStorage()
        return self._contender(algorithm, limit, storage, storage.timer.cancel)

    def redis(self, algorithm: str, limit: int, url: str) -> Contender:
        from limits.storage import RedisStorage

        storage = RedisStorage(url)
        client: Any = storage.storage
        return self._contender(algorithm, limit, storage, client.close)

    def _contender(self, algorithm: str, limit: int, storage: Any, close: Callable[[], object]) -> Contender:
        from limits import RateLimitItemPerHour, strategies

        item = RateLimitItemPerHour(limit)
        strategy = getattr(strategies, self._strategies[algorithm])(storage)

        def figures(subject: str) -> Any:
            strategy.hit(item, subject)
            return strategy.get_window_stats(item, subject)

        return Contender(partial(strategy.hit, item), bool, figures, close)

    async def asyncio(self, algorithm: str, limit: int, url: str) -> AsyncContender:
        from limits import RateLimitItemPerHour
        from limits.aio import strategies
        from limits.aio.storage import RedisStorage

        implementation: Any = self.implementation
        storage = RedisStorage(f"async+{url}", implementation=implementation)
        strategy = getattr(strategies, self._strategies[algorithm])(storage)
        bridge: Any = storage.bridge

        async def close() -> None:
            if self.implementation == "redispy":
                await bridge.storage.aclose()
            else:
                bridge.storage.connection_pool.disconnect()

        return AsyncContender(partial(strategy.hit, RateLimitItemPerHour(limit)), bool, close)


class LimitsCoredis(Limits):
    """limits through coredis, its default client for asyncio."""

    name: ClassVar[str] = "limits (coredis)"
    packages: ClassVar[tuple[str, ...]] = ("limits", "coredis")
    implementation: ClassVar[str] = "coredis"


class Throttled:
    name: ClassVar[str] = "throttled-py"
    packages: ClassVar[tuple[str, ...]] = ("throttled-py",)
    _types: ClassVar[dict[str, str]] = {
        "fixed_window": "fixed_window",
        "sliding_window_counter": "sliding_window",
        "token_bucket": "token_bucket",
        "leaky_bucket": "leaking_bucket",
        "gcra": "gcra",
    }
    algorithms: ClassVar[tuple[str, ...]] = tuple(_types)

    def memory(self, algorithm: str, limit: int) -> Contender:
        from throttled import MemoryStore

        return self._contender(algorithm, limit, MemoryStore())

    def redis(self, algorithm: str, limit: int, url: str) -> Contender:
        from throttled import RedisStore

        return self._contender(algorithm, limit, RedisStore(server=url))

    def _contender(self, algorithm: str, limit: int, store: Any) -> Contender:
        from throttled import Throttled as Throttle
        from throttled import rate_limiter

        throttle = Throttle(using=self._types[algorithm], quota=rate_limiter.per_hour(limit), store=store)

        def figures(subject: str) -> tuple[int, float]:
            state = throttle.limit(subject).state
            return state.remaining, state.reset_after

        return Contender(throttle.limit, self._allowed, figures)

    async def asyncio(self, algorithm: str, limit: int, url: str) -> AsyncContender:
        from throttled import asyncio, rate_limiter

        store = asyncio.RedisStore(server=url)
        throttle = asyncio.Throttled(using=self._types[algorithm], quota=rate_limiter.per_hour(limit), store=store)
        backend: Any = store._backend

        async def close() -> None:
            await backend.get_client().connection_pool.disconnect()

        return AsyncContender(throttle.limit, self._allowed, close)

    @staticmethod
    def _allowed(result: Any) -> bool:
        return not result.limited


class Pyrate:
    """Its bucket is one key, whatever name an item has: here, all subjects share it."""

    name: ClassVar[str] = "PyrateLimiter"
    packages: ClassVar[tuple[str, ...]] = ("pyrate-limiter",)
    algorithms: ClassVar[tuple[str, ...]] = ("fixed_window", "sliding_window_log", "token_bucket", "gcra")

    def memory(self, algorithm: str, limit: int) -> Contender:
        from pyrate_limiter import Duration, InMemoryBucket, Rate, StateBucket

        rates = [Rate(limit, Duration.HOUR)]
        kind = self._algorithm(algorithm)
        is_log = algorithm in ("fixed_window", "sliding_window_log")
        return self._contender(InMemoryBucket(rates, kind) if is_log else StateBucket(rates, kind))

    def redis(self, algorithm: str, limit: int, url: str) -> Contender:
        import redis

        client = redis.Redis.from_url(url)
        return self._contender(self._bucket(algorithm, limit, client), client.close)

    def _contender(self, bucket: Any, close: Callable[[], object] = nothing) -> Contender:
        from pyrate_limiter import Limiter

        limiter = Limiter(bucket)

        def close_all() -> None:
            limiter.close()
            close()

        return Contender(partial(limiter.try_acquire, blocking=False), bool, None, close_all)

    async def asyncio(self, algorithm: str, limit: int, url: str) -> AsyncContender:
        from inspect import isawaitable

        from pyrate_limiter import Limiter
        from redis.asyncio import Redis

        client = Redis.from_url(url)
        bucket = self._bucket(algorithm, limit, client)
        limiter = Limiter(await bucket if isawaitable(bucket) else bucket)

        async def close() -> None:
            limiter.close()
            await client.aclose()

        # Not try_acquire_async, which takes one at a time: this one's awaitables travel side by side.
        check: Any = partial(limiter.try_acquire, blocking=False)
        return AsyncContender(check, bool, close)

    def _bucket(self, algorithm: str, limit: int, client: Any) -> Any:
        from pyrate_limiter import Duration, Rate, RedisBucket, RedisStateStore, StateBucket

        rates = [Rate(limit, Duration.HOUR)]
        kind = self._algorithm(algorithm)
        if algorithm in ("fixed_window", "sliding_window_log"):
            return RedisBucket.init(rates, client, "bucket", kind)
        return StateBucket(rates, kind, RedisStateStore(client, "bucket"))

    @staticmethod
    def _algorithm(algorithm: str) -> Any:
        import pyrate_limiter

        names = {
            "fixed_window": "FixedWindow",
            "sliding_window_log": "SlidingWindowLog",
            "token_bucket": "TokenBucket",
            "gcra": "GCRA",
        }
        return getattr(pyrate_limiter, names[algorithm])()


PEERS: tuple[Peer, ...] = (Headgate(), Limits(), LimitsCoredis(), Throttled(), Pyrate())


def absent(package: str) -> bool:
    """Whether a package is not installed, or in a version that its user cannot work with."""
    try:
        major = int(version(package).split(".")[0])
    except PackageNotFoundError:
        return True
    return package == "coredis" and major >= 6  # limits 5 asks for one before that


def missing() -> list[str]:
    """What would have to be installed for all peers to take part."""
    packages = dict.fromkeys(package for peer in PEERS for package in peer.packages if absent(package))
    return ["coredis<6" if package == "coredis" else package for package in packages]


def peers_for(algorithm: str, *, is_async: bool = False) -> list[Peer]:
    """Those that have this algorithm and are installed, Headgate first. coredis is for asyncio only."""
    return [
        peer
        for peer in PEERS
        if algorithm in peer.algorithms
        and (is_async or "coredis" not in peer.packages)
        and not any(map(absent, peer.packages))
    ]
