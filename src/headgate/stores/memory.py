"""The memory store: exact within one process, thread-safe, bounded, and without a background thread."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from time import time_ns
from typing import Any, Final

from headgate.algorithms.force import FORCES
from headgate.core.alike import Alike, Answers, Pattern
from headgate.core.check import (
    IDEMPOTENCY_US,
    Answer,
    Charge,
    Check,
    Client,
    Group,
    Outcome,
    Result,
    Terms,
    answered,
    binding,
)
from headgate.core.clock import Clock
from headgate.core.decision import Decision, Reading, States
from headgate.core.fork import halt_for_forks
from headgate.core.ledger import Counted, Page, Swap
from headgate.core.plan import Plan
from headgate.core.reservation import Claim, Expired
from headgate.errors import IdempotencyConflict, StoreError, StoreFull
from headgate.stores import penalty
from headgate.stores.ledger import Ledger
from headgate.stores.protocol import Single
from headgate.stores.reservations import Refunds, Reservations
from headgate.stores.tables import Table, Tables

HALT_SECONDS: Final = 2.0  # that a fork waits, at most: who forks in the midst of a check of its own would for ever


class _Lock:
    """Excludes as `threading.Lock` does, and is quicker to call: a queue of one token, held by whoever is in."""

    __slots__ = ("acquire", "is_held", "release")

    def __init__(self) -> None:
        token: SimpleQueue[None] = SimpleQueue()
        token.put(None)
        self.acquire = token.get
        self.release = token.put  # of None, the token
        self.is_held = token.empty

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release(None)


class MemoryStore:
    """Keeps state in this process. `max_keys` bounds it: a gcra key takes some 150 to 200 bytes."""

    def __init__(self, *, max_keys: int = 1_000_000, clock: Clock | None = None) -> None:
        if max_keys < 1:
            raise ValueError(f"max_keys: must be at least 1, got {max_keys!r}")
        self._clock = clock
        self._lock = _Lock()
        self._tables = Tables(max_keys)
        self._clients: Table | None = None  # those who ran into limits
        self._answers: OrderedDict[str, tuple[str, Result]] = OrderedDict()  # by idempotency key
        self._reservations = Reservations(max_keys)
        self._refunds = Refunds(max_keys)
        self._ledger = Ledger()
        self._halted = False
        halt_for_forks(self)

    def __len__(self) -> int:
        """How many keys are held, expired ones that no sweep has met yet among them."""
        return self._tables.keys

    def single(self, template: Check, states: States | None = None, told: Check | None = None) -> Single:
        """The short way: it works out no figures, but hands out what they can be worked out from."""
        with self._lock:
            table = self._tables.of(template.space, template.quota)
        quota = template.quota
        admit, work_out = table.algorithm.admit, table.algorithm.figures

        def read(verdict: tuple[int, Any], now_us: int) -> tuple[Outcome]:
            wait_us, state = verdict
            return (Outcome(wait_us, *work_out(state, now_us, quota)),)

        reading = Reading(Plan((told or template,)), states, read)
        known, make_room, place = table.states, self._tables.make_room, self._tables.place
        acquire, release = self._lock.acquire, self._lock.release
        now_us = None if self._clock is None else self._clock.now_us

        def check(subject: str, cost: int) -> Decision:
            now = time_ns() // 1_000 if now_us is None else now_us()
            acquire()  # with try and finally: here, a with statement would be a tenth of the time and more
            try:
                state = known.get(subject)
                wait, kept = admit(state, now, quota, cost)
                if kept is not state:
                    if state is None and subject not in known:
                        make_room(1, now)
                        place(table, subject, kept, cost)
                    else:
                        known[subject] = kept
            finally:
                release(None)
            decision = Decision()
            decision.allowed = wait == 0
            decision.reading = reading
            decision.at_us = now
            decision.subjects = (subject,)
            decision.costs = (cost,)
            decision.verdict = (wait, kept)
            return decision

        return check

    def alike(self, pattern: Pattern) -> Alike:
        """The short way for requests that are alike: all at one moment. What is not as usual takes the long one."""
        with self._lock:
            tables = [self._tables.of(check.space, check.quota) for check in pattern.checks]
        parts = [
            (table.states, table.algorithm.admit, table.algorithm.figures, check.quota, check.cost, check.subject, own)
            for table, check, own in zip(tables, pattern.checks, pattern.own, strict=True)
        ]
        decide = self._decide_one_alike if len(parts) == 1 and parts[0][-1] else self._decide_all_alike

        def check(subjects: Sequence[str]) -> Answers:
            now = time_ns() // 1_000 if self._clock is None else self._clock.now_us()
            self._lock.acquire()
            try:
                return decide(pattern, parts, subjects, now)
            finally:
                self._lock.release(None)

        return check

    def _decide_one_alike(self, pattern: Pattern, parts: list[Any], subjects: Sequence[str], now: int) -> Answers:
        """Of one check, which has the request's own subject."""
        ((states, admit, figures_of, quota, cost, _, _),) = parts
        figures: list[int] = []
        faults: dict[int, StoreError] = {}
        for place, subject in enumerate(subjects):
            state = states.get(subject)
            wait, kept = admit(state, now, quota, cost)
            if kept is not state:
                if state is None and subject not in states:
                    self._decide_alone(pattern, subject, now, figures, faults, place)
                    continue
                states[subject] = kept
            remaining, reset = figures_of(kept, now, quota)
            figures += (wait, remaining, reset)
        return Answers(now, figures, faults)

    def _decide_all_alike(self, pattern: Pattern, parts: list[Any], subjects: Sequence[str], now: int) -> Answers:
        figures: list[int] = []
        faults: dict[int, StoreError] = {}
        for place, own_subject in enumerate(subjects):
            kept = []
            for states, admit, figures_of, quota, cost, subject, own in parts:
                key = own_subject if own else subject
                before = states.get(key)
                wait, state = admit(before, now, quota, cost)
                if wait or before is None:  # one that is refused, or new: nothing is charged yet
                    self._decide_alone(pattern, own_subject, now, figures, faults, place)
                    break
                kept.append((states, key, state, figures_of, quota))
            else:
                for states, key, state, figures_of, quota in kept:
                    states[key] = state
                    remaining, reset = figures_of(state, now, quota)
                    figures += (0, remaining, reset)
        return Answers(now, figures, faults)

    def _decide_alone(
        self,
        pattern: Pattern,
        subject: str,
        now: int,
        figures: list[int],
        faults: dict[int, StoreError],
        place: int,
    ) -> None:
        """One of many requests that are alike, by the long way."""
        try:
            for outcome in self._decide_checks(Group(pattern.of(subject)), now).outcomes:
                figures += outcome
        except StoreFull as error:
            faults[place] = error
            figures += (0, 0, 0) * len(pattern.checks)

    def check(self, groups: Sequence[Group]) -> list[Answer]:
        now = time_ns() // 1_000 if self._clock is None else self._clock.now_us()
        answers: list[Answer] = []
        self._lock.acquire()
        try:
            for group in groups:
                once = group.idempotency is not None and not group.peek
                try:
                    answers.append(self._decide_once(group, now) if once else self._decide(group, now))
                except StoreFull as error:  # which there may be room for again with the next
                    answers.append(error)
        finally:
            self._lock.release(None)
        return answered(answers)

    def refund(self, charges: Sequence[Charge]) -> None:
        now = self._now()
        with self._lock:
            for charge in charges:
                self._undo(charge, now)

    def hold(self, reservation_id: str, record: str, ttl_us: int) -> None:
        now = self._now()
        with self._lock:
            self._reservations.hold(reservation_id, record, now, ttl_us)

    def claim(self, reservation_id: str) -> Claim | None:
        now = self._now()
        with self._lock:
            return self._reservations.claim(reservation_id, now)

    def expire(self) -> Expired:
        now = self._now()
        with self._lock:
            return self._reservations.expire(now)

    def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> None:
        now = self._now()
        with self._lock:
            for charge in refunds:
                self._undo(charge._replace(reset_us=self._refunds.add(charge, now)), now)
            for check in surcharges:
                table = self._tables.of(check.space, check.quota)
                if check.subject not in table.states:
                    self._tables.make_room(1, now)
                    self._tables.place(table, check.subject, None, check.cost)
                state = table.states[check.subject]
                table.states[check.subject] = FORCES[check.quota.algorithm](state, now, check.quota, check.cost)

    def counts(self, checks: Sequence[Check]) -> list[Counted | None]:
        with self._lock:
            return [self._counted(check) for check in checks]

    def read(self, names: Sequence[str]) -> list[Page]:
        now = self._now()
        with self._lock:
            return self._ledger.read(names, now)

    def swap(self, swaps: Sequence[Swap]) -> list[bool]:
        now = self._now()
        with self._lock:
            return self._ledger.swap(swaps, now)

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        with self._lock:
            for check in checks:
                table = self._tables.get(check.space)
                if table is not None and check.subject in table.states:
                    table.states[check.subject] = None
            for client in clients:
                if self._clients is not None and client in self._clients.states:
                    self._clients.states[client] = None

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._tables.clear()
            self._answers.clear()
            self._reservations.clear()
            self._refunds.clear()
            self._ledger.clear()

    def close(self) -> None:
        self.clear()

    def halt(self) -> None:
        """Before a fork: whoever is in gets out first."""
        try:
            self._lock.acquire(timeout=HALT_SECONDS)
        except Empty:
            return
        self._halted = True

    def resume(self) -> None:
        """After it."""
        if self._halted:
            self._halted = False
            self._lock.release(None)

    def forked(self) -> None:
        """In a forked child: it has the parent's counts, unless they were just being changed."""
        self.resume()
        if self._lock.is_held():  # by a thread of the parent's
            self._lock.release(None)
            self.clear()

    def _now(self) -> int:
        return time_ns() // 1_000 if self._clock is None else self._clock.now_us()

    def _counted(self, check: Check) -> Counted | None:
        table = self._tables.get(check.space)
        state = None if table is None else table.states.get(check.subject)
        return None if state is None else Counted(*state)

    def _undo(self, charge: Charge, now: int) -> None:
        check, charged_at, reset = charge
        table = self._tables.get(check.space)
        if table is not None and check.subject in table.states:
            state = table.states[check.subject]
            table.states[check.subject] = table.algorithm.refund(state, now, check.quota, check.cost, charged_at, reset)

    def _decide(self, group: Group, now: int) -> Result:
        return self._decide_checks(group, now) if group.penalty is None else self._decide_penalised(group, now)

    def _decide_penalised(self, group: Group, now: int) -> Result:
        assert group.penalty is not None
        client, terms = group.penalty
        record = None if self._clients is None else self._clients.states.get(client)
        block = None if record is None else record.block(now, peek=group.peek)
        if block is not None:
            return Result(now, (), block)
        result = self._decide_checks(group, now)
        check = None if group.peek else binding(group.checks, result.outcomes)
        if check is None:
            return result
        if record is None:
            record = self._new_record(client, terms, now)
        return result._replace(block=record.violate(now, terms, check.quota.window_us, check.rule))

    def _new_record(self, client: Client, terms: Terms, now: int) -> penalty.Record:
        """The record of a client that has none. If there is no room for it, the refusal stands and is forgotten."""
        record = penalty.Record(terms)
        table = self._clients
        if table is None:
            table = self._clients = Table(penalty.SCALE, penalty)
        if client not in table.states:
            try:
                self._tables.make_room(1, now)
            except StoreFull:
                return record
            self._tables.place(table, client, record, 1)
        table.states[client] = record
        return record

    def _decide_checks(self, group: Group, now: int) -> Result:
        asked = []
        refused = group.peek
        for check in group.checks:
            _, space, subject, quota, cost, enforced, _, _ = check
            table = self._tables.of(space, quota)
            before = table.states.get(subject)
            wait, state = table.algorithm.admit(before, now, quota, cost)
            if wait and enforced:
                refused = True
            asked.append((check, table, before, wait, state))
        outcomes, kept, new = [], [], 0
        for one in asked:
            check, table, before, wait, state = one
            if refused and (group.peek or wait == 0):
                state = before  # nobody is charged
            remaining, reset = table.algorithm.figures(state, now, check.quota)
            outcomes.append(Outcome(wait, remaining, reset))
            if state is not before:
                kept.append(one)
                if before is None and check.subject not in table.states:
                    new += 1
        if new:
            self._tables.make_room(new, now)  # before anything is charged: there may be none
        for check, table, _, _, state in kept:
            if check.subject in table.states:
                table.states[check.subject] = state
            else:
                self._tables.place(table, check.subject, state, check.cost)
        return Result(now, tuple(outcomes))

    def _decide_once(self, group: Group, now: int) -> Result | IdempotencyConflict:
        assert group.idempotency is not None
        key, fingerprint = group.idempotency.name, group.idempotency.fingerprint
        answers = self._answers
        while answers:
            oldest = next(iter(answers))
            if now - answers[oldest][1].now_us < IDEMPOTENCY_US and len(answers) < self._tables.max_keys:
                break
            del answers[oldest]
        known = answers.get(key)
        if known is None or now - known[1].now_us >= IDEMPOTENCY_US:
            result = self._decide(group, now)
            answers[key] = (fingerprint, result)
            answers.move_to_end(key)
            return result
        return known[1] if known[0] == fingerprint else IdempotencyConflict.of(group.idempotency.key)


class AsyncMemoryStore:
    """The memory store, awaited. It never waits for anything: a decision takes microseconds."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    async def check(self, groups: Sequence[Group]) -> list[Answer]:
        return self.store.check(groups)

    async def refund(self, charges: Sequence[Charge]) -> None:
        self.store.refund(charges)

    async def hold(self, reservation_id: str, record: str, ttl_us: int) -> None:
        self.store.hold(reservation_id, record, ttl_us)

    async def claim(self, reservation_id: str) -> Claim | None:
        return self.store.claim(reservation_id)

    async def expire(self) -> Expired:
        return self.store.expire()

    async def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> None:
        self.store.adjust(refunds, surcharges)

    async def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        self.store.reset(checks, clients)

    async def counts(self, checks: Sequence[Check]) -> list[Counted | None]:
        return self.store.counts(checks)

    async def read(self, names: Sequence[str]) -> list[Page]:
        return self.store.read(names)

    async def swap(self, swaps: Sequence[Swap]) -> list[bool]:
        return self.store.swap(swaps)

    async def close(self) -> None:
        self.store.close()
