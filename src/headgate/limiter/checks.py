# Generated from async_checks.py by scripts/generate-sync: edit that file, and run `make generate`.
"""Checks: the part of a limiter that decides requests. `Limiter` adds the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headgate.core.check import Answer
from headgate.core.clock import Clock
from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.errors import StoreError
from headgate.features.shards.sharded_store import ShardedStore
from headgate.limiter.batch import (
    decide_each,
)
from headgate.limiter.blocks import Blocks
from headgate.limiter.engine import Engine
from headgate.limiter.execution import decide
from headgate.limiter.heartbeat import Heartbeat
from headgate.limiter.prepared_check import NO_SUBJECT, PreparedCheck, Request, Subject
from headgate.limiter.refusals import OnRefused, Wait, call_hook, checked_hook
from headgate.limiter.reservations import Reservations
from headgate.limiter.rule_inputs import Rules
from headgate.limiter.slot_records import SlotUse
from headgate.limiter.slots import Slots
from headgate.limiter.startup import require_answer, warn_of_workers
from headgate.rules.rule import FailureMode
from headgate.rules.snapshot import Snapshot
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import HeartbeatStore, ReservingStore, Store
from headgate.stores.urls import no_store, open_store

if TYPE_CHECKING:
    from headgate.features.leases.leasing import Leasing
    from headgate.features.regions.region import Region
    from headgate.features.regions.regional_store import RegionalStore

ONE: Final = (1,)  # the costs of a request with one limit


class Checks:
    """The parts of a limiter, and its methods that decide requests."""

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
            blocks=None if in_memory else Blocks(),
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
        if not in_memory and isinstance(self._store, HeartbeatStore | ReservingStore):
            self._engine.heartbeat = self._heartbeat = Heartbeat(self._store, self._engine)
        self._leasing: Leasing | None = None  # None in memory, where a lease would save nothing
        if not self.in_memory:
            from headgate.features.leases.leasing import Leasing  # noqa: PLC0415

            self._leasing = Leasing(self._store, self.holder, clock, self._engine.note_store_answer)
            self._engine.compile, self._engine.leases = self._leasing.compile, True
        self._reservations = Reservations(self._store, self._engine)
        self._slots = Slots(self._engine, self._here)
        # check("alice") calls its plan's program directly: looking the plan up would take longer than the check itself.
        self._subject_program = self._engine.subject_program() if on_refused is None else None

    def check(
        self,
        subject: Subject = NO_SUBJECT,
        /,
        *,
        cost: Cost = 1,
        idempotency_key: str | None = None,
        **facts: Any,
    ) -> Decision:
        """Charge `cost` to every limit that applies to this request, or to none of them.

        The request is a `subject`, or facts by name (`user="alice", ip="192.0.2.7", endpoint="/search"`). A cost of 0
        reads without charging. `{"requests": 1, "tokens": 4_000}` charges each rule by its own unit; rules whose unit
        it does not name do not apply. A call with an `idempotency_key` from the last five minutes gets the first call's
        decision and charges nothing; with other facts it raises `IdempotencyConflict`.
        """
        if subject.__class__ is str and not facts:
            program = self._subject_program
            if (
                program is not None
                and cost == 1
                and cost.__class__ is int
                and idempotency_key is None
                and not self._outage.lasts  # `decide` notices the end of an outage
            ):
                try:
                    decided: Decision = program((subject,), ONE)
                except StoreError as error:
                    return self._engine.decide_subject_without_store(subject, error)
                return decided
            texts = {"user": subject}
        else:
            texts = self._engine.texts_of(subject, facts)
        decision = self.decide(texts, cost=cost, idempotency_key=idempotency_key)
        if not decision.allowed:
            self.tell_refused(decision, texts)
        return decision

    def decide(
        self,
        facts: dict[str, str],
        *,
        cost: Cost = 1,
        idempotency_key: str | None = None,
        peek: bool = False,
        slots: SlotUse = "refuse",
    ) -> Decision:
        """Check facts that are known to be strings. For middleware and other code that reads them from a request.

        A `peek` charges nothing. `slots` says what to do when rules limit concurrency. A decision that takes a slot has
        it as `slot`, which is renewed until it is released.
        """
        engine = self._engine
        if self._reservations.due is not None:
            self._reservations.attend(self._reservations.due)
        snapshot = self.holder.current
        whole = snapshot.planner.plan(facts, engine.clock)
        plan, costs = whole.price(cost)
        if idempotency_key is not None or snapshot.terms is not None or not plan.limits or plan.slots:
            if plan.slots and slots in ("take", "lend") and not peek:
                return self._slots.take(facts, (snapshot, whole), cost, slots == "take")
            planned = (snapshot, whole.rates if slots == "skip" else whole)
            return decide(engine, engine.prepare(facts, planned, cost, idempotency_key, peek=peek))
        program = engine.programs[plan]
        subjects = plan.subjects(facts)
        try:
            decision: Decision = program(subjects, costs, peek)
        except StoreError as error:
            return engine.decide_without_store(PreparedCheck(plan, subjects, costs, peek), error)
        if engine.outage.lasts:
            engine.note_answer(plan)
        if peek:
            decision.settled = True
        return decision

    def peek(self, subject: Subject = NO_SUBJECT, /, *, cost: Cost = 1, **facts: Any) -> Decision:
        """Return what `check` would decide now, without charging. `remaining` is what is left now."""
        return self.decide(self._engine.texts_of(subject, facts), cost=cost, peek=True)

    def check_many(self, requests: Iterable[Request]) -> list[Decision]:
        """Check several requests in one round trip to the store. Each is decided separately, in order.

        A request is a subject, or a mapping of facts that may include `cost` and `idempotency_key`.
        """
        requests = list(requests)
        decisions = self._decide_many(self._engine.prepare_many(requests))
        for request, decision in zip(requests, decisions, strict=True):
            if not decision.allowed:
                facts_said = dict(request) if isinstance(request, Mapping) else {"user": request}
                self.tell_refused(decision, facts_said)
        return decisions

    def wait(
        self,
        subject: Subject = NO_SUBJECT,
        /,
        *,
        timeout: float | None = None,
        cost: Cost = 1,
        **facts: Any,
    ) -> Decision:
        """Check; if refused, sleep until the request would pass, and try again.

        Gives up, and returns the refusal, as soon as it is clear that `timeout` seconds are not enough or that waiting
        does not help. With a timeout of None, it waits as long as necessary.
        """
        wait = Wait(self._engine.clock, timeout)
        texts = self._engine.texts_of(subject, facts)
        while True:
            decision = self.decide(texts, cost=cost)
            seconds = wait.seconds(decision)
            if seconds is None:
                if not decision.allowed:
                    self.tell_refused(decision, texts)
                return decision
            self._engine.clock.sleep(seconds)

    def tell_refused(self, decision: Decision, facts: Mapping[str, Any]) -> None:
        """Call the hook `on_refused`. For middleware that refuses requests itself."""
        call_hook(self._engine.on_refused, decision, facts)

    @property
    def failing(self) -> bool:
        """Whether the store could not decide the last check that it was sent."""
        return self._engine.failing

    @property
    def clock(self) -> Clock:
        """The clock for everything that does not use the store's clock."""
        return self._engine.clock

    @property
    def snapshot(self) -> Snapshot:
        """The rules in force. `snapshot.version` identifies them."""
        return self._engine.snapshot

    def _decide_in_memory(self, prepared: list[PreparedCheck]) -> list[Decision]:
        """Decide prepared requests in memory: in one call, if they have the same program."""
        many = self._engine.program_of_many(prepared)
        if many is None:
            return decide_each(prepared, partial(decide, self._engine))
        return self._engine.conclude_many(prepared, many([one[1:3] for one in prepared]))

    def _decide_many(self, prepared: list[PreparedCheck]) -> list[Decision]:
        if self._reservations.due is not None:
            self._reservations.attend(self._reservations.due)
        if self.in_memory:
            return self._decide_in_memory(prepared)
        many = self._engine.program_of_many(prepared)
        if many is not None:
            decided = many([one[1:3] for one in prepared])
            return self._engine.conclude_many(prepared, decided)
        assert self._leasing is not None
        groups = [one.group for one in prepared if one.sent]
        results: Sequence[Answer] = ()
        answered = False
        try:
            if groups:
                results, answered = self._leasing.check(groups)
        except StoreError as error:
            return self._engine.conclude(prepared, error)
        return self._engine.conclude(prepared, results, answered=answered)
