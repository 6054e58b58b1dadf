# Generated from async_readiness.py by scripts/generate-sync: edit that file, and run `make generate`.
"""Check whether a store answers."""

from __future__ import annotations

from headgate.core.check import Check, Group
from headgate.core.key import key_template
from headgate.core.quota import Quota
from headgate.errors import StoreError
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import Store


def probe(store: Store) -> None:
    """Send the store a check that charges nothing. Raises `StoreError` if it cannot decide."""
    if isinstance(store, MemoryStore):
        return
    look = Check("ready", key_template("global", "ready", "gcra"), "", Quota(1, 1, algorithm="gcra"))
    (answer,) = store.check([Group((look,), peek=True)])
    if isinstance(answer, StoreError):
        raise answer
