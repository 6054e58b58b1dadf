"""Limiter: checks from ordinary and from threaded code."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Final, ParamSpec, Self, TypeVar, cast

from headgate.core.check import Group
from headgate.core.clock import Clock
from headgate.core.decision import Decision
from headgate.core.key import qualified
from headgate.core.quota import Quota
from headgate.core.reservation import PENDING_US, Settlement, Settling, checked_id, ttl_us, whole_cost
from headgate.errors import RateLimited, StoreError
from headgate.limiter.batch import decide_each
from headgate.limiter.blocks import Blocks
from headgate.limiter.decorator import Key, quota_of, rule_name, subject_of
from headgate.limiter.engine import Engine
from headgate.limiter.given import Rules, own_limits
from headgate.limiter.leasing import Leasing
from headgate.limiter.prepared import PreparedCheck, Request, Subject
from headgate.limiter.pulse import Pulse
from headgate.limiter.reservation import (
    AT_MOST,
    Due,
    Reservation,
    correction,
    expiring,
    new_id,
    no_reservations,
    record_of,
    reserving,
    settling,
    uncorrected,
    unrenewed,
    unsettled,
)
from headgate.limiter.sharding import Sharding
from headgate.limiter.spreading import RegionStatus, Spreading, SpreadStore
from headgate.limiter.steps import run
from headgate.limiter.wait import Wait
from headgate.rules.rule import FailureMode
from headgate.rules.snapshot import Snapshot
from headgate.stores.leases import Decided, LeaseStatus
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import BeatingStore, ReservingStore, Store
from headgate.stores.urls import no_store, open_store

P = ParamSpec("P")
R = TypeVar("R")

ONE: Final = (1,)  # the costs of a request with one limit


class Limiter:
    """Decides whether requests may pass. Safe to share between threads; for asyncio, see `AsyncLimiter`.

    `rules` is a notation (`"100/minute"`, `"10/second; 100/minute"`), a `Quota`, a list of `Rule`, a `Snapshot`, a
    TOML file (`"rules.toml"`, or a `Path`), which `watch` has reloaded whenever it changes, the URL of a database
    (`"postgresql://…"`, `"sqlite:///rules.db"`), which is always followed, or another `Source`.
    `store` is a URL (`memory://`, `redis://host:6379/0`) or a store, which then stays the caller's to close.
    `name` names the rules made from a notation: limiters that share a store and a name share their counts.
    `failure_mode` decides when the store cannot and the rule does not say: `open` allows, `closed` refuses, `local`
    counts in this process. `warning_at` and `warning_until` are the percentages of use at which a decision's state
    becomes `warning` (80), and below which it is `normal` again (70), unless the rules say. `region` is a
    `headgate.regions.Region`: which of several this is, for rules that they share. `clock` is for tests:
    `headgate.testing.FakeClock`.

    Refusals are values: only invalid arguments raise (`InvalidCheck`, `InvalidRule`, `InvalidQuota`).
    """

    def __init__(
        self,
        rules: Rules,
        *,
        store: str | Store = "memory://",
        clock: Clock | None = None,
        name: str = "default",
        failure_mode: FailureMode = "open",
        region: Spreading | None = None,
        watch: bool = False,
        warning_at: int | None = None,
        warning_until: int | None = None,
    ) -> None:
        self._owned = isinstance(store, str)
        if not isinstance(store, str | Store):
            raise no_store(store)
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
            blocks=None if in_memory else Blocks(),
        )
        self._spread: SpreadStore | None = None  # there where several regions share limits
        if region is not None:
            self._spread = region.open(self._here, self._engine.holder, clock, failure_mode)
        self._store = Sharding(self._here if self._spread is None else self._spread)
        self._store.home.holder = self._engine.holder
        self.holder = self._engine.holder  # of the rules in force
        self._outage = self._engine.outage
        self._in_memory = in_memory and self._spread is None
        self._engine.compile = self._engine.compile_exact = self._store.compile
        self._leasing: Leasing | None = None  # in memory, asking the store costs no more than a lease would
        if not self._in_memory:
            self._leasing = Leasing(self._store, self.holder, clock, self._engine.store_answered)
            self._engine.compile, self._engine.leases = self._leasing.compile, True
        self._pulse: Pulse | None = None
        if not in_memory and isinstance(self._store, BeatingStore | ReservingStore):
            self._engine.pulse = self._pulse = Pulse(self._store, self._engine)
        self._due: Due | None = None  # there once it has had to do with reservations
        self._subject_program = self._engine.subject_program()  # of check("alice")

    def check(
        self,
        subject: Subject | None = None,
        /,
        *,
        cost: int = 1,
        idempotency_key: str | None = None,
        **facts: Any,
    ) -> Decision:
        """Charge `cost` to every limit that applies to this request, or to none of them.

        The request is a `subject`, or facts by name (`user="alice", ip="192.0.2.7", endpoint="/search"`).
        A cost of 0 looks and charges nothing. A call with an `idempotency_key` that was used within the last five
        minutes gets the first one's decision and charges nothing; with other facts it raises
        `IdempotencyConflict`.
        """
        if subject.__class__ is str and not facts:
            program = self._subject_program
            if (
                program is not None
                and cost == 1
                and cost.__class__ is int
                and idempotency_key is None
                and not self._outage.lasts  # `decide` finds the store well again
            ):
                try:
                    decision: Decision = program((subject,), ONE)
                except StoreError as error:
                    return self._engine.failed_subject(subject, error)
                return decision
            return self.decide({"user": subject}, cost=cost, idempotency_key=idempotency_key)
        return self.decide(self._engine.texts_of(subject, facts), cost=cost, idempotency_key=idempotency_key)

    def decide(
        self, facts: dict[str, str], *, cost: int = 1, idempotency_key: str | None = None, peek: bool = False
    ) -> Decision:
        """Check facts that are known to be texts: for middleware and others that read them off a request.

        A `peek` charges nothing.
        """
        engine = self._engine
        if self._due is not None:
            self._attend(self._due)
        snapshot = self.holder.current
        plan = snapshot.planner.plan(facts, engine.clock)
        if idempotency_key is not None or snapshot.terms is not None or not plan.limits:
            return self._decide(engine.prepare(facts, (snapshot, plan), cost, idempotency_key, peek=peek))
        program = engine.programs.get(plan) or engine.program(plan)
        subjects, costs = plan.subjects(facts), plan.costs(cost)
        try:
            decision: Decision = program(subjects, costs, peek)
        except StoreError as error:
            return engine.failed(PreparedCheck(plan, subjects, costs, peek), error)
        if engine.outage.lasts:
            engine.answered(plan)
        if peek:
            decision.settled = True
        return decision

    def peek(self, subject: Subject | None = None, /, *, cost: int = 1, **facts: Any) -> Decision:
        """What `check` would say now, without charging anything; `remaining` is what is there now."""
        return self.decide(self._engine.texts_of(subject, facts), cost=cost, peek=True)

    def check_many(self, requests: Iterable[Request]) -> list[Decision]:
        """Check several requests in one trip to the store, each decided by itself, in order.

        A request is a subject, or a mapping of facts with `cost` and `idempotency_key` if need be.
        """
        prepared = self._engine.prepare_many(requests)
        if self._due is not None:
            self._attend(self._due)
        if self._in_memory:
            return decide_each(prepared, self._decide)
        try:
            results, answered = self._check([one.group for one in prepared if one.sent])
        except StoreError as error:
            return self._engine.conclude(prepared, error)
        return self._engine.conclude(prepared, results, answered=answered)

    def wait(
        self,
        subject: Subject | None = None,
        /,
        *,
        timeout: float | None = None,
        cost: int = 1,
        **facts: Any,
    ) -> Decision:
        """Check; if refused, sleep until it would pass and try again.

        Gives up, and returns the refusal, as soon as it is clear that `timeout` seconds will not be enough or that
        no waiting will help. None waits as long as it takes.
        """
        wait = Wait(self._engine.clock, timeout)
        while True:
            decision = self.check(subject, cost=cost, **facts)
            seconds = wait.seconds(decision)
            if seconds is None:
                return decision
            self._engine.clock.sleep(seconds)

    def reserve(
        self, subject: Subject | None = None, /, *, cost: int = 1, ttl: float = 60.0, **facts: Any
    ) -> Reservation:
        """Check an estimate, to be settled with what it really cost: LLM tokens, rows, bytes.

        Charges `cost` as `check` does, and keeps a record of it. Settle with `reservation.settle(actual)`, or from
        another process with `limiter.settle(reservation.id, actual)`. One that is not settled within `ttl` seconds
        (from 0.001 to 7 days) expires, and its estimate is given back.
        """
        store, lives_us, name = self._reserving(), ttl_us(ttl), new_id()
        texts = self._engine.texts_of(subject, facts)
        prepared = self._engine.prepare(texts, self._engine.planned(texts), cost)
        due = self._look()
        self._attend(due)
        if not prepared.sent:
            return Reservation(self, name, self._engine.unsent(prepared), cost, recorded=False)
        prepared, mark, pending = reserving(prepared, cost, name)
        try:
            store.hold(name, pending, PENDING_US)
        except StoreError as error:
            return Reservation(self, name, self._engine.failed(prepared, error), cost, recorded=False)
        due.expires(self._engine.clock.now_us(), PENDING_US)
        decision = self._decide(prepared, exact=True)
        record = record_of(decision, mark)
        try:
            if record is not None:
                store.renew(name, record.encode(), lives_us)
                due.expires(self._engine.clock.now_us(), lives_us)
            elif decision.reason in ("over_limit", "penalty"):
                store.claim(name)  # nothing was charged
        except StoreError as error:
            unrenewed(error, name)
        return Reservation(self, name, decision, cost, recorded=record is not None)

    def settle(self, reservation_id: str, cost: int) -> Settlement:
        """Say what a reservation really cost: what was too much is given back, and what is more is charged.

        What is more is charged whether it fits or not, as it has been used: the next requests wait for it. Only
        the first call for an id, from whatever process, has an effect; the settlement says whether this one had. A
        store that is away is logged and told in the settlement, never raised.
        """
        name, cost = checked_id(reservation_id), whole_cost(cost)
        store = self._reserving()
        self._look()
        try:
            found: Settling = run(settling(store.claim(name), cost), store.check)
            return found.settled(store.adjust(*found.adjustments))
        except StoreError as error:
            return unsettled(error, name, cost)

    def refund(self, reservation_id: str) -> Settlement:
        """Give back all of a reservation: `settle(reservation_id, 0)`."""
        return self.settle(reservation_id, 0)

    def reset(self, subject: Subject | None = None, /, **facts: Any) -> None:
        """Forget what was counted for this request's subjects, under every rule that applies to it.

        With penalties, it also lifts the blocks of the clients that these facts identify, and forgets their
        violations. Another process may remember a block, but never for longer than it would have lasted.
        """
        checks, clients = self._engine.ask_reset(subject, facts)
        self._store.reset(checks, clients)
        self._engine.forget(checks, clients)
        if self._leasing is not None:
            self._leasing.forget(checks)

    def limit(
        self, quota: str | Quota, *, key: Key | None = None, cost: int = 1, name: str | None = None
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function, sync or async: a refused call raises `RateLimited` instead of running.

        `key` gets the call's arguments and returns who is counted; without it, all calls count together. Calls
        are counted per function, or per `name`.
        """
        quota, cost = quota_of(quota), whole_cost(cost)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            limiter = self.sibling(quota, name=name or rule_name(function))

            def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                decision = limiter.check(subject_of(key, args, kwargs), cost=cost)
                if not decision.allowed:
                    raise RateLimited(decision)

            if inspect.iscoroutinefunction(function):

                @wraps(function)
                async def limited_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                    if self._in_memory:
                        enter(args, kwargs)
                    else:  # a thread, so that a slow store does not hold up the event loop
                        await asyncio.to_thread(enter, args, kwargs)
                    return await function(*args, **kwargs)

                return cast("Callable[P, R]", limited_async)

            @wraps(function)
            def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                enter(args, kwargs)
                return function(*args, **kwargs)

            return limited

        return decorate

    def sibling(self, rules: Rules, *, name: str = "default") -> Limiter:
        """A limiter with other rules, and otherwise like this one: the same store, clock and failure mode.

        A notation, a `Quota` and a list of `Rule` make limits of this limiter's own: they count under its name and
        theirs. A `Snapshot` and rules from elsewhere count where they do in any limiter.

        It need not be closed, as the store is not its own. Its limits are this region's alone.
        """
        engine = self._engine
        rules, mode = own_limits(rules, engine.name, name), engine.fallback.mode
        name = qualified(engine.name, name)
        limiter = Limiter(rules, store=self._here, clock=engine.clock, name=name, failure_mode=mode)
        if self._pulse is not None and limiter._pulse is not None:
            self._pulse.siblings.add(limiter._pulse)
        return limiter

    def give_back(self, decision: Decision) -> None:
        """Undo what an allowed `decision` of this limiter, or of another on its store, has just charged.

        For a request that something else refuses. A decision gives back once, and only what it charged itself: nothing
        for a peek, a repetition by idempotency key, or a copy. If the store cannot be reached, the charge stands.
        """
        refunds = correction(decision, 0).refunds
        if refunds:
            try:
                self._store.refund(refunds)
            except StoreError as error:
                uncorrected(error)

    def correct(self, decision: Decision, cost: int) -> None:
        """Charge `cost` in all for a request for which `decision` charged something else: what it cost in the end.

        What is more is charged whether it fits or not, as by `settle`; but there is no record of it: it is for whoever
        has the decision. Only the first call of this or of `give_back` for a decision has an effect, and none for a
        decision that charged nothing itself. If the store cannot be reached, the charge stands.
        """
        adjustments = correction(decision, whole_cost(cost))
        if any(adjustments):
            try:
                self._reserving().adjust(*adjustments)
            except StoreError as error:
                uncorrected(error)

    @property
    def by_subject(self) -> bool:
        """Whether it counts by subject alone, as one made from a notation does, and not by rules."""
        return self._engine.by_subject

    @property
    def clock(self) -> Clock:
        """The time that it goes by, where that is not the store's."""
        return self._engine.clock

    @property
    def snapshot(self) -> Snapshot:
        """The rules in force; `snapshot.version` tells one set from another."""
        return self._engine.snapshot

    def reload(self) -> Snapshot:
        """Read the rules' file again, now, and return what is in force.

        Raises `InvalidRule`, with every problem, when the file is not good: then the rules are what they were.
        """
        return self._engine.reload()

    def close(self) -> None:
        """Stop watching the rules' file, and give back the store's connections, if this limiter opened them."""
        self._engine.close()
        if self._leasing is not None:
            self._leasing.close()
        if self._pulse is not None:
            self._pulse.close()
        if self._spread is not None:
            self._spread.close()
        if self._owned:
            self._here.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def leases(self) -> LeaseStatus:
        """How rules of `sync = "leased"` are doing: what was decided without the store, and what is held."""
        return LeaseStatus() if self._leasing is None else self._leasing.status()

    def regions(self) -> RegionStatus:
        """How rules are doing that several regions share, and how the others are reached."""
        return RegionStatus() if self._spread is None else self._spread.status()

    def _reserving(self) -> ReservingStore:
        if not isinstance(self._store, ReservingStore):
            raise no_reservations(self._store.store)
        return self._store

    def _look(self) -> Due:
        """Give back reservations that have expired, if it is time to look for them."""
        due = self._due
        if due is None:
            due = self._due = Due()
        self._subject_program = None  # which would not look for them
        if due.is_time(self._engine.clock.now_us()):
            self._give_back(due)
        return due

    def _attend(self, due: Due) -> None:
        """Before a check: give back what is known to have expired."""
        if due.is_due(self._engine.clock.now_us()):
            self._give_back(due)

    def _give_back(self, due: Due) -> None:
        now_us, store = self._engine.clock.now_us(), self._reserving()
        due.looking(now_us)
        try:
            for _ in range(AT_MOST):
                records, next_us = store.expire()
                if records:
                    store.adjust(run(expiring(records), store.check))
                if next_us != 0:
                    break
        except StoreError as error:
            due.failed(now_us, error)
        else:
            due.expires(now_us, next_us)

    def _check(self, groups: list[Group]) -> Decided:
        """Have groups decided, by leases as far as they can."""
        if self._leasing is not None and groups:
            return self._leasing.check(groups)
        return Decided.of(self._store.check(groups) if groups else [])

    def _decide(self, prepared: PreparedCheck, *, exact: bool = False) -> Decision:
        """Decide a request that was prepared. Raises `IdempotencyConflict`."""
        engine = self._engine
        if not prepared.sent:
            return engine.unsent(prepared)
        plan, subjects, costs, peek, extras, *_ = prepared
        try:
            decision: Decision = engine.program(plan, exact=exact)(subjects, costs, peek, extras)
        except StoreError as error:
            return engine.failed(prepared, error)
        if engine.outage.lasts:
            engine.answered(plan)
        return engine.concluded(prepared, decision)
