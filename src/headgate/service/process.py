"""A serving process: its addresses, its number among the workers, its open files and its garbage collections.

The supervisor imports this too, so it must import quickly.
"""

from __future__ import annotations

import asyncio
import gc
import resource
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from headgate.settings_fields import Address

if TYPE_CHECKING:
    from headgate.settings import Settings
    from headgate.stores.memory import MemoryStore

AT_ONCE: Final = 1  # exit code after a second signal
NEW_KEYS: Final = 20_000  # frozen at once: a collection of this many takes a few milliseconds
LOOK_SECONDS: Final = 0.1  # between checks for new keys


class ListenAddresses(NamedTuple):
    """The addresses where a service listens, with their actual ports."""

    http: Address
    grpc: Address
    admin: Address | None = None  # None: HTTP's address

    @classmethod
    def of(cls, settings: Settings) -> ListenAddresses:
        """Return the addresses in the settings, whose ports may be 0."""
        return cls(settings.http_address, settings.grpc_address, settings.admin_address)

    def by_name(self) -> dict[str, Address]:
        """Return the addresses by name: a setting is called `{name}_address`."""
        return {name: address for name, address in self._asdict().items() if address is not None}


class WorkerNumber(NamedTuple):
    """The index of a process among those that share their ports."""

    number: int
    sockets: Path  # the directory of the sockets over which workers exchange metrics


def allow_many_files() -> None:
    """Raise this process's limit on open files, and so on connections, to the maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # some systems name a limit that they do not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def freeze_new_keys(store: MemoryStore) -> None:
    """Exclude a memory store's new keys from garbage collections, until cancelled. This keeps collections short.

    A full collection visits every object that may be part of a cycle, and all that it refers to. With a million keys,
    that stops the service for some tenths of a second. Keys are never part of a cycle, and the memory of expired keys
    is still freed. Only the service does this, as it owns its process: cycles that exist when objects are frozen are
    never freed.
    """
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
