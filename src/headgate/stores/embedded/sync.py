"""The embedded store for threads."""

from __future__ import annotations

from headgate.core.clock import Clock
from headgate.stores.embedded.hold import Hold
from headgate.stores.embedded.watch import Watch
from headgate.stores.observer import StoreObserver
from headgate.stores.redis.sync import RedisStore


class EmbeddedStore(RedisStore):
    """The Redis store on a server of our own. Made when the server answers; closing it lets go of the server.

    Raises `ValueError` on a URL that makes no sense, and `StoreUnavailable` when there is no server to be had.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, observer: StoreObserver | None = None) -> None:
        self._hold = Hold(url)
        try:
            super().__init__(self._hold.url, clock=clock, observer=Watch(self._hold, observer))
        except BaseException:
            self._hold.close()
            raise

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._hold.close()
