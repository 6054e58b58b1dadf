"""What a limiter knows of regions: whoever spreads a limit over several wraps the store, and tells how that goes."""

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
    """How another region is reached."""

    calls: int = 0  # that were answered, of any kind
    failures: int = 0  # calls that failed
    age: float | None = None  # seconds since its counts were last heard; None: they are not asked for
    cut: bool = False  # no counts came for so long that this region keeps to its own share


@dataclass(frozen=True, slots=True)
class RegionStatus:
    """How rules are doing that several regions share. Units are those of cost; keys are of this node."""

    region: str = ""  # which one this is
    peers: Mapping[str, PeerStatus] = field(default_factory=dict)
    fallbacks: int = 0  # requests of which a part was decided by a failure mode, as the central region was away
    grants: int = 0  # keys for which this region has a share that was agreed on
    grant_failures: int = 0  # times that shares could not be agreed on
    synced_keys: int = 0  # keys whose counts are exchanged
    synced_bound: int = (
        0  # the most that the others let in of one key between two exchanges: limits may be passed by it
    )
    synced_excess: int = 0  # units that were let in above limits, in all regions together, since the start


class SpreadStore(CompilingStore, ReservingStore, Protocol):
    """A store that decides rules as they are spread over regions. Closing it leaves the one that it wraps open."""

    def status(self) -> RegionStatus: ...


class AsyncSpreadStore(AsyncCompilingStore, AsyncReservingStore, Protocol):
    """The same, awaited."""

    def status(self) -> RegionStatus: ...


class Spreading(Protocol):
    """A region: `headgate.regions.Region`."""

    def open(self, store: Store, holder: Holder, clock: Clock | None, failure_mode: FailureMode) -> SpreadStore:
        """A store around `store`, which is this region's. Raises `ValueError` on stores that cannot be used."""
        ...

    def open_async(
        self, store: AsyncStore, holder: Holder, clock: Clock | None, failure_mode: FailureMode
    ) -> AsyncSpreadStore:
        """The same, awaited."""
        ...
