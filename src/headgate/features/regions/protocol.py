"""The interface between a limiter and its region, which wraps the store to share limits with other regions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headgate.core.clock import Clock
from headgate.rules.holder import Holder
from headgate.rules.rule import FailureMode
from headgate.stores.protocol import (
    AsyncCompilingStore,
    AsyncReservingStore,
    AsyncStore,
    CompilingStore,
    ReservingStore,
    Store,
)


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """The state of the link to another region."""

    calls: int = 0  # answered calls of any kind
    failures: int = 0  # calls that failed
    age: float | None = None  # seconds since its counts were last read; None: they are not exchanged
    cut: bool = False  # its counts are so old that this region keeps to its own share


@dataclass(frozen=True, slots=True)
class RegionStatus:
    """The state of the rules that several regions share. Units are units of cost; keys are those of this node."""

    region: str = ""  # the name of this region
    peers: Mapping[str, PeerStatus] = field(default_factory=dict)
    fallbacks: int = 0  # requests partly decided by a failure mode because the central region was down
    grants: int = 0  # keys for which this region has a granted share
    grant_failures: int = 0  # failed attempts to agree on shares
    synced_keys: int = 0  # keys whose counts are exchanged
    synced_bound: int = (
        0  # the most that others admitted of one key between two exchanges: limits may be exceeded by it
    )
    synced_excess: int = 0  # units admitted above limits, in all regions together, since the start


class RegionStore(CompilingStore, ReservingStore, Protocol):
    """A store that decides rules as regions share them. Closing it leaves its wrapped store open."""

    def status(self) -> RegionStatus: ...


class AsyncRegionStore(AsyncCompilingStore, AsyncReservingStore, Protocol):
    """An async store that decides rules as regions share them. Closing it leaves its wrapped store open."""

    def status(self) -> RegionStatus: ...


class RegionProtocol(Protocol):
    """The interface of a region: `headgate.regions.Region`."""

    def open(self, store: Store, holder: Holder, clock: Clock | None, failure_mode: FailureMode) -> RegionStore:
        """Wrap `store`, this region's own store. Raises `ValueError` if the store cannot be used."""
        ...

    def open_async(
        self, store: AsyncStore, holder: Holder, clock: Clock | None, failure_mode: FailureMode
    ) -> AsyncRegionStore:
        """Wrap the async `store`, this region's own store. Raises `ValueError` if the store cannot be used."""
        ...
