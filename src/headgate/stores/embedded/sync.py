"""The embedded store for threads."""

from __future__ import annotations

from headgate.core.clock import Clock
from headgate.stores.embedded.server_handle import RestartingObserver, ServerHandle
from headgate.stores.protocol import StoreObserver
from headgate.stores.redis.sync import RedisStore


class EmbeddedStore(RedisStore):
    """The Redis store on a server that this store starts. Creating it waits for the server; closing it releases it.

    Raises `InvalidStore` if the URL is invalid, and `StoreUnavailable` if no server can be started.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, observer: StoreObserver | None = None) -> None:
        self._handle = ServerHandle(url)
        try:
            super().__init__(self._handle.url, clock=clock, observer=RestartingObserver(self._handle, observer))
        except BaseException:
            self._handle.close()
            raise

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._handle.close()
