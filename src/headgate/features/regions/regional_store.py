# Generated from async_regional_store.py by scripts/generate-sync: edit that file, and run `make generate`.
"""RegionalStore: the I/O for `Router`."""

from __future__ import annotations

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
from headgate.features.regions.duty_worker import DutyWorkers
from headgate.features.regions.link import HERE, Duty, Steps, StoreCall
from headgate.features.regions.programs import LimitProgram, LimitPrograms, granted_program, refusal, synced_program
from headgate.features.regions.region import Region, RegionStatus
from headgate.features.regions.router import Router
from headgate.rules.holder import Holder
from headgate.rules.rule import FailureMode
from headgate.stores.program import Program, group_program
from headgate.stores.protocol import (
    AtomicReservingStore,
    CompilingStore,
    HeartbeatStore,
    PeerStore,
    ReservingStore,
    Store,
)
from headgate.stores.urls import open_store

T = TypeVar("T")


class RegionalStore:
    """This region's store, for rules that several regions share. It opens and closes the other regions' stores.

    With a `clock`, which a test advances, nothing runs in the background: work that is due is done before a check.
    """

    record_heartbeat: Any  # set if this region's store has it

    def __init__(
        self, region: Region, store: Store, holder: Holder, clock: Clock | None, failure_mode: FailureMode
    ) -> None:
        self._here = _peer_of(store, region.name)
        if isinstance(store, HeartbeatStore):
            self.record_heartbeat = store.record_heartbeat
        self._clock = clock
        self._opened: list[Store] = []
        self._stores: dict[str, PeerStore] = {HERE: self._here, region.name: self._here}
        for name, other in region.others.items():
            if isinstance(other, str):
                self._opened.append(open_store(other, clock))
            self._stores[name] = _peer_of(self._opened[-1] if isinstance(other, str) else other, name)
        self._router = Router(region, holder, clock, failure_mode, self._notify)
        self._workers = DutyWorkers(self._do)
        renew_in_children(self)

    def check(self, groups: Sequence[Group]) -> Sequence[Answer]:
        """Decide each group separately. If only some could not be decided, their answers are `StoreError`s."""
        if not any(map(self._router.is_spread, groups)):
            return self._here.check(groups)
        self._catch_up()
        answers = self._run(self._router.decide(groups))
        return require_any_answer(answers)

    def compile(self, plan: Plan, states: WarningStates | None = None, shown: Plan | None = None) -> Program:  # noqa: ARG002
        """Return the program of a plan. For a single rule, it is chosen here, once, by how regions share the rule."""
        if not self._router.is_spread(Group(plan.limits)):
            return self._program(self._here, plan, states)
        grouped = group_program(self.check, plan, states)
        if len(plan.limits) != 1 or plan.shadows:
            return grouped
        spread = self._limit_program(plan, states)

        def check(
            subjects: tuple[str, ...], costs: tuple[int, ...], peek: bool = False, extras: Extras | None = None
        ) -> Any:
            if peek or extras is not None:
                return grouped(subjects, costs, peek, extras)
            if self._clock is not None:
                self._catch_up()
            return spread(subjects, costs)

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

        def refuse(subjects: tuple[str, ...], costs: tuple[int, ...]) -> Decision:
            return refusal(router, mode, plan, states, subjects, costs)

        def with_quota(quota: Quota | None) -> LimitProgram:
            if quota is None:
                return refuse
            own = Plan((template._replace(quota=quota),))
            return self._program(self._here, own, states, plan if mode == "synced" else None)

        def listen(program: LimitProgram, subjects: tuple[str, ...], costs: tuple[int, ...]) -> Decision:
            decision: Decision = program(subjects, costs)
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

    def refund(self, charges: Sequence[Charge]) -> None:
        self._run(self._router.refund(charges, "refund"))

    def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> Sequence[int] | None:
        return self._run(self._router.refund(refunds, "adjust", surcharges))

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        self._run(self._router.reset(checks, clients))

    def save_reservation(self, reservation_id: str, record: str, ttl_us: int) -> None:
        self._reserving_store().save_reservation(reservation_id, record, ttl_us)

    def new_reservation_id(self, charge: Group) -> str | None:
        """Return the id of a new reservation; None for rules that several regions share."""
        here = self._here
        if not isinstance(here, AtomicReservingStore) or self._router.is_spread(charge):
            return None
        return here.new_reservation_id(charge)

    def reserve(self, reservation_id: str, pending: Record, ttl_us: int) -> ReservationAnswer:
        here = self._here
        assert isinstance(here, AtomicReservingStore), f"{type(here).__name__} has no `reserve`"
        return here.reserve(reservation_id, pending, ttl_us)

    def renew(self, reservation_id: str, record: str, ttl_us: int) -> bool:
        return self._reserving_store().renew(reservation_id, record, ttl_us)

    def claim_reservation(self, reservation_id: str, cost: Cost) -> Claim | None:
        return self._reserving_store().claim_reservation(reservation_id, cost)

    def claim_expired(self) -> ExpiredClaims:
        return self._reserving_store().claim_expired()

    def settle(self, settled: Sequence[ClaimedAdjustments]) -> Sequence[Sequence[int]]:
        return self._run(self._router.settle(settled))

    def status(self) -> RegionStatus:
        return self._router.status()

    def exchange(self) -> None:
        """Do the background work now: read the others' counts, and renew shares."""
        for duty in self._router.duties:
            self._do(duty)

    def close(self) -> None:
        """Stop background work, and close the other regions' stores. The owner of our own store closes it."""
        self._workers.close()
        for store in self._opened:
            store.close()

    def reset_after_fork(self) -> None:
        """Reset in a forked child: background work is the parent's."""
        self._workers.reset_after_fork()
        self._router.reset_after_fork()

    def _program(self, store: Store, plan: Plan, states: WarningStates | None, shown: Plan | None = None) -> Program:
        if isinstance(store, CompilingStore):
            return store.compile(plan, states, shown)
        return group_program(store.check, plan, states, shown)

    def _reserving_store(self) -> ReservingStore:
        assert isinstance(self._here, ReservingStore), f"{type(self._here).__name__} keeps no reservations"
        return self._here

    def _catch_up(self) -> None:
        """Do the work that is due, if nothing runs in the background."""
        if self._clock is not None:
            for duty in self._router.duties:
                if duty.due_us() == 0:
                    self._do(duty)

    def _notify(self, duty: Duty) -> None:
        if self._clock is None:
            self._workers.notify(duty)

    def _do(self, duty: Duty) -> None:
        self._run(duty.work())

    def _run(self, steps: Steps[T]) -> T:
        """Take the steps of a router, calling stores in between."""
        try:
            asks = next(steps)
            while True:
                asks = steps.send([self._ask(ask) for ask in asks])
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _ask(self, ask: StoreCall) -> Any:
        try:
            return getattr(self._stores[ask.region], ask.method)(*ask.arguments)
        except StoreError as error:
            return error


def _peer_of(store: Any, name: str) -> PeerStore:
    """Return a store that other regions can read. Raises `ValueError`."""
    if not isinstance(store, PeerStore):
        raise ValueError(f"region {name!r}: store: {type(store).__name__} cannot be read by other regions")  # noqa: TRY004
    return store
