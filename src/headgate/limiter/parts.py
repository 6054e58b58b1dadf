# Generated from async_parts.py by scripts/generate-sync: edit that file, and run `make generate`.
"""Parts: what a limiter consists of, and when each part is made."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from headgate.core.clock import Clock
from headgate.features.shards.sharded_store import ShardedStore
from headgate.limiter.engine import Engine
from headgate.limiter.refusals import OnRefused, checked_hook
from headgate.limiter.rule_inputs import Rules
from headgate.limiter.startup import require_answer, require_clock, warn_of_workers
from headgate.rules.rule import FailureMode
from headgate.rules.snapshot import Snapshot
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import HeartbeatStore, ReservingStore, Store
from headgate.stores.urls import no_store, open_store

if TYPE_CHECKING:
    from headgate.features.leases.leasing import Leasing
    from headgate.features.regions.region import Region
    from headgate.features.regions.regional_store import RegionalStore
    from headgate.limiter.heartbeat import Heartbeat
    from headgate.limiter.reservations import Reservations
    from headgate.limiter.slots import Slots


class Parts:
    """The parts of a limiter.

    The modules of some parts are imported where the part is made, which most limiters never do: they start faster.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        store: str | Store = "memory://",
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
        if not isinstance(store, str | Store):
            raise no_store(store)
        if require_store:
            require_answer(store, clock)
        self._here: Store = open_store(store, clock) if isinstance(store, str) else store
        in_memory = isinstance(self._here, MemoryStore)
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
        self._region_store: RegionalStore | None = None  # set where several regions share limits
        if region is not None:
            from headgate.features.regions.regional_store import RegionalStore  # noqa: PLC0415

            self._region_store = RegionalStore(region, self._here, self._engine.holder, clock, failure_mode)
        self._store = ShardedStore(self._here if self._region_store is None else self._region_store)
        self._store.home.holder = self._engine.holder
        self.holder = self._engine.holder  # holds the rules in force
        # Whether it counts in this process and so never waits.
        self.in_memory = in_memory and region is None
        self._outage = self._engine.outage
        self._engine.on_refused = checked_hook(on_refused, may_wait=False)
        self._engine.compile = self._engine.compile_exact = self._store.compile
        self._heartbeat: Heartbeat | None = None
        if not in_memory:
            from headgate.limiter.blocks import Blocks  # noqa: PLC0415
            from headgate.limiter.heartbeat import Heartbeat  # noqa: PLC0415

            self._engine.blocks = Blocks()
            if isinstance(self._store, HeartbeatStore | ReservingStore):
                self._engine.heartbeat = self._heartbeat = Heartbeat(self._store, self._engine)
        self._leasing: Leasing | None = None  # None in memory, where a lease would save nothing
        if not self.in_memory:
            from headgate.features.leases.leasing import Leasing  # noqa: PLC0415

            self._leasing = Leasing(self._store, self.holder, clock, self._engine.note_store_answer)
            self._engine.compile, self._engine.leases = self._leasing.compile, True
        # check("alice") calls its plan's program directly: looking the plan up would take longer than the check itself.
        self._subject_program = self._engine.subject_program() if on_refused is None else None

    @cached_property
    def _reservations(self) -> Reservations:
        """The limiter's reservations, made on first use. Threads that make them at once all get the first ones."""
        from headgate.limiter.reservations import Reservations  # noqa: PLC0415

        first: Reservations = vars(self).setdefault("_reservations", Reservations(self._store, self._engine))
        return first

    @cached_property
    def _slots(self) -> Slots:
        """The limiter's slots, made on first use. Threads that make them at once all get the first ones."""
        from headgate.limiter.slots import Slots  # noqa: PLC0415

        first: Slots = vars(self).setdefault("_slots", Slots(self._engine, self._here))
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
