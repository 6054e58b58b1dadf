"""The memory store: counts in this process.

`store` keeps state and is what callers open; `program` compiles plans into functions that decide them; `tables` holds
the state of each key and evicts; `penalty`, `reservations` and `ledger` hold what else a store has to remember.
"""

from headgate.stores.memory.aio import AsyncMemoryStore
from headgate.stores.memory.store import MemoryStore

__all__ = ["AsyncMemoryStore", "MemoryStore"]
