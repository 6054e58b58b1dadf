"""Check whether a store answers."""

from __future__ import annotations

from headgate.core.check import Check, Group
from headgate.core.key import key_template
from headgate.core.quota import Quota
from headgate.errors import StoreError
from headgate.stores.memory import AsyncMemoryStore
from headgate.stores.protocol import AsyncStore


async def probe_async(store: AsyncStore) -> None:
    """Send the store a check that charges nothing. Raises `StoreError` if it cannot decide."""
    if isinstance(store, AsyncMemoryStore):
        return
    look = Check("ready", key_template("global", "ready", "gcra"), "", Quota(1, 1, algorithm="gcra"))
    (answer,) = await store.check([Group((look,), peek=True)])
    if isinstance(answer, StoreError):
        raise answer
