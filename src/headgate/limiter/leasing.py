"""Leases at work: the I/O that `headgate.stores.leases` asks for, and what is done in the background."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import Context
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Final

from headgate.core.check import Answer, Charge, Check, Group
from headgate.core.clock import Clock
from headgate.core.decision import Decision, States
from headgate.core.fork import renew_in_children
from headgate.core.plan import Plan
from headgate.errors import StoreError
from headgate.limiter.sharding import AsyncSharding, Sharding
from headgate.limiter.steps import run, run_async
from headgate.rules.holder import Holder
from headgate.stores.leases import TICK_US, Decided, Leases, LeaseStatus
from headgate.stores.leases.lease import Lease
from headgate.stores.program import Program, async_group_program, group_program
from headgate.stores.protocol import AsyncReservingStore, ReservingStore

TICK_SECONDS: Final = TICK_US / 1_000_000
QUIET_TICKS: Final = 20  # after which a thread with nothing to do ends

log = logging.getLogger("headgate")


class _Leasing(ABC):
    """What both kinds have in common. With a `clock`, which a test moves, nothing is done in the background."""

    def __init__(self, holder: Holder, clock: Clock | None, answered: Callable[[], None]) -> None:
        self._holder = holder
        self._answered = answered  # called when the store was asked, and answered
        self._clock = clock
        self._leases = Leases(None if clock is None else clock.now_us, notify=self._notify)
        self._tended_us = 0
        renew_in_children(self)

    @abstractmethod
    def _notify(self) -> None:
        """Have slices fetched in the background."""

    @property
    def _is_time(self) -> bool:
        """Where nothing is done in the background: whether to look after the leases."""
        if self._clock is None or not self._leases.busy:
            return False
        now_us = self._clock.now_us()
        if 0 <= now_us - self._tended_us < TICK_US:
            return False
        self._tended_us = now_us
        return True

    def forget(self, checks: Sequence[Check]) -> None:
        """The store was told to forget these."""
        self._leases.forget(checks)

    def status(self) -> LeaseStatus:
        return self._leases.status()

    def forked(self) -> None:
        """In a forked child: the leases are the parent's, and so is whatever worked in the background."""
        self._leases.forget_all()


