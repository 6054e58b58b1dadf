"""The embedded store for asyncio."""

from __future__ import annotations

from headgate.core.clock import Clock
from headgate.stores.embedded.hold import Hold
from headgate.stores.embedded.watch import Watch
from headgate.stores.observer import StoreObserver
from headgate.stores.redis.aio import AsyncRedisStore


class AsyncEmbeddedStore(AsyncRedisStore):
    """`EmbeddedStore`, awaited. Making one blocks until the server answers: for some 100 ms if it has to be started."""

    def __init__(self, url: str, *, clock: Clock | None = None, observer: StoreObserver | None = None) -> None:
        self._hold = Hold(url)
        try:
            super().__init__(self._hold.url, clock=clock, observer=Watch(self._hold, observer))
        except BaseException:
            self._hold.close()
            raise

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            self._hold.close()
