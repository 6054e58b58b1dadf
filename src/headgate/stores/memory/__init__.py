"""The memory store: counts in this process.

`store` keeps the state, and is the class that callers open. `program` compiles plans into functions that decide them.
`tables` holds the state of each key and evicts keys. `penalty` and `records` hold the rest of the data.
"""

from headgate.stores.memory.aio import AsyncMemoryStore
from headgate.stores.memory.store import MemoryStore

__all__ = ["AsyncMemoryStore", "MemoryStore"]
