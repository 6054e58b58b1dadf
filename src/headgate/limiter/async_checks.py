"""AsyncChecks: the part of a limiter that decides requests. `AsyncLimiter` adds the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headgate.core.check import Answer
from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.errors import StoreError
from headgate.limiter.async_execution import await_decision, decide_async, look_up, look_up_all
from headgate.limiter.async_parts import AsyncParts
from headgate.limiter.batch import (
    BatchedRequest,
    DecidedTogether,
    RequestPart,
    Together,
    prepare_batch,
    prepare_together,
)
from headgate.limiter.prepared_check import NO_SUBJECT, KnownUser, PreparedCheck, Request, Subject, list_requests
from headgate.limiter.refusals import Wait, call_hook, log_raised
from headgate.rules.directory import UNKNOWN, Unknown

if TYPE_CHECKING:
    from headgate.limiter.slot_records import SlotUse
    from headgate.rules.users import User

ONE: Final = (1,)  # the costs of a request with one limit
_new: Final[Any] = tuple.__new__  # async only: makes a named tuple in half the time of calling its class


class AsyncChecks(AsyncParts):
    """A limiter's methods that decide requests."""

    async def check(
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

        With asyncio, a caller that is cancelled may have been charged.
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
                    # sync: decided: Decision = program((subject,), ONE)
                    answer = program((subject,), ONE)  # async only
                    decided: Decision = answer if answer.__class__ is Decision else await answer  # async only
                except StoreError as error:
                    return self._engine.decide_subject_without_store(subject, error)
                return decided
            texts = {"user": subject}
        else:
            texts = self._engine.texts_of(subject, facts)
        # sync: decision = self.decide(texts, cost=cost, idempotency_key=idempotency_key)
        answer = self.decide(texts, cost=cost, idempotency_key=idempotency_key)  # async only
        decision = answer if isinstance(answer, Decision) else await answer  # async only
        if not decision.allowed:
            await self.tell_refused(decision, texts)
        return decision

    def decide(
        self,
        facts: dict[str, str],
        *,
        cost: Cost = 1,
        idempotency_key: str | None = None,
        peek: bool = False,
        slots: SlotUse = "refuse",
        known: KnownUser | None = None,  # async only
    ) -> Decision | Awaitable[Decision]:
        """Check facts that are known to be strings. For middleware and other code that reads them from a request.

        A `peek` charges nothing. `slots` says what to do when rules limit concurrency. A decision that takes a slot has
        it as `slot`, which is renewed until it is released.

        With asyncio, it returns the decision directly if nothing has to be awaited, as in memory. `known` is the user,
        if the caller has looked them up.
        """
        engine = self._engine
        user: User | Unknown | None = UNKNOWN  # async only
        # sync: if self._engine.due is not None:
        # sync:     self._reservations.attend(self._engine.due)
        # sync: snapshot = self.holder.current
        if known is None:  # async only
            snapshot = self.holder.current
            if snapshot.directory is not None:
                user = snapshot.user(facts)
            if self._engine.due is not None or (user is UNKNOWN and snapshot.directory is not None):
                return self._decide_later(facts, cost, idempotency_key, peek, slots)
        else:
            snapshot, user = known
        # sync: whole = snapshot.planner.plan(facts, engine.clock)
        whole = snapshot.planner.plan(facts, engine.clock, user)  # async only
        plan, costs = whole.price(cost)
        if idempotency_key is not None or snapshot.terms is not None or not plan.limits or plan.slots:
            if plan.slots and slots in ("take", "lend") and not peek:
                return self._slots.take(facts, (snapshot, whole), cost, slots == "take")
            planned = (snapshot, whole.rates if slots == "skip" else whole)
            return decide_async(engine, engine.prepare(facts, planned, cost, idempotency_key, peek=peek))
        program = engine.programs[plan]
        subjects = plan.subjects(facts)
        try:
            decision = program(subjects, costs, peek)  # sync: decision: Decision = program(subjects, costs, peek)
        except StoreError as error:
            return engine.fallback.decide(PreparedCheck(plan, subjects, costs, peek), error)
        if decision.__class__ is not Decision:  # async only
            return await_decision(engine, decision, _new(PreparedCheck, (plan, subjects, costs, peek, None, 0, None)))
        if engine.outage.lasts:
            engine.note_answer(plan)
        if peek:
            decision.settled = True
        return decision

    async def _decide_later(  # async only
        self, facts: dict[str, str], cost: Cost, idempotency_key: str | None, peek: bool, slots: SlotUse
    ) -> Decision:
        """Decide after the user is looked up and expired reservations are refunded."""
        known = await look_up(self._engine, NO_SUBJECT, facts)
        if self._engine.due is not None:
            await self._reservations.attend(self._engine.due)
        decision = self.decide(facts, cost=cost, idempotency_key=idempotency_key, peek=peek, slots=slots, known=known)
        return decision if isinstance(decision, Decision) else await decision

    async def peek(self, subject: Subject = NO_SUBJECT, /, *, cost: Cost = 1, **facts: Any) -> Decision:
        """Return what `check` would decide now, without charging. `remaining` is what is left now."""
        # sync: return self.decide(self._engine.texts_of(subject, facts), cost=cost, peek=True)
        decision = self.decide(self._engine.texts_of(subject, facts), cost=cost, peek=True)  # async only
        return decision if isinstance(decision, Decision) else await decision  # async only

    async def check_many(self, requests: Iterable[Request]) -> list[Decision]:
        """Check several requests in one round trip to the store. Each is decided separately, in order.

        A request is a subject, or a mapping of facts that may include `cost` and `idempotency_key`.
        """
        requests = list_requests(requests)
        # sync: decisions = self._decide_many(self._engine.prepare_many(requests))
        known = None  # async only
        if self._engine.snapshot.directory is not None:  # async only
            facts = [(NO_SUBJECT, one) if isinstance(one, Mapping) else (one, {}) for one in requests]
            known = await asyncio.gather(*(look_up(self._engine, subject, others) for subject, others in facts))
        decisions = await self._decide_many(self._engine.prepare_many(requests, known))  # async only
        for request, decision in zip(requests, decisions, strict=True):
            if not decision.allowed:
                facts_said = dict(request) if isinstance(request, Mapping) else {"user": request}
                await self.tell_refused(decision, facts_said)
        return decisions

    def decide_many(  # async only
        self, asks: Sequence[BatchedRequest]
    ) -> list[Decision] | Awaitable[list[Decision]]:
        """Decide several requests, in order, each separately. If one is invalid, none is charged.

        Raises `IdempotencyConflict` after all others are decided.
        """
        if self._engine.due is not None or self.holder.current.directory is not None:
            return self._decide_many_later(asks)
        prepared = prepare_batch(self._engine, asks)
        return self._decide_in_memory(prepared) if self.in_memory else self._decide_many(prepared)

    async def _decide_many_later(self, asks: Sequence[BatchedRequest]) -> list[Decision]:  # async only
        known = await look_up_all(self._engine, [ask.facts for ask in asks])
        return await self._decide_many(prepare_batch(self._engine, asks, known))

    def decide_together(  # async only
        self, parts: Sequence[RequestPart]
    ) -> DecidedTogether | Awaitable[DecidedTogether]:
        """Decide one request with several descriptions: either every limit is charged, or none is.

        Returns a decision for each part, by its own limits alone: the request may pass if all of them are allowed. A
        limit that several parts share is charged once, with the highest cost among them.
        """
        snapshot = self.holder.current
        known = None
        if snapshot.directory is not None:
            known = [KnownUser(snapshot, snapshot.user(part.facts)) for part in parts]
        if self._engine.due is not None or (known is not None and any(one.user is UNKNOWN for one in known)):
            return self._decide_together_later(parts)
        return self._decide_together(prepare_together(self._engine, parts, known))

    def _decide_together(self, together: Together) -> DecidedTogether | Awaitable[DecidedTogether]:  # async only
        engine, whole = self._engine, together.whole
        if not whole.sent:
            return together.split_decision(engine, None)
        try:
            program = engine.programs[whole.plan]
            decision = program(whole.subjects, whole.costs, False, whole.extras)
        except StoreError as error:
            return DecidedTogether(engine.conclude(together.parts, error))
        if decision.__class__ is not Decision:
            return self._await_together(together, decision)
        if engine.outage.lasts:
            engine.note_answer(whole.plan)
        return together.split_decision(engine, decision)

    async def _decide_together_later(self, parts: Sequence[RequestPart]) -> DecidedTogether:  # async only
        """Decide after users are looked up and expired reservations are refunded."""
        known = await look_up_all(self._engine, [part.facts for part in parts])
        together = prepare_together(self._engine, parts, known)
        if self._engine.due is not None:
            await self._reservations.attend(self._engine.due)
        decided = self._decide_together(together)
        return decided if isinstance(decided, DecidedTogether) else await decided

    async def _await_together(self, together: Together, answer: Awaitable[Decision]) -> DecidedTogether:  # async only
        engine = self._engine
        try:
            decision = await answer
        except StoreError as error:
            return DecidedTogether(engine.conclude(together.parts, error))
        if engine.outage.lasts:
            engine.note_answer(together.whole.plan)
        return together.split_decision(engine, decision)

    async def wait(
        self,
        subject: Subject = NO_SUBJECT,
        /,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - gives up before a wait that cannot succeed
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
            # sync: decision = self.decide(texts, cost=cost)
            answer = self.decide(texts, cost=cost)  # async only
            decision = answer if isinstance(answer, Decision) else await answer  # async only
            seconds = wait.seconds(decision)
            if seconds is None:
                if not decision.allowed:
                    await self.tell_refused(decision, texts)
                return decision
            await self._engine.clock.sleep_async(seconds)

    async def tell_refused(self, decision: Decision, facts: Mapping[str, Any]) -> None:
        """Call the hook `on_refused`. For middleware that refuses requests itself."""
        # sync: call_hook(self._engine.on_refused, decision, facts)
        answer = call_hook(self._engine.on_refused, decision, facts)  # async only
        if isinstance(answer, Awaitable):  # async only
            try:
                await answer
            except Exception:  # noqa: BLE001 - the app's hook: log whatever it raises
                log_raised(decision)

    def _decide_in_memory(self, prepared: list[PreparedCheck]) -> list[Decision]:
        """Decide prepared requests in memory: in one call, if they have the same program."""
        many = self._engine.program_of_many(prepared)
        if many is None:
            from headgate.limiter.batch import decide_each  # noqa: PLC0415

            return decide_each(prepared, partial(decide_async, self._engine))
        return self._engine.conclude_many(prepared, many([one[1:3] for one in prepared]))

    async def _decide_many(self, prepared: list[PreparedCheck]) -> list[Decision]:
        if self._engine.due is not None:
            await self._reservations.attend(self._engine.due)
        if self.in_memory:
            return self._decide_in_memory(prepared)
        many = self._engine.program_of_many(prepared)
        if many is not None:
            decided = await many([one[1:3] for one in prepared])
            return self._engine.conclude_many(prepared, decided)
        assert self._leasing is not None
        groups = [one.group for one in prepared if one.sent]
        results: Sequence[Answer] = ()
        answered = False
        try:
            if groups:
                results, answered = await self._leasing.check(groups)
        except StoreError as error:
            return self._engine.conclude(prepared, error)
        return self._engine.conclude(prepared, results, answered=answered)
