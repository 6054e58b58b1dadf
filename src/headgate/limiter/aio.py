"""AsyncLimiter: checks from asyncio."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, Self, TypeVar

from headgate.core.check import Group
from headgate.core.clock import Clock
from headgate.core.decision import Decision
from headgate.core.key import qualified
from headgate.core.quota import Quota
from headgate.core.reservation import PENDING_US, Settlement, Settling, checked_id, ttl_us, whole_cost
from headgate.errors import InvalidCheck, RateLimited, StoreError
from headgate.limiter.alike import AlikeChecks
from headgate.limiter.batch import Ask, Part, decide_each, prepare_together
from headgate.limiter.blocks import Blocks
from headgate.limiter.decorator import Key, quota_of, rule_name, subject_of
from headgate.limiter.engine import Engine
from headgate.limiter.given import Rules, own_limits
from headgate.limiter.leasing import AsyncLeasing
from headgate.limiter.lookup import look_up, look_up_all
from headgate.limiter.prepared import Known, PreparedCheck, Request, Subject
from headgate.limiter.pulse import AsyncPulse
from headgate.limiter.reservation import (
    AT_MOST,
    AsyncReservation,
    Due,
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
from headgate.limiter.sharding import AsyncSharding, Sharding
from headgate.limiter.spreading import AsyncSpreadStore, RegionStatus, Spreading
from headgate.limiter.steps import run_async
from headgate.limiter.wait import Wait
from headgate.rules.directory import UNKNOWN, Unknown
from headgate.rules.rule import FailureMode
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import User
from headgate.stores.leases import Decided, LeaseStatus
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.stores.protocol import AsyncBeatingStore, AsyncReservingStore, AsyncStore
from headgate.stores.urls import no_store, open_async_store

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

log = logging.getLogger("headgate")


class AsyncLimiter:
    """`Limiter` for asyncio: the same arguments, methods and meanings, awaited.

    Checks that are made while the event loop is busy travel to a Redis store together. An `AsyncLimiter` on a
    Redis store belongs to the event loop that it is first used in.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        store: str | AsyncStore | MemoryStore = "memory://",
        clock: Clock | None = None,
        name: str = "default",
        failure_mode: FailureMode = "open",
        region: Spreading | None = None,
        watch: bool = False,
        warning_at: int | None = None,
        warning_until: int | None = None,
    ) -> None:
        self._owned = isinstance(store, str)
        if not isinstance(store, str | MemoryStore | AsyncStore):
            raise no_store(store)
        if isinstance(store, str):
            store = open_async_store(store, clock)
        self._here: AsyncStore = AsyncMemoryStore(store) if isinstance(store, MemoryStore) else store
        in_memory = isinstance(self._here, AsyncMemoryStore)
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
        self._spread: AsyncSpreadStore | None = None  # there where several regions share limits
        if region is not None:
            self._spread = region.open_async(self._here, self._engine.holder, clock, failure_mode)
            self._engine.spreads = True
        self._store = AsyncSharding(self._here if self._spread is None else self._spread)
        self._store.home.holder = self._engine.holder
        self.holder = self._engine.holder  # of the rules in force
        self.in_memory = (
            type(self._here) is AsyncMemoryStore and region is None
        )  # whether it counts in this process, and never waits
        self._engine.compile = self._engine.compile_exact = self._store.compile
        behind: AsyncStore | MemoryStore = self._here
        if self.in_memory and isinstance(self._here, AsyncMemoryStore):
            behind = self._here.store
            memory = Sharding(behind, self._store.home)
            self._engine.compile = self._engine.compile_exact = memory.compile
        self._pulse: AsyncPulse | None = None
        if not in_memory and isinstance(self._store, AsyncBeatingStore | AsyncReservingStore):
            self._engine.pulse = self._pulse = AsyncPulse(self._store, self._engine)
        self._leasing: AsyncLeasing | None = None  # in memory, asking the store costs no more than a lease would
        if not in_memory or self._spread is not None:
            self._leasing = AsyncLeasing(self._store, self.holder, clock, self._engine.store_answered)
            self._engine.compile, self._engine.leases = self._leasing.compile, True
        self._due: Due | None = None  # there once it has had to do with reservations
        self.alike = AlikeChecks(self._engine, behind, lambda: self._due is None)  # many requests at a time
        self._under_way: set[asyncio.Task[Any]] = set()  # reservations and settlements

    async def check(
        self,
        subject: Subject | None = None,
        /,
        *,
        cost: int = 1,
        idempotency_key: str | None = None,
        **facts: Any,
    ) -> Decision:
        """See `Limiter.check`. A caller that is cancelled may have been charged."""
        texts = self._engine.texts_of(subject, facts)
        decision = self.decide(texts, cost=cost, idempotency_key=idempotency_key)
        return decision if isinstance(decision, Decision) else await decision

    def decide(
        self,
        facts: dict[str, str],
        *,
        cost: int = 1,
        idempotency_key: str | None = None,
        peek: bool = False,
        known: Known | None = None,
    ) -> Decision | Awaitable[Decision]:
        """Check facts that are known to be texts: for middleware and others that read them off a request.

        Returns the decision at once where nothing has to be waited for, as in memory; else something to await for it.
        A `peek` charges nothing. `known` is the user, if somebody has looked them up.
        """
        engine = self._engine
        if known is None:
            snapshot = self.holder.current
            user: User | Unknown | None = UNKNOWN
            if snapshot.directory is not None:
                user = snapshot.user(facts)
            if self._due is not None or (user is UNKNOWN and snapshot.directory is not None):
                return self._decide_later(facts, cost, idempotency_key, peek)
        else:
            snapshot, user = known
        plan = snapshot.planner.plan(facts, engine.clock, user)
        if idempotency_key is not None or snapshot.terms is not None or not plan.limits:
            return self._decide(engine.prepare(facts, (snapshot, plan), cost, idempotency_key, peek=peek))
        program = engine.programs.get(plan) or engine.program(plan)
        subjects, costs = plan.subjects(facts), plan.costs(cost)
        try:
            decision = program(subjects, costs, peek)
        except StoreError as error:
            return engine.failed(PreparedCheck(plan, subjects, costs, peek), error)
        if decision.__class__ is not Decision:
            return self._await(decision, PreparedCheck(plan, subjects, costs, peek))
        if engine.outage.lasts:
            engine.answered(plan)
        if peek:
            decision.settled = True
        return decision

    async def _decide_later(
        self, facts: dict[str, str], cost: int, idempotency_key: str | None, peek: bool
    ) -> Decision:
        """Decide when the user was looked up, and what has expired given back."""
        known = await look_up(self._engine, None, facts)
        if self._due is not None:
            await self._attend(self._due)
        decision = self.decide(facts, cost=cost, idempotency_key=idempotency_key, peek=peek, known=known)
        return decision if isinstance(decision, Decision) else await decision

    async def peek(self, subject: Subject | None = None, /, *, cost: int = 1, **facts: Any) -> Decision:
        """See `Limiter.peek`."""
        decision = self.decide(self._engine.texts_of(subject, facts), cost=cost, peek=True)
        return decision if isinstance(decision, Decision) else await decision

    async def check_many(self, requests: Iterable[Request]) -> list[Decision]:
        """See `Limiter.check_many`."""
        requests = list(requests)
        known = None
        if self._engine.snapshot.directory is not None:
            facts = [(None, one) if isinstance(one, Mapping) else (one, {}) for one in requests]
            known = await asyncio.gather(*(look_up(self._engine, subject, others) for subject, others in facts))
        return await self._decide_many(self._engine.prepare_many(requests, known))

    def decide_many(self, asks: Sequence[Ask]) -> list[Decision] | Awaitable[list[Decision]]:
        """`decide` several requests, in order, each by itself. If one makes no sense, none is charged.

        Raises `IdempotencyConflict` when all others are decided.
        """
        snapshot = self.holder.current
        if self._due is not None or not self.in_memory or snapshot.directory is not None:
            return self._decide_many_later(asks)
        for facts, cost, _ in asks:
            snapshot.planner.plan(facts, self._engine.clock).costs(cost)  # before any is charged
        return decide_each(asks, self._decide_ask)

    def _decide_ask(self, ask: Ask) -> Decision:
        """Decide one of many requests, in memory."""
        facts, cost, idempotency_key = ask
        decision = self.decide(facts, cost=cost, idempotency_key=idempotency_key)
        assert isinstance(decision, Decision)
        return decision

    async def _decide_many_later(self, asks: Sequence[Ask]) -> list[Decision]:
        engine = self._engine
        known = await look_up_all(engine, [ask.facts for ask in asks])
        prepared = [
            engine.prepare(facts, engine.planned(facts, None if known is None else known[at]), cost, key)
            for at, (facts, cost, key) in enumerate(asks)
        ]
        return await self._decide_many(prepared)

    async def check_together(self, parts: Sequence[Part]) -> list[Decision]:
        """Decide one request that is known in several ways: either every limit is charged, or none is.

        There is a decision on each part, by its own limits alone: the request may pass if all of them are allowed. A
        limit that several parts meet is charged once, by the most that any of them costs.
        """
        engine = self._engine
        known = await look_up_all(engine, [part.facts for part in parts])
        together = prepare_together(engine, parts, known)
        if self._due is not None:
            await self._attend(self._due)
        whole = together.whole
        if not whole.sent:
            return together.decisions(engine, None)
        try:
            decision = engine.program(whole.plan)(whole.subjects, whole.costs, False, whole.extras)
            if decision.__class__ is not Decision:
                decision = await decision
        except StoreError as error:
            return engine.conclude(together.parts, error)
        if engine.outage.lasts:
            engine.answered(whole.plan)
        return together.decisions(engine, decision)

    async def wait(
        self,
        subject: Subject | None = None,
        /,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - gives up before it has waited in vain
        cost: int = 1,
        **facts: Any,
    ) -> Decision:
        """See `Limiter.wait`."""
        wait = Wait(self._engine.clock, timeout)
        while True:
            decision = await self.check(subject, cost=cost, **facts)
            seconds = wait.seconds(decision)
            if seconds is None:
                return decision
            await self._engine.clock.sleep_async(seconds)

    async def reserve(
        self, subject: Subject | None = None, /, *, cost: int = 1, ttl: float = 60.0, **facts: Any
    ) -> AsyncReservation:
        """See `Limiter.reserve`. A caller that is cancelled is charged nothing: what was charged is given back."""
        lives_us = ttl_us(ttl)
        engine = self._engine
        texts = engine.texts_of(subject, facts)
        prepared = engine.prepare(texts, engine.planned(texts, await look_up(engine, None, texts)), cost)
        due = await self._look()
        await self._attend(due)
        task = self._apart(self._reserve(self._reserving(), prepared, cost, lives_us, due))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._apart(_refund(task))
            raise

    async def _reserve(
        self, store: AsyncReservingStore, prepared: PreparedCheck, cost: int, lives_us: int, due: Due
    ) -> AsyncReservation:
        engine, name = self._engine, new_id()
        if not prepared.sent:
            return AsyncReservation(self, name, engine.unsent(prepared), cost, recorded=False)
        prepared, mark, pending = reserving(prepared, cost, name)
        try:
            await store.hold(name, pending, PENDING_US)
        except StoreError as error:
            return AsyncReservation(self, name, engine.failed(prepared, error), cost, recorded=False)
        due.expires(engine.clock.now_us(), PENDING_US)
        answer = self._decide(prepared, exact=True)
        decision = answer if isinstance(answer, Decision) else await answer
        record = record_of(decision, mark)
        try:
            if record is not None:
                await store.renew(name, record.encode(), lives_us)
                due.expires(engine.clock.now_us(), lives_us)
            elif decision.reason in ("over_limit", "penalty"):
                await store.claim(name)  # nothing was charged
        except StoreError as error:
            unrenewed(error, name)
        return AsyncReservation(self, name, decision, cost, recorded=record is not None)

    async def settle(self, reservation_id: str, cost: int) -> Settlement:
        """See `Limiter.settle`. Goes on to the end even if the caller is cancelled."""
        name, cost = checked_id(reservation_id), whole_cost(cost)
        return await asyncio.shield(self._apart(self._settle(self._reserving(), name, cost)))

    def _apart(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Have something done to its end, even if whoever wants it is cancelled. `close` waits for it."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _settle(self, store: AsyncReservingStore, name: str, cost: int) -> Settlement:
        await self._look()
        try:
            found: Settling = await run_async(settling(await store.claim(name), cost), store.check)
            return found.settled(await store.adjust(*found.adjustments))
        except StoreError as error:
            return unsettled(error, name, cost)

    async def refund(self, reservation_id: str) -> Settlement:
        """See `Limiter.refund`."""
        return await self.settle(reservation_id, 0)

    async def reset(self, subject: Subject | None = None, /, **facts: Any) -> None:
        """See `Limiter.reset`."""
        known = None if self._engine.snapshot.directory is None else await look_up(self._engine, subject, facts)
        checks, clients = self._engine.ask_reset(subject, facts, known)
        await self._store.reset(checks, clients)
        self._engine.forget(checks, clients)
        if self._leasing is not None:
            self._leasing.forget(checks)

    def limit(
        self, quota: str | Quota, *, key: Key | None = None, cost: int = 1, name: str | None = None
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
        """Decorate an async function. See `Limiter.limit`."""
        quota, cost = quota_of(quota), whole_cost(cost)

        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
            if not inspect.iscoroutinefunction(function):
                raise InvalidCheck(
                    f"{name or rule_name(function)} is not async: decorate it with the limit of a Limiter instead"
                )
            limiter = self.sibling(quota, name=name or rule_name(function))

            @wraps(function)
            async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                decision = await limiter.check(subject_of(key, args, kwargs), cost=cost)
                if not decision.allowed:
                    raise RateLimited(decision)
                return await function(*args, **kwargs)

            return limited

        return decorate

    def sibling(self, rules: Rules, *, name: str = "default") -> AsyncLimiter:
        """See `Limiter.sibling`."""
        engine = self._engine
        rules, mode = own_limits(rules, engine.name, name), engine.fallback.mode
        name = qualified(engine.name, name)
        limiter = AsyncLimiter(rules, store=self._here, clock=engine.clock, name=name, failure_mode=mode)
        if self._pulse is not None and limiter._pulse is not None:
            self._pulse.siblings.add(limiter._pulse)
        return limiter

    async def give_back(self, decision: Decision) -> None:
        """See `Limiter.give_back`."""
        refunds = correction(decision, 0).refunds
        if refunds:
            try:
                await self._store.refund(refunds)
            except StoreError as error:
                uncorrected(error)

    async def correct(self, decision: Decision, cost: int) -> None:
        """See `Limiter.correct`."""
        adjustments = correction(decision, whole_cost(cost))
        if any(adjustments):
            try:
                await self._reserving().adjust(*adjustments)
            except StoreError as error:
                uncorrected(error)

    @property
    def by_subject(self) -> bool:
        """Whether it counts by subject alone, as one made from a notation does, and not by rules."""
        return self._engine.by_subject

    def store_answers(self) -> None:
        """The store was seen to answer: ends an outage of which no check would notice the end, as none come."""
        engine = self._engine
        if engine.fallback.outage.probed() and engine.pulse is not None:
            engine.pulse.wake()

    @property
    def failing(self) -> bool:
        """Whether the store could not decide when it was last asked."""
        return self._engine.failing

    @property
    def clock(self) -> Clock:
        """The time that it goes by, where that is not the store's."""
        return self._engine.clock

    @property
    def snapshot(self) -> Snapshot:
        """See `Limiter.snapshot`."""
        return self._engine.snapshot

    async def reload(self) -> Snapshot:
        """See `Limiter.reload`. The file is read in a thread."""
        return await asyncio.to_thread(self._engine.reload)

    async def close(self) -> None:
        """See `Limiter.close`."""
        if self._engine.owns_source:
            await asyncio.to_thread(self._engine.close)  # it waits for the watcher's thread
        while self._under_way:
            await asyncio.wait(self._under_way)
        if self._leasing is not None:
            await self._leasing.close()
        if self._pulse is not None:
            await self._pulse.close()
        if self._spread is not None:
            await self._spread.close()
        if self._owned:
            await self._here.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def leases(self) -> LeaseStatus:
        """See `Limiter.leases`."""
        return LeaseStatus() if self._leasing is None else self._leasing.status()

    def regions(self) -> RegionStatus:
        """See `Limiter.regions`."""
        return RegionStatus() if self._spread is None else self._spread.status()

    def _reserving(self) -> AsyncReservingStore:
        if not isinstance(self._store, AsyncReservingStore):
            raise no_reservations(self._store.store)
        return self._store

    async def _look(self) -> Due:
        """Give back reservations that have expired, if it is time to look for them."""
        due = self._due
        if due is None:
            due = self._due = Due()
        if due.is_time(self._engine.clock.now_us()):
            await self._give_back(due)
        return due

    async def _attend(self, due: Due) -> None:
        """Before a check: give back what is known to have expired."""
        if due.is_due(self._engine.clock.now_us()):
            await self._give_back(due)

    async def _give_back(self, due: Due) -> None:
        now_us, store = self._engine.clock.now_us(), self._reserving()
        due.looking(now_us)
        try:
            for _ in range(AT_MOST):
                records, next_us = await store.expire()
                if records:
                    await store.adjust(await run_async(expiring(records), store.check))
                if next_us != 0:
                    break
        except StoreError as error:
            due.failed(now_us, error)
        else:
            due.expires(now_us, next_us)

    async def _check(self, groups: list[Group]) -> Decided:
        """Have groups decided, by leases as far as they can."""
        if self._leasing is not None and groups:
            return await self._leasing.check(groups)
        return Decided.of(await self._store.check(groups) if groups else [])

    def _decide(self, prepared: PreparedCheck, *, exact: bool = False) -> Decision | Awaitable[Decision]:
        """Decide a request that was prepared. Raises `IdempotencyConflict`."""
        engine = self._engine
        if not prepared.sent:
            return engine.unsent(prepared)
        plan, subjects, costs, peek, extras, *_ = prepared
        try:
            decision = engine.program(plan, exact=exact)(subjects, costs, peek, extras)
        except StoreError as error:
            return engine.failed(prepared, error)
        if decision.__class__ is not Decision:
            return self._await(decision, prepared)
        if engine.outage.lasts:
            engine.answered(plan)
        return engine.concluded(prepared, decision)

    async def _await(self, answer: Awaitable[Decision], prepared: PreparedCheck) -> Decision:
        """Wait for what a program decides."""
        engine = self._engine
        try:
            decision = await answer
        except StoreError as error:
            return engine.failed(prepared, error)
        if engine.outage.lasts:
            engine.answered(prepared.plan)
        return decision if prepared.extras is None and not prepared.peek else engine.concluded(prepared, decision)

    async def _decide_many(self, prepared: list[PreparedCheck]) -> list[Decision]:
        if self._due is not None:
            await self._attend(self._due)
        if self.in_memory:
            return decide_each(prepared, self._decide)  # type: ignore[arg-type]  # nothing has to be awaited
        try:
            results, answered = await self._check([one.group for one in prepared if one.sent])
        except StoreError as error:
            return self._engine.conclude(prepared, error)
        return self._engine.conclude(prepared, results, answered=answered)


async def _refund(task: asyncio.Task[AsyncReservation]) -> None:
    """Give back what was reserved for a caller that was cancelled."""
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is None:
        await task.result().refund()
