"""AsyncLimiter: checks from asyncio."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, Self, TypeVar

from headgate.core.check import Group, Result
from headgate.core.clock import Clock
from headgate.core.decision import Decision
from headgate.core.key import qualified
from headgate.core.quota import MAX_INT, Quota
from headgate.core.reservation import Settlement, checked_id, given_back, ttl_us, whole_cost
from headgate.errors import InvalidCheck, RateLimited, StoreError
from headgate.limiter.alike import AlikeChecks
from headgate.limiter.asked import Asked, Known, Request, Subject, is_plain
from headgate.limiter.batch import Ask, Part, ask_together, decide_here, ways
from headgate.limiter.blocks import Blocks
from headgate.limiter.decorator import Key, quota_of, rule_name, subject_of
from headgate.limiter.engine import Engine
from headgate.limiter.given import Rules, own_limits
from headgate.limiter.leasing import AsyncLeasing
from headgate.limiter.lookup import look_up, look_up_all
from headgate.limiter.pulse import AsyncPulse
from headgate.limiter.reservation import (
    AT_MOST,
    AsyncReservation,
    Due,
    correction,
    no_reservations,
    record_of,
    settling,
    uncorrected,
    unheld,
    unsettled,
)
from headgate.limiter.sharding import AsyncSharding, Sharding
from headgate.limiter.spreading import AsyncSpreadStore, RegionStatus, Spreading
from headgate.limiter.wait import Wait
from headgate.rules.directory import UNKNOWN
from headgate.rules.plan import template_of
from headgate.rules.rule import FailureMode
from headgate.rules.snapshot import Snapshot
from headgate.stores.leases import Decided, LeaseStatus
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.stores.protocol import (
    AsyncBeatingStore,
    AsyncReservingStore,
    AsyncSingle,
    AsyncStore,
    Single,
)
from headgate.stores.urls import no_store, open_async_store

P = ParamSpec("P")
R = TypeVar("R")

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
        self._memory: Sharding | None = None  # the store, if it need not be awaited
        behind: AsyncStore | MemoryStore = self._here
        if type(self._here) is AsyncMemoryStore and region is None:
            behind = self._here.store
            self._memory = Sharding(behind, self._store.home)
        self._engine.single = self._single_of()
        self._pulse: AsyncPulse | None = None
        if not in_memory and isinstance(self._store, AsyncBeatingStore | AsyncReservingStore):
            self._engine.pulse = self._pulse = AsyncPulse(self._store, self._engine)
        self.in_memory = self._memory is not None  # whether it counts in this process, and can check at once
        self.holder = self._engine.holder  # of the rules in force
        self._leasing: AsyncLeasing | None = None  # in memory, asking the store costs no more than a lease would
        if not in_memory or self._spread is not None:
            self._leasing = AsyncLeasing(self._store, self._engine.holder, clock)
            self._engine.leased = self._leasing.single
        rule = self._engine.only_rule
        make = None if rule is None else self._engine.maker(rule)
        self._short_way: AsyncSingle | Single | None = None
        if rule is not None and make is not None:
            way = make(template_of(rule), self._engine.states)
            self._short_way = self._engine.attended(rule.failure_mode, way)
        self.single: Any = self._short_way  # for checks by subject alone; None while they have to go the long way
        self._due: Due | None = None  # there once it has had to do with reservations
        self.alike = AlikeChecks(self._engine, behind, lambda: self._due is None)  # many requests at a time
        self._settling: set[asyncio.Task[Settlement]] = set()

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
        if self.single is not None and is_plain(subject, cost, idempotency_key, facts):
            try:
                decision = self.single(subject, cost)
                return decision if isinstance(decision, Decision) else await decision
            except StoreError as error:
                self.single = None  # until the long way finds the store well again
                return self._engine.conclude([self._engine.ask(subject, {}, cost)], error)[0]
        if idempotency_key is None:
            return await self.check_facts(self._engine.texts_of(subject, facts), cost=cost)
        known = None if self._engine.snapshot.directory is None else await look_up(self._engine, subject, facts)
        return (await self._decide([self._engine.ask(subject, facts, cost, idempotency_key, known=known)]))[0]

    async def check_facts(
        self, facts: dict[str, str], *, cost: int = 1, idempotency_key: str | None = None, peek: bool = False
    ) -> Decision:
        """See `Limiter.check_facts`. `peek` charges nothing."""
        engine = self._engine
        known = None if engine.snapshot.directory is None else await look_up(self._engine, None, facts)
        planned = engine.planned(facts, known)
        plain = idempotency_key is None and not peek
        way: AsyncSingle | Single | None = engine.way(planned, cost) if plain else None
        if way is None:
            return (await self._decide([engine.ask_planned(facts, planned, cost, idempotency_key, peek=peek)]))[0]
        if self._due is not None:
            await self._attend(self._due)
        try:
            decision = way(planned[1].subjects(facts)[0], cost)
            return decision if isinstance(decision, Decision) else await decision
        except StoreError as error:
            return engine.conclude([engine.ask_planned(facts, planned, cost)], error)[0]

    def check_at_once(self, facts: dict[str, str], *, cost: int = 1) -> Decision | None:
        """`check_facts` without waiting, as is possible in memory, and quicker; None where it might have to wait."""
        engine = self._engine
        if self._memory is None:
            return None
        single: Single | None = self.single
        if single is not None and "user" in facts and type(cost) is int and 0 <= cost <= MAX_INT:
            try:
                return single(facts["user"], cost)
            except StoreError as error:
                self.single = None  # until the long way finds the store well again
                return engine.conclude([engine.ask(None, facts, cost)], error)[0]
        if self._due is not None:
            return None
        snapshot, known = self.holder.current, None
        if snapshot.directory is not None:
            known = Known(snapshot, snapshot.user(facts))
            if known.user is UNKNOWN:  # they have to be looked up
                return None
        planned = engine.planned(facts, known)
        way: Single | None = engine.way(planned, cost)
        asked = None
        try:
            if way is not None:
                return way(planned[1].subjects(facts)[0], cost)
            asked = engine.ask_planned(facts, planned, cost)
            decision = engine.conclude([asked], self._memory.check([asked.group]) if asked.sent else [])[0]
        except StoreError as error:
            return engine.conclude([asked or engine.ask_planned(facts, planned, cost)], error)[0]
        if not engine.failing:
            self.single = self._short_way
        return decision

    async def peek(self, subject: Subject | None = None, /, *, cost: int = 1, **facts: Any) -> Decision:
        """See `Limiter.peek`."""
        known = None if self._engine.snapshot.directory is None else await look_up(self._engine, subject, facts)
        return (await self._decide([self._engine.ask(subject, facts, cost, peek=True, known=known)]))[0]

    async def check_many(self, requests: Iterable[Request]) -> list[Decision]:
        """See `Limiter.check_many`."""
        if self._engine.snapshot.directory is None:
            return await self._decide(self._engine.ask_many(requests))
        requests = list(requests)
        facts = [(None, one) if isinstance(one, Mapping) else (one, {}) for one in requests]
        known = await asyncio.gather(*(look_up(self._engine, subject, others) for subject, others in facts))
        return await self._decide(self._engine.ask_many(requests, known))

    async def check_facts_many(self, asks: Sequence[Ask]) -> list[Decision]:
        """`check_facts` for several requests, in order, each by itself. If one makes no sense, none is charged.

        Raises `IdempotencyConflict` when all others are decided.
        """
        known = await look_up_all(self._engine, [ask.facts for ask in asks])
        here = self._memory if self._due is None else None
        found = ways(self._engine, asks, known, short=here is not None)
        asked = [asked for _, _, asked in found if asked is not None]
        if here is None or len(asked) == len(found):
            return await self._decide(asked)
        return decide_here(self._engine, here, asks, found)

    async def check_together(self, parts: Sequence[Part]) -> list[Decision]:
        """Decide one request that is known in several ways: either every limit is charged, or none is.

        There is a decision on each part, by its own limits alone: the request may pass if all of them are allowed. A
        limit that several parts meet is charged once, by the most that any of them costs.
        """
        known = await look_up_all(self._engine, [part.facts for part in parts])
        together = ask_together(self._engine, parts, known)
        if self._due is not None:
            await self._attend(self._due)
        try:
            results, answered = await self._check([together.group] if together.group.checks else [])
        except StoreError as error:
            self.single = None  # until the long way finds the store well again
            return self._engine.conclude(together.asked, error)
        if results and isinstance(results[0], StoreError):
            self.single = None
            return self._engine.conclude(together.asked, results[0])
        own = [one for result in results if isinstance(result, Result) for one in together.results(result)]
        return self._engine.conclude(together.asked, own, answered=answered)

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
        """See `Limiter.reserve`."""
        store, lives_us = self._reserving(), ttl_us(ttl)
        known = None if self._engine.snapshot.directory is None else await look_up(self._engine, subject, facts)
        asked = self._engine.ask(subject, facts, cost, known=known)
        due = await self._look()
        decision = (await self._decide([asked], leasing=False))[0]
        record = record_of(decision)
        reservation = AsyncReservation(self, decision, cost, recorded=record is not None)
        if record is not None:
            try:
                await store.hold(reservation.id, record.encode(), lives_us)
            except StoreError as error:
                unheld(error, reservation.id)
            due.expires(self._engine.clock.now_us(), lives_us)
        return reservation

    async def settle(self, reservation_id: str, cost: int) -> Settlement:
        """See `Limiter.settle`. Goes on to the end even if the caller is cancelled."""
        name, cost = checked_id(reservation_id), whole_cost(cost)
        task = asyncio.create_task(self._settle(self._reserving(), name, cost))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return await asyncio.shield(task)

    async def _settle(self, store: AsyncReservingStore, name: str, cost: int) -> Settlement:
        await self._look()
        try:
            settlement, adjustments = settling(await store.claim(name), cost)
            await store.adjust(*adjustments)
        except StoreError as error:
            return unsettled(error, name, cost)
        return settlement

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
        if self._settling:
            await asyncio.wait(self._settling)
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

    def _single_of(self) -> Any:
        """The store's maker of short ways; in memory, of such as need not be awaited."""
        if self._memory is not None:
            return self._memory.single
        return getattr(self._store, "single", None)

    def _reserving(self) -> AsyncReservingStore:
        if not isinstance(self._store, AsyncReservingStore):
            raise no_reservations(self._store.store)
        return self._store

    async def _look(self) -> Due:
        """Give back reservations that have expired, if it is time to look for them."""
        due = self._due
        if due is None:
            due = self._due = Due()
        self.single = self._short_way = None  # it would not look; that of check_facts does
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
                    await store.adjust(given_back(records))
                if next_us != 0:
                    break
        except StoreError as error:
            due.failed(now_us, error)
        else:
            due.expires(now_us, next_us)

    async def _check(self, groups: list[Group], *, leasing: bool = True) -> Decided:
        """Have groups decided, by leases as far as they can."""
        if self._leasing is not None and leasing and groups:
            return await self._leasing.check(groups)
        return Decided.of(await self._store.check(groups) if groups else [])

    async def _decide(self, asked: list[Asked], *, leasing: bool = True) -> list[Decision]:
        if self._due is not None:
            await self._attend(self._due)
        groups = [request.group for request in asked if request.sent]
        try:
            results, answered = await self._check(groups, leasing=leasing)
        except StoreError as error:
            self.single = None  # until this way finds the store well again
            return self._engine.conclude(asked, error)
        decisions = self._engine.conclude(asked, results, answered=answered)
        self.single = None if self._engine.failing else self._short_way  # leases fail for some, and not for others
        return decisions