class Leasing(_Leasing):
    """For threads. A thread of its own fetches slices ahead and gives back what is not used; it ends when idle."""

    def __init__(
        self, store: Sharding, holder: Holder, clock: Clock | None, answered: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(holder, clock, answered)
        self._store = store
        self._lock = Lock()
        self._thread: Thread | None = None
        self._wake = Event()
        self._closed = False

    def check(self, groups: Sequence[Group]) -> Decided:
        """Decide groups, from leases where that is possible. A fault of the store is the answer to those it met."""
        leased = self._holder.current.leased
        if not leased:
            return Decided.of(self._store.check(groups))
        if self._is_time:
            self._give_back(self._leases.tend())
        decided: Decided = run(self._leases.decide(groups, leased, inline=True), self._store.check)
        return decided

    def compile(self, plan: Plan, states: States | None = None) -> Program:
        """Return the program of a plan. One without leased limits is the store's own."""
        exact: Program = self._store.compile(plan, states)
        if not any(limit.leased for limit in plan.limits):
            return exact
        grouped = group_program(self._check, plan, states)
        if len(plan.limits) != 1 or plan.shadows:
            return grouped
        heard = self._leases.heard

        def ask(lease: Lease | None, subjects: tuple[str, ...], costs: tuple[int, ...], at_us: int) -> Decision:
            if self._is_time:
                self._give_back(self._leases.tend())
            decision = exact(subjects, costs)
            self._answered()
            return heard(lease, decision, costs[0], at_us)

        return self._leases.compile(plan, states, grouped, ask)

    def _check(self, groups: Sequence[Group]) -> Sequence[Answer]:
        answers, answered = self.check(groups)
        if answered:
            self._answered()
        return answers

    def close(self) -> None:
        """Give everything back."""
        self._closed = True
        self._wake.set()
        thread = self._thread
        if thread is not None:
            thread.join()
        self._give_back(self._leases.end())

    def forked(self) -> None:
        super().forked()
        self._lock, self._wake, self._thread = Lock(), Event(), None

    def _notify(self) -> None:
        if self._clock is not None:
            self._fetch()
            return
        if self._closed:
            return
        self._wake.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = Thread(target=self._work, name="headgate-leases", daemon=True)
                    self._thread.start()

    def _work(self) -> None:
        quiet, due = 0, monotonic() + TICK_SECONDS
        while not self._closed:
            self._wake.wait(max(0.0, due - monotonic()))
            self._wake.clear()
            try:
                self._fetch()
                if monotonic() < due:
                    continue
                due = monotonic() + TICK_SECONDS
                self._give_back(self._leases.tend())
            except Exception:  # a thread that has ended would be missed by nobody, and leases never given back
                log.exception("leases: something went wrong in the background")
            quiet = 0 if self._leases.busy else quiet + 1
            if quiet > QUIET_TICKS:
                with self._lock:
                    if not self._leases.busy and not self._wake.is_set():
                        self._thread = None
                        return

    def _fetch(self) -> None:
        run(self._leases.fetch(), self._store.check)

    def _give_back(self, charges: list[Charge]) -> None:
        if not charges:
            return
        try:
            if isinstance(self._store, ReservingStore):
                self._store.adjust(charges)  # slices overlap, as reservations do
            else:
                self._store.refund(charges)
        except StoreError as error:
            _not_given_back(error)
            self._leases.gave_back(charges, error)
        else:
            self._leases.gave_back(charges)


class AsyncLeasing(_Leasing):
    """For asyncio. Slices are fetched by tasks, and so a caller that is cancelled takes none of them with it."""

    def __init__(
        self, store: AsyncSharding, holder: Holder, clock: Clock | None, answered: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(holder, clock, answered)
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False

    async def check(self, groups: Sequence[Group]) -> Decided:
        """Decide groups, from leases where that is possible."""
        leased = self._holder.current.leased
        if not leased:
            return Decided.of(await self._store.check(groups))
        if self._is_time:
            await self._give_back(self._leases.tend())
        if self._leases.waiting and not self._tasks:  # the loop that they were to be fetched in is gone
            self._notify()
        decided: Decided = await run_async(self._leases.decide(groups, leased, inline=False), self._store.check)
        return decided

    def compile(self, plan: Plan, states: States | None = None) -> Program:
        """Return the program of a plan: it returns a decision, or something to await for one."""
        exact: Program = self._store.compile(plan, states)
        if not any(limit.leased for limit in plan.limits):
            return exact
        grouped = async_group_program(self._check, plan, states)
        if len(plan.limits) != 1 or plan.shadows:
            return grouped
        heard = self._leases.heard

        async def ask(lease: Lease | None, subjects: tuple[str, ...], costs: tuple[int, ...], at_us: int) -> Decision:
            if self._is_time:
                await self._give_back(self._leases.tend())
            decision = await exact(subjects, costs)
            self._answered()
            return heard(lease, decision, costs[0], at_us)

        return self._leases.compile(plan, states, grouped, ask)

    async def _check(self, groups: Sequence[Group]) -> Sequence[Answer]:
        answers, answered = await self.check(groups)
        if answered:
            self._answered()
        return answers

    async def close(self) -> None:
        """Give everything back."""
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._give_back(self._leases.end())

    def forked(self) -> None:
        super().forked()
        self._tasks, self._keeper = set(), None

    def _notify(self) -> None:
        if not self._closed:
            self._start(self._fetch())

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work in the background: `close` waits for it. It is not part of what its first caller is about."""
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _fetch(self) -> None:
        await run_async(self._leases.fetch(), self._store.check)
        keeper, loop = self._keeper, asyncio.get_running_loop()
        if (
            self._clock is None
            and not self._closed
            and (keeper is None or keeper.done() or keeper.get_loop() is not loop)
        ):
            self._keeper = loop.create_task(self._keep(), context=Context())

    async def _keep(self) -> None:
        while self._leases.busy:
            await asyncio.sleep(TICK_SECONDS)
            await asyncio.shield(self._start(self._give_back(self._leases.tend())))

    async def _give_back(self, charges: list[Charge]) -> None:
        if not charges:
            return
        try:
            if isinstance(self._store, AsyncReservingStore):
                await self._store.adjust(charges)  # slices overlap, as reservations do
            else:
                await self._store.refund(charges)
        except StoreError as error:
            _not_given_back(error)
            self._leases.gave_back(charges, error)
        else:
            self._leases.gave_back(charges)


def _not_given_back(error: StoreError) -> None:
    log.warning("slices that were not used could not be given back (%s)", error)
