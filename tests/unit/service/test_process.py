"""Keys in memory are taken out of garbage collections."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import suppress

import pytest

from headgate import AsyncLimiter
from headgate.service import process
from headgate.stores.memory import MemoryStore


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.parametrize("algorithm", ["sliding_window_log", "sliding_window_counter"])
def test_a_full_collection_does_not_look_at_keys(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "NEW_KEYS", 1_000)
    monkeypatch.setattr(process, "LOOK_SECONDS", 0.0)

    async def main() -> None:
        store = MemoryStore()
        limiter = AsyncLimiter(f"100/30d {algorithm}", store=store)
        freezing = asyncio.create_task(process.freeze_new_keys(store))
        await asyncio.sleep(0)
        for number in range(5_000):
            assert await limiter.check(f"user-{number}")
            if number % 100 == 0:
                await asyncio.sleep(0)
        freezing.cancel()
        with suppress(asyncio.CancelledError):
            await freezing
        (table,) = store._tables._by_template.values()
        gc.collect()
        seen = {id(one) for one in gc.get_objects()}
        assert not seen & {id(table.states), id(table.ring)}
        assert len(seen & {id(state) for state in table.states.values()}) <= 2_000  # the latest

    asyncio.run(main())
