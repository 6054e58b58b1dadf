# Generated from async_checks.py by scripts/generate-sync: edit that file, and run `make generate`.
"""Checks: the part of a limiter that decides requests. `Limiter` adds the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headgate.core.check import Answer
from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.errors import StoreError
from headgate.limiter.execution import decide
from headgate.limiter.parts import Parts
from headgate.limiter.prepared_check import NO_SUBJECT, PreparedCheck, Request, Subject, list_requests
from headgate.limiter.refusals import Wait, call_hook

if TYPE_CHECKING:
    from headgate.limiter.slot_records import SlotUse

ONE: Final = (1,)  # the costs of a request with one limit


class Checks(Parts):
    """A limiter's methods that decide requests."""

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
        if self._engine.due is not None:
            self._reservations.attend(self._engine.due)
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
            return engine.fallback.decide(PreparedCheck(plan, subjects, costs, peek), error)
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
        requests = list_requests(requests)
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

    def _decide_in_memory(self, prepared: list[PreparedCheck]) -> list[Decision]:
        """Decide prepared requests in memory: in one call, if they have the same program."""
        many = self._engine.program_of_many(prepared)
        if many is None:
            from headgate.limiter.batch import decide_each  # noqa: PLC0415

            return decide_each(prepared, partial(decide, self._engine))
        return self._engine.conclude_many(prepared, many([one[1:3] for one in prepared]))

    def _decide_many(self, prepared: list[PreparedCheck]) -> list[Decision]:
        if self._engine.due is not None:
            self._reservations.attend(self._engine.due)
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
