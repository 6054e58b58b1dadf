"""The embedded store for asyncio."""

from __future__ import annotations

from headgate.core.clock import Clock
from headgate.stores.embedded.server_handle import RestartingObserver, ServerHandle
from headgate.stores.protocol import StoreObserver
from headgate.stores.redis.aio import AsyncRedisStore


class AsyncEmbeddedStore(AsyncRedisStore):
    """The async version of `EmbeddedStore`. Creating one blocks until the server answers: 100 ms if it must start."""

    def __init__(self, url: str, *, clock: Clock | None = None, observer: StoreObserver | None = None) -> None:
        self._handle = ServerHandle(url)
        try:
            super().__init__(self._handle.url, clock=clock, observer=RestartingObserver(self._handle, observer))
        except BaseException:
            self._handle.close()
            raise

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            self._handle.close()
