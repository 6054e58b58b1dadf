"""Rules with `shards`: a store that wraps another and divides their limits. All other checks pass through."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final

from headgate.core.check import Answer, Charge, Check, Client, Extras, Group
from headgate.core.decision import Decision
from headgate.core.plan import Plan
from headgate.core.reading import WarningStates
from headgate.core.reservation import Adjustments, ClaimedAdjustments
from headgate.errors import StoreUnavailable
from headgate.features.async_steps import run_async
from headgate.features.shards.groups import checks_everywhere, decide, lay_out_surcharges
from headgate.features.shards.search import Home, checks_of_parts, conclude, is_last, search_of, skip_shard
from headgate.stores.program import Program, async_group_program
from headgate.stores.protocol import (
    AsyncAtomicReservingStore,
    AsyncCompilingStore,
    AsyncHeartbeatStore,
    AsyncReservingStore,
    AsyncStore,
)

Answers = Sequence[Answer]
ONE: Final = (1,)  # the costs of a request that fits into any single shard


class AsyncShardedStore:
    """A store that wraps another. It has the same optional methods as that store."""

    # Set if the store has them. None of them references this object, so that it is freed as soon as it is unused.
    compile: Any
    save_reservation: Any
    new_reservation_id: Any
    reserve: Any
    renew: Any
    claim_reservation: Any
    claim_expired: Any
    settle: Any
    adjust: Any
    record_heartbeat: Any

    def __init__(self, store: AsyncStore, home: Home | None = None) -> None:
        self.store = store
        self.home = home = home or Home()
        self.compile = partial(_compile_async, store, home)
        if isinstance(store, AsyncReservingStore):
            self.save_reservation, self.renew = store.save_reservation, store.renew
            self.claim_reservation, self.claim_expired = store.claim_reservation, store.claim_expired
            self.settle = partial(_settle_async, store, home)
            self.adjust = partial(_adjust_async, store, home)
        if isinstance(store, AsyncAtomicReservingStore):
            self.new_reservation_id = partial(_new_reservation_id_async, store, home)
            self.reserve = store.reserve
        if isinstance(store, AsyncHeartbeatStore):
            self.record_heartbeat = store.record_heartbeat

    def check(self, groups: Sequence[Group]) -> Coroutine[Any, Any, Answers]:
        return _check_async(self.store, self.home, groups)

    async def refund(self, charges: Sequence[Charge]) -> None:
        await self.store.refund(charges)  # each names the shard that was charged

    async def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        await self.store.reset(checks_everywhere(checks, self.home.shards), clients)

    async def close(self) -> None:
        await self.store.close()


def _check_async(store: AsyncStore, home: Home, groups: Sequence[Group]) -> Coroutine[Any, Any, Answers]:
    shards = home.shards
    if not shards:
        return store.check(groups)
    return run_async(decide(groups, shards, home.start), store.check)


def _new_reservation_id_async(store: AsyncAtomicReservingStore, home: Home, charge: Group) -> str | None:
    """Return the id of a new reservation; None for rules with shards, because several shards may have to be tried."""
    if any(check.rule in home.shards for check in charge.checks):
        return None
    return store.new_reservation_id(charge)


async def _adjust_async(
    store: AsyncReservingStore, home: Home, refunds: Sequence[Charge], more: Sequence[Check] = ()
) -> Sequence[int] | None:
    return await store.adjust(refunds, await run_async(lay_out_surcharges(more, home.shards), store.check))


async def _settle_async(
    store: AsyncReservingStore, home: Home, settled: Sequence[ClaimedAdjustments]
) -> Sequence[Sequence[int]]:
    if not home.shards:
        return await store.settle(settled)
    laid_out = []
    for claim, (refunds, more) in settled:
        surcharges = await run_async(lay_out_surcharges(more, home.shards), store.check)
        laid_out.append(ClaimedAdjustments(claim, Adjustments(refunds, tuple(surcharges))))
    return await store.settle(laid_out)


def _compile_async(store: AsyncStore, home: Home, plan: Plan, states: WarningStates | None = None) -> Program:
    """Return the program of a plan. A plan without shards gets the store's own program."""
    shards = home.shards
    counts = [shards.get(limit.rule, 1) for limit in plan.limits]
    if max(counts, default=1) == 1:
        if isinstance(store, AsyncCompilingStore):
            return store.compile(plan, states)
        return async_group_program(store.check, plan, states)
    grouped = async_group_program(partial(_check_async, store, home), plan, states)
    if len(counts) != 1 or plan.shadows:
        return grouped
    programs = [_compile_async(store, home, Plan((part,))) for part in checks_of_parts(plan, counts[0])]

    async def check(
        subjects: tuple[str, ...], costs: tuple[int, ...], peek: bool = False, extras: Extras | None = None
    ) -> Any:
        if costs != ONE or peek or extras is not None:
            return await grouped(subjects, costs, peek, extras)
        search, away = search_of(plan, subjects, counts[0], home), None
        while True:
            try:
                decision: Decision = await programs[search.layout[0][0]](subjects, costs)
            except StoreUnavailable as error:
                away = skip_shard(search, error)
                continue
            if decision.allowed or is_last(search, decision, away):
                return conclude(plan, states, search, decision)

    return check
