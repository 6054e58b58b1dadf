"""AsyncParts: what a limiter consists of, and when each part is made."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from headgate.core.clock import Clock
from headgate.features.shards.async_sharded_store import AsyncShardedStore
from headgate.features.shards.sharded_store import ShardedStore
from headgate.limiter.engine import Engine
from headgate.limiter.refusals import OnRefused, checked_hook
from headgate.limiter.rule_inputs import Rules
from headgate.limiter.startup import require_answer, require_clock, warn_of_workers
from headgate.rules.rule import FailureMode
from headgate.rules.snapshot import Snapshot
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.stores.protocol import AsyncHeartbeatStore, AsyncReservingStore, AsyncStore
from headgate.stores.urls import no_store, open_async_store

if TYPE_CHECKING:
    from headgate.features.leases.async_leasing import AsyncLeasing
    from headgate.features.regions.async_regional_store import AsyncRegionalStore
    from headgate.features.regions.region import Region
    from headgate.limiter.async_heartbeat import AsyncHeartbeat
    from headgate.limiter.async_reservations import AsyncReservations
    from headgate.limiter.async_slots import AsyncSlots


class AsyncParts:
    """The parts of a limiter.

    The modules of some parts are imported where the part is made, which most limiters never do: they start faster.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        store: str | AsyncStore | MemoryStore = "memory://",  # sync: store: str | Store = "memory://",
        clock: Clock | None = None,
        name: str = "default",
        failure_mode: FailureMode = "open",
        region: Region | None = None,
        watch: bool = False,
        warning_at: int | None = None,
        warning_until: int | None = None,
        facts: Iterable[str] = (),
        require_store: bool = False,
        on_refused: OnRefused | None = None,
    ) -> None:
        if store == "memory://":
            warn_of_workers()
        require_clock(clock)
        self._owned = isinstance(store, str)
        if isinstance(store, MemoryStore):  # async only
            store = AsyncMemoryStore(store)
        if not isinstance(store, str | AsyncStore):
            raise no_store(store)
        if require_store:
            require_answer(store, clock)
        self._here: AsyncStore = open_async_store(store, clock) if isinstance(store, str) else store
        in_memory = isinstance(self._here, AsyncMemoryStore)
        self._engine = Engine(
            rules,
            clock=clock,
            name=name,
            failure_mode=failure_mode,
            watch=watch,
            warning_at=warning_at,
            warning_until=warning_until,
            facts=facts,
        )
        self._region_store: AsyncRegionalStore | None = None  # set where several regions share limits
        if region is not None:
            from headgate.features.regions.async_regional_store import AsyncRegionalStore  # noqa: PLC0415

            self._region_store = AsyncRegionalStore(region, self._here, self._engine.holder, clock, failure_mode)
        self._store = AsyncShardedStore(self._here if self._region_store is None else self._region_store)
        self._store.home.holder = self._engine.holder
        self.holder = self._engine.holder  # holds the rules in force
        # Whether it counts in this process and so never waits.
        self.in_memory = type(self._here) is AsyncMemoryStore and region is None  # async only
        # sync: self.in_memory = in_memory and region is None
        self._outage = self._engine.outage
        # sync: self._engine.on_refused = checked_hook(on_refused, may_wait=False)
        self._engine.on_refused = checked_hook(on_refused, may_wait=True)  # async only
        self._engine.compile = self._engine.compile_exact = self._store.compile
        if self.in_memory and isinstance(self._here, AsyncMemoryStore):  # async only
            memory = ShardedStore(self._here.store, self._store.home)
            self._engine.compile = self._engine.compile_exact = memory.compile
        self._heartbeat: AsyncHeartbeat | None = None
        if not in_memory:
            from headgate.limiter.async_heartbeat import AsyncHeartbeat  # noqa: PLC0415
            from headgate.limiter.blocks import Blocks  # noqa: PLC0415

            self._engine.blocks = Blocks()
            if isinstance(self._store, AsyncHeartbeatStore | AsyncReservingStore):
                self._engine.heartbeat = self._heartbeat = AsyncHeartbeat(self._store, self._engine)
        self._leasing: AsyncLeasing | None = None  # None in memory, where a lease would save nothing
        if not self.in_memory:
            from headgate.features.leases.async_leasing import AsyncLeasing  # noqa: PLC0415

            self._leasing = AsyncLeasing(self._store, self.holder, clock, self._engine.note_store_answer)
            self._engine.compile, self._engine.leases = self._leasing.compile, True
        # check("alice") calls its plan's program directly: looking the plan up would take longer than the check itself.
        self._subject_program = self._engine.subject_program() if on_refused is None else None

    @cached_property
    def _reservations(self) -> AsyncReservations:
        """The limiter's reservations, made on first use. Threads that make them at once all get the first ones."""
        from headgate.limiter.async_reservations import AsyncReservations  # noqa: PLC0415

        first: AsyncReservations = vars(self).setdefault("_reservations", AsyncReservations(self._store, self._engine))
        return first

    @cached_property
    def _slots(self) -> AsyncSlots:
        """The limiter's slots, made on first use. Threads that make them at once all get the first ones."""
        from headgate.limiter.async_slots import AsyncSlots  # noqa: PLC0415

        first: AsyncSlots = vars(self).setdefault("_slots", AsyncSlots(self._engine, self._here))
        return first

    @property
    def failing(self) -> bool:
        """Whether the store could not decide the last check that it was sent."""
        return self._engine.outage.lasts

    @property
    def clock(self) -> Clock:
        """The clock for everything that does not use the store's clock."""
        return self._engine.clock

    @property
    def snapshot(self) -> Snapshot:
        """The rules in force. `snapshot.version` identifies them."""
        return self._engine.snapshot

    @property
    def by_subject(self) -> bool:
        """Whether it counts by subject alone, as a limiter made from a notation does, and not by rules."""
        return self._engine.by_subject
