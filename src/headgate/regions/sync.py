"""RegionalStore: the I/O that `Router` asks for, for threads; what is done in the background has a thread each."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from threading import Event, Lock, Thread
from typing import Any, TypeVar

from headgate.core.check import Answer, Charge, Check, Client, Extras, Group, answered
from headgate.core.clock import Clock
from headgate.core.decision import Decision, States
from headgate.core.fork import renew_in_children
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
from headgate.stores.program import Program, group_program
from headgate.stores.protocol import AsyncStore, BeatingStore, CompilingStore, PeerStore, ReservingStore, Store
from headgate.stores.urls import open_store

T = TypeVar("T")

log = logging.getLogger("headgate")


class RegionalStore:
    """This region's store, for rules that several regions share. Other regions' stores are opened and closed by it.

    With a `clock`, which a test moves, nothing is done in the background: what is due is done before a check.
    """

    beat: Any  # there if this region's store has it

    def __init__(
        self, region: Region, store: Store, holder: Holder, clock: Clock | None, failure_mode: FailureMode
    ) -> None:
        self._here = peer_of(store, region.name)
        if isinstance(store, BeatingStore):
            self.beat = store.beat
        self._clock = clock
        self._opened: list[Store] = []
        self._stores: dict[str, PeerStore] = {HERE: self._here, region.name: self._here}
        for name, other in region.others.items():
            if isinstance(other, str):
                self._opened.append(open_store(other, clock))
            self._stores[name] = peer_of(self._opened[-1] if isinstance(other, str) else other, name)
        self._router = Router(region, holder, clock, failure_mode, self._notify)
        self._workers: dict[str, _Worker] = {}
        self._lock = Lock()
        self._closed = False
        renew_in_children(self)

    def check(self, groups: Sequence[Group]) -> Sequence[Answer]:
        """See `Store.check`. If only some groups could not be decided, the answer to these is a `StoreError`."""
        if not any(map(self._router.asked, groups)):
            return self._here.check(groups)
        self._catch_up()
        answers = self._run(self._router.decide(groups))
        return answered(answers)

    def compile(self, plan: Plan, states: States | None = None, told: Plan | None = None) -> Program:  # noqa: ARG002
        """Return the program of a plan. How a single rule is spread is settled here, once."""
        if not self._router.asked(Group(plan.limits)):
            return self._program(self._here, plan, states)
        grouped = group_program(self.check, plan, states)
        if len(plan.limits) != 1 or plan.shadows:
            return grouped
        spread = self._spread(plan, states)

        def check(
            subjects: tuple[str, ...],
            costs: tuple[int, ...],
            peek: bool = False,
            extras: Extras | None = None,
        ) -> Any:
            if peek or extras is not None:
                return grouped(subjects, costs, peek, extras)
            self._catch_up()
            return spread(subjects, costs)

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

        def nothing(subjects: tuple[str, ...], costs: tuple[int, ...]) -> Decision:
            return refusal(router, mode, plan, states, subjects, costs)

        def under(quota: Quota | None) -> Way:
            if quota is None:
                return nothing
            own = Plan((template._replace(quota=quota),))
            return self._program(self._here, own, states, plan if mode == "synced" else None)

        def listen(way: Way, subjects: tuple[str, ...], costs: tuple[int, ...]) -> Decision:
            decision: Decision = way(subjects, costs)
            counts.heard(decision.at_us, router.now_us())
            return decision

        if mode == "quota":
            return under(router.share(template.quota))
        ways = Ways(lambda limit: under(router.under(template.quota, limit)))
        return granted(router, template, ways) if mode == "quota_auto" else synced(router, template, ways, listen)

    def refund(self, charges: Sequence[Charge]) -> None:
        self._run(self._router.refund(charges, "refund"))

    def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> Sequence[int] | None:
        return self._run(self._router.refund(refunds, "adjust", surcharges))

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        self._run(self._router.reset(checks, clients))

    def hold(self, reservation_id: str, record: str, ttl_us: int) -> None:
        self._reserving().hold(reservation_id, record, ttl_us)

    def renew(self, reservation_id: str, record: str, ttl_us: int) -> bool:
        return self._reserving().renew(reservation_id, record, ttl_us)

    def claim(self, reservation_id: str) -> Claim | None:
        return self._reserving().claim(reservation_id)

    def expire(self) -> Expired:
        return self._reserving().expire()

    def status(self) -> RegionStatus:
        return self._router.status()

    def exchange(self) -> None:
        """Do now what is else done in the background: hear the others' counts, and have shares renewed."""
        for duty in self._router.duties:
            self._run(duty.work())

    def close(self) -> None:
        """End what is done in the background, and close the other regions' stores. Our own is its owner's."""
        with self._lock:
            self._closed = True
            workers = list(self._workers.values())
        for worker in workers:
            worker.end()
        for store in self._opened:
            store.close()

    def forked(self) -> None:
        """In a forked child: threads are the parent's."""
        self._lock, self._workers = Lock(), {}
        self._router.forked()

    def _program(self, store: Store, plan: Plan, states: States | None, told: Plan | None = None) -> Program:
        if isinstance(store, CompilingStore):
            return store.compile(plan, states, told)
        return group_program(store.check, plan, states, told)

    def _reserving(self) -> ReservingStore:
        assert isinstance(self._here, ReservingStore), f"{type(self._here).__name__} keeps no reservations"
        return self._here

    def _catch_up(self) -> None:
        """Where nothing is done in the background: do what is due."""
        if self._clock is not None:
            for duty in self._router.duties:
                if duty.due_us() == 0:
                    self._run(duty.work())

    def _notify(self, duty: Duty) -> None:
        if self._clock is not None or self._closed:
            return
        worker = self._workers.get(duty.name)
        if worker is None or not worker.wake():
            with self._lock:
                worker = self._workers.get(duty.name)
                if not self._closed and (worker is None or not worker.wake()):
                    self._workers[duty.name] = _Worker(self, duty)

    def _run(self, steps: Steps[T]) -> T:
        """Take the steps of a router, asking stores in between."""
        try:
            asks = next(steps)
            while True:
                asks = steps.send([self._ask(ask) for ask in asks])
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _ask(self, ask: Ask) -> Any:
        try:
            return getattr(self._stores[ask.region], ask.method)(*ask.arguments)
        except StoreError as error:
            return error


