# Generated from async_sharded_store.py by scripts/generate-sync: edit that file, and run `make generate`.
"""Rules with `shards`: a store that wraps another and divides their limits. All other checks pass through."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from headgate.core.check import Answer, Charge, Check, Client, Extras, Group
from headgate.core.decision import Decision
from headgate.core.plan import Plan
from headgate.core.reading import WarningStates
from headgate.core.reservation import Adjustments, ClaimedAdjustments
from headgate.errors import StoreUnavailable
from headgate.features.shards.groups import checks_everywhere, decide, lay_out_surcharges
from headgate.features.shards.search import Home, checks_of_parts, conclude, is_last, search_of, skip_shard
from headgate.features.steps import run
from headgate.stores.program import Program, group_program
from headgate.stores.protocol import (
    AtomicReservingStore,
    CompilingStore,
    HeartbeatStore,
    ReservingStore,
    Store,
)

Answers = Sequence[Answer]
ONE: Final = (1,)  # the costs of a request that fits into any single shard


class ShardedStore:
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

    def __init__(self, store: Store, home: Home | None = None) -> None:
        self.store = store
        self.home = home = home or Home()
        self.compile = partial(_compile, store, home)
        if isinstance(store, ReservingStore):
            self.save_reservation, self.renew = store.save_reservation, store.renew
            self.claim_reservation, self.claim_expired = store.claim_reservation, store.claim_expired
            self.settle = partial(_settle, store, home)
            self.adjust = partial(_adjust, store, home)
        if isinstance(store, AtomicReservingStore):
            self.new_reservation_id = partial(_new_reservation_id, store, home)
            self.reserve = store.reserve
        if isinstance(store, HeartbeatStore):
            self.record_heartbeat = store.record_heartbeat

    def check(self, groups: Sequence[Group]) -> Answers:
        return _check(self.store, self.home, groups)

    def refund(self, charges: Sequence[Charge]) -> None:
        self.store.refund(charges)  # each names the shard that was charged

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        self.store.reset(checks_everywhere(checks, self.home.shards), clients)

    def close(self) -> None:
        self.store.close()


def _check(store: Store, home: Home, groups: Sequence[Group]) -> Answers:
    shards = home.shards
    if not shards:
        return store.check(groups)
    return run(decide(groups, shards, home.start), store.check)


def _new_reservation_id(store: AtomicReservingStore, home: Home, charge: Group) -> str | None:
    """Return the id of a new reservation; None for rules with shards, because several shards may have to be tried."""
    if any(check.rule in home.shards for check in charge.checks):
        return None
    return store.new_reservation_id(charge)


def _adjust(
    store: ReservingStore, home: Home, refunds: Sequence[Charge], more: Sequence[Check] = ()
) -> Sequence[int] | None:
    return store.adjust(refunds, run(lay_out_surcharges(more, home.shards), store.check))


def _settle(store: ReservingStore, home: Home, settled: Sequence[ClaimedAdjustments]) -> Sequence[Sequence[int]]:
    if not home.shards:
        return store.settle(settled)
    laid_out = []
    for claim, (refunds, more) in settled:
        surcharges = run(lay_out_surcharges(more, home.shards), store.check)
        laid_out.append(ClaimedAdjustments(claim, Adjustments(refunds, tuple(surcharges))))
    return store.settle(laid_out)


def _compile(store: Store, home: Home, plan: Plan, states: WarningStates | None = None) -> Program:
    """Return the program of a plan. A plan without shards gets the store's own program."""
    shards = home.shards
    counts = [shards.get(limit.rule, 1) for limit in plan.limits]
    if max(counts, default=1) == 1:
        if isinstance(store, CompilingStore):
            return store.compile(plan, states)
        return group_program(store.check, plan, states)
    grouped = group_program(partial(_check, store, home), plan, states)
    if len(counts) != 1 or plan.shadows:
        return grouped
    programs = [_compile(store, home, Plan((part,))) for part in checks_of_parts(plan, counts[0])]

    def check(
        subjects: tuple[str, ...], costs: tuple[int, ...], peek: bool = False, extras: Extras | None = None
    ) -> Any:
        if costs != ONE or peek or extras is not None:
            return grouped(subjects, costs, peek, extras)
        search, away = search_of(plan, subjects, counts[0], home), None
        while True:
            try:
                decision: Decision = programs[search.layout[0][0]](subjects, costs)
            except StoreUnavailable as error:
                away = skip_shard(search, error)
                continue
            if decision.allowed or is_last(search, decision, away):
                return conclude(plan, states, search, decision)

    return check
