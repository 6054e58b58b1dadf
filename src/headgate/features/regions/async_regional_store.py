"""AsyncRegionalStore: the I/O for `Router`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from headgate.core.check import Answer, Charge, Check, Client, Extras, Group, require_any_answer
from headgate.core.clock import Clock
from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.core.fork import renew_in_children
from headgate.core.plan import Plan
from headgate.core.quota import Quota
from headgate.core.reading import WarningStates
from headgate.core.reservation import Claim, ClaimedAdjustments, ExpiredClaims, Record, ReservationAnswer
from headgate.errors import StoreError
from headgate.features.regions.duty_worker import AsyncDutyWorkers
from headgate.features.regions.link import HERE, Duty, Steps, StoreCall
from headgate.features.regions.programs import LimitProgram, LimitPrograms, granted_program, refusal, synced_program
from headgate.features.regions.region import Region, RegionStatus
from headgate.features.regions.router import Router
from headgate.rules.holder import Holder
from headgate.rules.rule import FailureMode
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.stores.program import Program, async_group_program
from headgate.stores.protocol import (
    AsyncAtomicReservingStore,
    AsyncCompilingStore,
    AsyncHeartbeatStore,
    AsyncPeerStore,
    AsyncReservingStore,
    AsyncStore,
)
from headgate.stores.urls import open_async_store

T = TypeVar("T")


class AsyncRegionalStore:
    """This region's store, for rules that several regions share. It opens and closes the other regions' stores.

    With a `clock`, which a test advances, nothing runs in the background: work that is due is done before a check.

    With asyncio, it belongs to the event loop in which it is first used.
    """

    record_heartbeat: Any  # set if this region's store has it

    def __init__(
        self, region: Region, store: AsyncStore, holder: Holder, clock: Clock | None, failure_mode: FailureMode
    ) -> None:
        self._here = _peer_of(store, region.name)
        if isinstance(store, AsyncHeartbeatStore):
            self.record_heartbeat = store.record_heartbeat
        self._clock = clock
        self._opened: list[AsyncStore] = []
        self._stores: dict[str, AsyncPeerStore] = {HERE: self._here, region.name: self._here}
        for name, other in region.others.items():
            if isinstance(other, str):
                self._opened.append(open_async_store(other, clock))
            self._stores[name] = _peer_of(self._opened[-1] if isinstance(other, str) else other, name)
        self._router = Router(region, holder, clock, failure_mode, self._notify)
        self._workers = AsyncDutyWorkers(self._do)
        renew_in_children(self)

    async def check(self, groups: Sequence[Group]) -> Sequence[Answer]:
        """Decide each group separately. If only some could not be decided, their answers are `StoreError`s."""
        if not any(map(self._router.is_spread, groups)):
            return await self._here.check(groups)
        await self._catch_up()
        answers = await self._run(self._router.decide(groups))
        return require_any_answer(answers)

    def compile(self, plan: Plan, states: WarningStates | None = None, shown: Plan | None = None) -> Program:  # noqa: ARG002
        """Return the program of a plan. For a single rule, it is chosen here, once, by how regions share the rule."""
        if not self._router.is_spread(Group(plan.limits)):
            return self._program(self._here, plan, states)
        grouped = async_group_program(self.check, plan, states)
        if len(plan.limits) != 1 or plan.shadows:
            return grouped
        spread = self._limit_program(plan, states)

        async def check(
            subjects: tuple[str, ...], costs: tuple[int, ...], peek: bool = False, extras: Extras | None = None
        ) -> Any:
            if peek or extras is not None:
                return await grouped(subjects, costs, peek, extras)
            if self._clock is not None:
                await self._catch_up()
            return await spread(subjects, costs)

        return check

    def _limit_program(self, plan: Plan, states: WarningStates | None) -> LimitProgram:
        """Return the program of one limit, by how regions share it."""
        (template,) = plan.limits
        router, mode = self._router, self._router.spread_of(template)
        if mode == "separate":
            return self._program(self._here, plan, states)
        if mode == "central":
            return self._program(self._stores[router.central], plan, states)
        counts = router.counts

        async def refuse(subjects: tuple[str, ...], costs: tuple[int, ...]) -> Decision:
            return refusal(router, mode, plan, states, subjects, costs)

        def with_quota(quota: Quota | None) -> LimitProgram:
            if quota is None:
                return refuse
            own = Plan((template._replace(quota=quota),))
            return self._program(self._here, own, states, plan if mode == "synced" else None)

        async def listen(program: LimitProgram, subjects: tuple[str, ...], costs: tuple[int, ...]) -> Decision:
            decision: Decision = await program(subjects, costs)
            counts.note_answer(decision.at_us, router.now_us())
            return decision

        if mode == "quota":
            return with_quota(router.share(template.quota))
        programs = LimitPrograms(lambda limit: with_quota(router.with_limit(template.quota, limit)))
        return (
            granted_program(router, template, programs)
            if mode == "quota_auto"
            else synced_program(router, template, programs, listen)
        )

    async def refund(self, charges: Sequence[Charge]) -> None:
        await self._run(self._router.refund(charges, "refund"))

    async def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> Sequence[int] | None:
        return await self._run(self._router.refund(refunds, "adjust", surcharges))

    async def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        await self._run(self._router.reset(checks, clients))

    async def save_reservation(self, reservation_id: str, record: str, ttl_us: int) -> None:
        await self._reserving_store().save_reservation(reservation_id, record, ttl_us)

    def new_reservation_id(self, charge: Group) -> str | None:
        """Return the id of a new reservation; None for rules that several regions share."""
        here = self._here
        if not isinstance(here, AsyncAtomicReservingStore) or self._router.is_spread(charge):
            return None
        return here.new_reservation_id(charge)

    async def reserve(self, reservation_id: str, pending: Record, ttl_us: int) -> ReservationAnswer:
        here = self._here
        assert isinstance(here, AsyncAtomicReservingStore), f"{type(here).__name__} has no `reserve`"
        return await here.reserve(reservation_id, pending, ttl_us)

    async def renew(self, reservation_id: str, record: str, ttl_us: int) -> bool:
        return await self._reserving_store().renew(reservation_id, record, ttl_us)

    async def claim_reservation(self, reservation_id: str, cost: Cost) -> Claim | None:
        return await self._reserving_store().claim_reservation(reservation_id, cost)

    async def claim_expired(self) -> ExpiredClaims:
        return await self._reserving_store().claim_expired()

    async def settle(self, settled: Sequence[ClaimedAdjustments]) -> Sequence[Sequence[int]]:
        return await self._run(self._router.settle(settled))

    def status(self) -> RegionStatus:
        return self._router.status()

    async def exchange(self) -> None:
        """Do the background work now: read the others' counts, and renew shares."""
        for duty in self._router.duties:
            await self._do(duty)

    async def close(self) -> None:
        """Stop background work, and close the other regions' stores. The owner of our own store closes it."""
        await self._workers.close()
        for store in self._opened:
            await store.close()

    def reset_after_fork(self) -> None:
        """Reset in a forked child: background work is the parent's."""
        self._workers.reset_after_fork()
        self._router.reset_after_fork()

    def _program(
        self, store: AsyncStore, plan: Plan, states: WarningStates | None, shown: Plan | None = None
    ) -> Program:
        if isinstance(store, AsyncCompilingStore):
            return store.compile(plan, states, shown)
        return async_group_program(store.check, plan, states, shown)

    def _reserving_store(self) -> AsyncReservingStore:
        assert isinstance(self._here, AsyncReservingStore), f"{type(self._here).__name__} keeps no reservations"
        return self._here

    async def _catch_up(self) -> None:
        """Do the work that is due, if nothing runs in the background."""
        if self._clock is not None:
            for duty in self._router.duties:
                if duty.due_us() == 0:
                    await self._do(duty)

    def _notify(self, duty: Duty) -> None:
        if self._clock is None:
            self._workers.notify(duty)

    async def _do(self, duty: Duty) -> None:
        await self._run(duty.work())

    async def _run(self, steps: Steps[T]) -> T:
        """Take the steps of a router, calling stores in between."""
        try:
            asks = next(steps)
            while True:
                # sync: asks = steps.send([self._ask(ask) for ask in asks])
                if len(asks) == 1:  # async only
                    asks = steps.send([await self._ask(asks[0])])
                else:
                    asks = steps.send(list(await asyncio.gather(*map(self._ask, asks))))
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _ask(self, ask: StoreCall) -> Any:
        try:
            return await getattr(self._stores[ask.region], ask.method)(*ask.arguments)
        except StoreError as error:
            return error


def _peer_of(store: Any, name: str) -> AsyncPeerStore:
    """Return a store that other regions can read. Raises `ValueError`."""
    if isinstance(store, MemoryStore):  # async only
        store = AsyncMemoryStore(store)
    if not isinstance(store, AsyncPeerStore):
        raise ValueError(f"region {name!r}: store: {type(store).__name__} cannot be read by other regions")  # noqa: TRY004
    return store
