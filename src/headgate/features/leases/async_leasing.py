"""Leasing: the I/O for `headgate.features.leases`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from headgate.core.check import Answer, Charge, Check, Group
from headgate.core.clock import Clock
from headgate.core.decision import Decision
from headgate.core.fork import renew_in_children
from headgate.core.plan import Plan
from headgate.core.reading import WarningStates
from headgate.errors import StoreError
from headgate.features.async_steps import run_async
from headgate.features.leases.calls import Decided
from headgate.features.leases.lease import Lease
from headgate.features.leases.leases import TICK_US, Leases
from headgate.features.leases.status import LeaseStatus
from headgate.features.leases.worker import AsyncLeaseWorker
from headgate.features.shards.async_sharded_store import AsyncShardedStore
from headgate.rules.holder import Holder
from headgate.stores.program import Program, async_group_program
from headgate.stores.protocol import AsyncReservingStore

log = logging.getLogger("headgate")


class AsyncLeasing:
    """The leases of one limiter. With a `clock`, which a test advances, nothing runs in the background."""

    def __init__(
        self, store: AsyncShardedStore, holder: Holder, clock: Clock | None, answered: Callable[[], None] = lambda: None
    ) -> None:
        self._store = store
        self._holder = holder
        self._clock = clock
        self._answered = answered  # called when the store has answered a call
        self._worker = AsyncLeaseWorker(self, ticking=clock is None)
        self._leases = Leases(None if clock is None else clock.now_us, notify=self._worker.notify)
        self._tended_us = 0
        renew_in_children(self)

    async def check(self, groups: Sequence[Group]) -> Decided:
        """Decide groups, from leases where possible. An error of the store is the answer to the groups affected."""
        leased = self._holder.current.leased
        if not leased:
            return Decided.of(await self._store.check(groups))
        if self._is_time:
            await self.tend()
        if self._leases.waiting and self._worker.idle:  # async only
            self._worker.notify()  # the event loop that was to fetch them is gone
        inline = False  # sync: inline = True
        decided: Decided = await run_async(self._leases.decide(groups, leased, inline=inline), self._store.check)
        return decided

    def compile(self, plan: Plan, states: WarningStates | None = None) -> Program:
        """Return the program of a plan. A plan without leased limits gets the store's own program."""
        exact: Program = self._store.compile(plan, states)
        if not any(limit.leased for limit in plan.limits):
            return exact
        grouped = async_group_program(self._check, plan, states)
        if len(plan.limits) != 1 or plan.shadows:
            return grouped
        take_decision = self._leases.take_decision

        async def ask(lease: Lease | None, subjects: tuple[str, ...], costs: tuple[int, ...], at_us: int) -> Decision:
            if self._is_time:
                await self.tend()
            decision = await exact(subjects, costs)
            self._answered()
            return take_decision(lease, decision, costs[0], at_us)

        return self._leases.compile(plan, states, grouped, ask)

    def forget(self, checks: Sequence[Check]) -> None:
        """Drop the leases of these checks, because the store resets their counts."""
        self._leases.forget(checks)

    def drop_all(self) -> None:
        """Drop all leases, because the store is being cleared."""
        self._leases.drop_all()

    def status(self) -> LeaseStatus:
        """Return figures about decisions without the store, and about tokens held."""
        return self._leases.status()

    @property
    def busy(self) -> bool:
        """Whether there are leases to tend."""
        return self._leases.busy

    async def fetch(self) -> None:
        """Fetch the slices that are wanted."""
        await run_async(self._leases.fetch(), self._store.check)

    async def tend(self) -> None:
        """Return unused tokens to the store."""
        await self._give_back(self._leases.tend())

    async def close(self) -> None:
        """Return all tokens to the store."""
        await self._worker.close()
        await run_async(self._leases.recover(), self._store.check)
        await self._give_back(self._leases.end())

    def reset_after_fork(self) -> None:
        """Reset in a forked child: the leases and the background work are the parent's."""
        self._leases.forget_all()
        self._worker.reset_after_fork()

    @property
    def _is_time(self) -> bool:
        """Return whether to tend the leases now, if nothing runs in the background."""
        if self._clock is None or not self._leases.busy:
            return False
        now_us = self._clock.now_us()
        if 0 <= now_us - self._tended_us < TICK_US:
            return False
        self._tended_us = now_us
        return True

    async def _check(self, groups: Sequence[Group]) -> Sequence[Answer]:
        answers, answered = await self.check(groups)
        if answered:
            self._answered()
        return answers

    async def _give_back(self, charges: list[Charge]) -> None:
        if not charges:
            return
        try:
            if isinstance(self._store, AsyncReservingStore):
                await self._store.adjust(charges)  # slices overlap, as reservations do
            else:
                await self._store.refund(charges)
        except StoreError as error:
            log.warning("could not return unused slices to the store (%s)", error)
            self._leases.note_return(charges, error)
        else:
            self._leases.note_return(charges)
