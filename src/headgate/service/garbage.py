"""Keep garbage collections short in a service that counts in memory.

A full collection looks at every object that may be part of a circle, and at all that it refers to: with a million keys,
that stops the service for some tenths of a second. Keys are no part of any circle. So those that are new are taken out
of later collections, by `gc.freeze`. Memory of keys that expire is still freed.

Only the service does this, as it owns its process: circles that are under way when objects are frozen are never freed.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Final

from headgate.stores.memory import MemoryStore

NEW_KEYS: Final = 20_000  # that are frozen at once: a collection of so many takes a few milliseconds
LOOK_SECONDS: Final = 0.1


async def freeze_new_keys(store: MemoryStore) -> None:
    """Take new keys out of garbage collections, again and again."""
    frozen = store.keys_placed
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if store.keys_placed - frozen >= NEW_KEYS:
            frozen = store.keys_placed
            gc.collect()
            # A full collection passes over tables that hold nothing but plain values, until they change again. They can
            # only be frozen then.
            await asyncio.sleep(LOOK_SECONDS)
            gc.collect(1)
            gc.freeze()
