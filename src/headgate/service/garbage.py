"""Keeps garbage collections short in a service that counts in memory.

A full collection visits every object that may be part of a cycle, and all that it refers to. With a million keys, that
stops the service for some tenths of a second. Keys are never part of a cycle. So `gc.freeze` excludes new keys from
later collections. The memory of expired keys is still freed.

Only the service does this, as it owns its process: cycles that exist when objects are frozen are never freed.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Final

from headgate.stores.memory import MemoryStore

NEW_KEYS: Final = 20_000  # frozen at once: a collection of this many takes a few milliseconds
LOOK_SECONDS: Final = 0.1


async def freeze_new_keys(store: MemoryStore) -> None:
    """Exclude new keys from garbage collections, until cancelled."""
    frozen = store.keys_placed
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if store.keys_placed - frozen >= NEW_KEYS:
            frozen = store.keys_placed
            gc.collect()
            # A full collection untracks dictionaries that hold only plain values, until they change again. They can
            # be frozen only when tracked again.
            await asyncio.sleep(LOOK_SECONDS)
            gc.collect(1)
            gc.freeze()