class _Worker:
    """A thread that does one duty while there is anything to do, and ends then."""

    def __init__(self, store: RegionalStore, duty: Duty) -> None:
        self._store = store
        self._duty = duty
        self._wake = Event()
        self._lock = Lock()
        self._ended = self._ending = False
        self._thread = Thread(target=self._work, name=f"headgate-{duty.name.replace(' ', '-')}", daemon=True)
        self._thread.start()

    def wake(self) -> bool:
        """Have it look. False: it has ended."""
        if self._wake.is_set() and not self._ended:
            return True
        with self._lock:
            self._wake.set()
            return not self._ended

    def end(self) -> None:
        self._ending = True
        self._wake.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ending:
            due_us = self._duty.due_us()
            if due_us is None:
                with self._lock:
                    if not self._wake.is_set():
                        self._ended = True
                        return
            elif due_us:
                self._wake.wait(due_us / 1_000_000)
            self._wake.clear()
            if self._ending or self._duty.due_us() != 0:
                continue
            try:
                self._store._run(self._duty.work())
            except Exception:  # a thread that has ended would be missed by nobody, and regions would drift apart
                log.exception("regions: something went wrong in the background (%s)", self._duty.name)
                self._wake.wait(1.0)


def peer_of(store: Store | AsyncStore, name: str) -> PeerStore:
    """A store that other regions can read. Raises `ValueError`."""
    if not isinstance(store, PeerStore):
        raise ValueError(f"region {name!r}: store: {type(store).__name__} cannot be read by other regions")  # noqa: TRY004
    return store
