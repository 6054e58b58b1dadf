"""AsyncRegionalStore: the I/O that `Router` asks for, for asyncio; what is done in the background has a task each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any, TypeVar

from headgate.core.check import Answer, Charge, Check, Client, Extras, Group, answered
from headgate.core.clock import Clock
from headgate.core.decision import Decision, States
from headgate.core.plan import Plan
from headgate.core.quota import Quota
from headgate.core.reservation import Claim, Expired
from headgate.errors import StoreError
from headgate.limiter.spreading import RegionStatus
from headgate.regions.region import Region
from headgate.regions.router import Router
from headgate.regions.steps import HERE, Ask, Duty, Steps
from headgate.regions.ways import Way, Ways, granted, refusal, synced
from headgate.rules.holder import Holder
from headgate.rules.rule import FailureMode
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.stores.program import Program, async_group_program
from headgate.stores.protocol import (
    AsyncBeatingStore,
    AsyncCompilingStore,
    AsyncPeerStore,
    AsyncReservingStore,
    AsyncStore,
)
from headgate.stores.urls import open_async_store

T = TypeVar("T")

log = logging.getLogger("headgate")


class AsyncRegionalStore:
    """`RegionalStore`, awaited. It belongs to the event loop that it is first used in."""

    beat: Any  # there if this region's store has it

    def __init__(
        self, region: Region, store: AsyncStore, holder: Holder, clock: Clock | None, failure_mode: FailureMode
    ) -> None:
        self._here = _peer_of(store, region.name)
        if isinstance(store, AsyncBeatingStore):
            self.beat = store.beat
        self._clock = clock
        self._opened: list[AsyncStore] = []
        self._stores: dict[str, AsyncPeerStore] = {HERE: self._here, region.name: self._here}
        for name, other in region.others.items():
            if isinstance(other, str):
                opened = open_async_store(other, clock)
                self._opened.append(opened)
                self._stores[name] = _peer_of(opened, name)
            else:
                self._stores[name] = _peer_of(other, name)
        self._router = Router(region, holder, clock, failure_mode, self._notify)
        self._workers: dict[str, _Worker] = {}
        self._closed = False

    async def check(self, groups: Sequence[Group]) -> Sequence[Answer]:
        """See `RegionalStore.check`."""
        if not any(map(self._router.asked, groups)):
            return await self._here.check(groups)
        await self._catch_up()
        answers = await self._run(self._router.decide(groups))
        return answered(answers)

    def compile(self, plan: Plan, states: States | None = None, told: Plan | None = None) -> Program:  # noqa: ARG002
        """Return the program of a plan. How a single rule is spread is settled here, once."""
        if not self._router.asked(Group(plan.limits)):
            return self._program(self._here, plan, states)
        grouped = async_group_program(self.check, plan, states)
        if len(plan.limits) != 1 or plan.shadows:
            return grouped
        spread = self._spread(plan, states)

        async def check(
            subjects: tuple[str, ...],
            costs: tuple[int, ...],
            peek: bool = False,
            extras: Extras | None = None,
        ) -> Any:
            if peek or extras is not None:
                return await grouped(subjects, costs, peek, extras)
            if self._clock is not None:
                await self._catch_up()
            return await spread(subjects, costs)

        return check

    def _spread(self, plan: Plan, states: States | None) -> Way:
        """The program of one limit, as it is spread over the regions."""
        (template,) = plan.limits
        router, mode = self._router, self._router.spread(template)
        if mode == "separate":
            return self._program(self._here, plan, states)
        if mode == "central":
            return self._program(self._stores[router.central], plan, states)
        counts = router.counts

        async def nothing(subjects: tuple[str, ...], costs: tuple[int, ...]) -> Decision:
            return refusal(router, mode, plan, states, subjects, costs)

        def under(quota: Quota | None) -> Way:
            if quota is None:
                return nothing
            own = Plan((template._replace(quota=quota),))
            return self._program(self._here, own, states, plan if mode == "synced" else None)

        async def listen(way: Way, subjects: tuple[str, ...], costs: tuple[int, ...]) -> Decision:
            decision: Decision = await way(subjects, costs)
            counts.heard(decision.at_us, router.now_us())
            return decision

        if mode == "quota":
            return under(router.share(template.quota))
        ways = Ways(lambda limit: under(router.under(template.quota, limit)))
        return granted(router, template, ways) if mode == "quota_auto" else synced(router, template, ways, listen)

    async def refund(self, charges: Sequence[Charge]) -> None:
        await self._run(self._router.refund(charges, "refund"))

    async def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> Sequence[int] | None:
        return await self._run(self._router.refund(refunds, "adjust", surcharges))

    async def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        await self._run(self._router.reset(checks, clients))

    async def hold(self, reservation_id: str, record: str, ttl_us: int) -> None:
        await self._reserving().hold(reservation_id, record, ttl_us)

    async def renew(self, reservation_id: str, record: str, ttl_us: int) -> bool:
        return await self._reserving().renew(reservation_id, record, ttl_us)

    async def claim(self, reservation_id: str) -> Claim | None:
        return await self._reserving().claim(reservation_id)

    async def expire(self) -> Expired:
        return await self._reserving().expire()

    def status(self) -> RegionStatus:
        return self._router.status()

    async def exchange(self) -> None:
        """See `RegionalStore.exchange`."""
        for duty in self._router.duties:
            await self._run(duty.work())

    async def close(self) -> None:
        """See `RegionalStore.close`."""
        self._closed = True
        for worker in list(self._workers.values()):
            await worker.end()
        for store in self._opened:
            await store.close()

    def _program(self, store: AsyncStore, plan: Plan, states: States | None, told: Plan | None = None) -> Program:
        if isinstance(store, AsyncCompilingStore):
            return store.compile(plan, states, told)
        return async_group_program(store.check, plan, states, told)

    def _reserving(self) -> AsyncReservingStore:
        assert isinstance(self._here, AsyncReservingStore), f"{type(self._here).__name__} keeps no reservations"
        return self._here

    async def _catch_up(self) -> None:
        """Where nothing is done in the background: do what is due."""
        if self._clock is not None:
            for duty in self._router.duties:
                if duty.due_us() == 0:
                    await self._run(duty.work())

    def _notify(self, duty: Duty) -> None:
        if self._clock is not None or self._closed:
            return
        worker, loop = self._workers.get(duty.name), asyncio.get_running_loop()
        if worker is None or not worker.wake(loop):
            self._workers[duty.name] = _Worker(self, duty, loop)

    async def _run(self, steps: Steps[T]) -> T:
        """Take the steps of a router, asking stores in between."""
        try:
            asks = next(steps)
            while True:
                if len(asks) == 1:
                    answers = [await self._ask(asks[0])]
                else:
                    answers = list(await asyncio.gather(*map(self._ask, asks)))
                asks = steps.send(answers)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _ask(self, ask: Ask) -> Any:
        try:
            return await getattr(self._stores[ask.region], ask.method)(*ask.arguments)
        except StoreError as error:
            return error


class _Worker:
    """A task that does one duty while there is anything to do, and ends then."""

    def __init__(self, store: AsyncRegionalStore, duty: Duty, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._duty = duty
        self._loop = loop
        self._wake = asyncio.Event()
        self._task = loop.create_task(self._work(), context=Context())  # no part of what its first caller is about

    def wake(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Have it look. False: it has ended, or its event loop has."""
        self._wake.set()
        return not self._task.done() and self._loop is loop

    async def end(self) -> None:
        if self._loop is asyncio.get_running_loop():
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _work(self) -> None:
        while True:
            due_us = self._duty.due_us()
            if due_us is None:
                return
            if due_us:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), due_us / 1_000_000)
            self._wake.clear()
            if self._duty.due_us() != 0:
                continue
            try:
                await self._store._run(self._duty.work())
            except Exception:  # a task that has ended would be missed by nobody, and regions would drift apart
                log.exception("regions: something went wrong in the background (%s)", self._duty.name)
                await asyncio.sleep(1.0)


def _peer_of(store: Any, name: str) -> AsyncPeerStore:
    """A store that other regions can read. Raises `ValueError`."""
    if isinstance(store, MemoryStore):
        store = AsyncMemoryStore(store)
    if not isinstance(store, AsyncPeerStore):
        raise ValueError(f"region {name!r}: store: {type(store).__name__} cannot be read by other regions")  # noqa: TRY004
    return store
