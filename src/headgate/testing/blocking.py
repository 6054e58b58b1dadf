"""Uses an async store like a sync one, so that one suite tests both."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

from headgate.stores.protocol import AsyncStore, Store

_METHODS: Final = (
    *("check", "refund", "reset", "release_slots", "renew_slots"),
    *("save_reservation", "renew", "claim_reservation", "claim_expired", "settle", "adjust"),
)


class Blocking:
    """A `Store` that calls an `AsyncStore`, on an event loop in its own thread.

    Calls from several threads become concurrent tasks on that loop, as in a server.
    """

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headgate-blocking", daemon=True)
        self._thread.start()
        for name in _METHODS:
            if hasattr(store, name):  # else the wrapper lacks it, too
                setattr(self, name, self._blocking(getattr(store, name)))

    def close(self) -> None:
        """Close the store and end the loop; the loop ends even if the store fails to close."""
        try:
            self._run(self._store.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _blocking(self, method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        return lambda *args, **options: self._run(method(*args, **options))

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


def blocking(store: Store | AsyncStore) -> Store:
    """Return `store` itself if it is sync, else wrapped in `Blocking`."""
    if inspect.iscoroutinefunction(store.check):
        return cast("Store", Blocking(cast("AsyncStore", store)))
    return cast("Store", store)
