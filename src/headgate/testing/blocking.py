"""Uses an async store like a sync one, so that one suite tests both."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, cast

from headgate.core.check import Answer, Charge, Check, Client, Group
from headgate.core.reservation import Claim, Expired
from headgate.stores.protocol import AsyncReservingStore, AsyncSlotStore, AsyncStore, Store

T = TypeVar("T")


class Blocking:
    """A `Store` that calls an `AsyncStore`, on an event loop in its own thread.

    Calls from several threads become concurrent tasks on that loop, as in a server.
    """

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headgate-blocking", daemon=True)
        self._thread.start()

    def check(self, groups: Sequence[Group]) -> Sequence[Answer]:
        return self._run(self._store.check(groups))

    def refund(self, charges: Sequence[Charge]) -> None:
        self._run(self._store.refund(charges))

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        self._run(self._store.reset(checks, clients))

    def save_reservation(self, reservation_id: str, record: str, ttl_us: int) -> None:
        self._run(self._reserving().save_reservation(reservation_id, record, ttl_us))

    def renew(self, reservation_id: str, record: str, ttl_us: int) -> bool:
        return self._run(self._reserving().renew(reservation_id, record, ttl_us))

    def take_reservation(self, reservation_id: str) -> Claim | None:
        return self._run(self._reserving().take_reservation(reservation_id))

    def expire(self) -> Expired:
        return self._run(self._reserving().expire())

    def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> Sequence[int] | None:
        return self._run(self._reserving().adjust(refunds, surcharges))

    def release_slots(self, held: Sequence[Check]) -> Sequence[bool]:
        return self._run(cast("AsyncSlotStore", self._store).release_slots(held))

    def renew_slots(self, held: Sequence[Check]) -> Sequence[bool]:
        return self._run(cast("AsyncSlotStore", self._store).renew_slots(held))

    def close(self) -> None:
        """Close the store and end the loop; the loop ends even if the store fails to close."""
        try:
            self._run(self._store.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _reserving(self) -> AsyncReservingStore:
        return cast("AsyncReservingStore", self._store)

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


def blocking(store: Store | AsyncStore) -> Store:
    """Return `store` itself if it is sync, else wrapped in `Blocking`."""
    if inspect.iscoroutinefunction(store.check):
        return Blocking(cast("AsyncStore", store))
    return cast("Store", store)
