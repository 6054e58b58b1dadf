"""The memory store: exact within one process, thread-safe, bounded, and without a background thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import Empty
from time import time_ns
from typing import Any, Final, cast

from headgate.algorithms import concurrency, held
from headgate.core.check import (
    NOT_WAITING,
    Answer,
    Block,
    Charge,
    Check,
    Client,
    Extras,
    Group,
    Idempotency,
    Penalty,
    Terms,
    binding,
    require_any_answer,
)
from headgate.core.clock import Clock
from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.core.fork import halt_for_forks
from headgate.core.plan import Plan
from headgate.core.quota import BUCKETS, CONCURRENCY, Quota, unlimited
from headgate.core.reading import Reading, WarningStates
from headgate.core.reservation import (
    PENDING_US,
    Claim,
    ClaimedAdjustments,
    ExpiredClaims,
    Record,
    ReservationAnswer,
    new_id,
)
from headgate.errors import IdempotencyConflict, StoreFull
from headgate.stores.memory import penalty
from headgate.stores.memory.lock import StoreLock
from headgate.stores.memory.program import MemoryProgram, compile_program, reader
from headgate.stores.memory.records import Ledger, Refunds, RememberedAnswer, RememberedAnswers, ReservationTable
from headgate.stores.memory.tables import Table, Tables
from headgate.stores.program import result_of
from headgate.stores.protocol import Counted, LedgerPage, Swap

MAX_PROGRAMS: Final = 4_096  # of groups, to remember
HALT_SECONDS: Final = 2.0  # how long a fork waits, at most: a thread that forks within its own check would wait forever


class MemoryStore:
    """Keeps state in this process. `max_keys` bounds it: a gcra key takes about 150 to 200 bytes."""

    def __init__(self, *, max_keys: int = 1_000_000, clock: Clock | None = None) -> None:
        if max_keys < 1:
            raise ValueError(f"max_keys: must be at least 1, got {max_keys!r}")
        self._clock = clock
        self.lock = StoreLock()
        self._tables = Tables(max_keys)
        self._clients: Table | None = None  # clients that have violations
        self._answers = RememberedAnswers(max_keys)
        self._reservations = ReservationTable(max_keys)
        self._refunds = Refunds(max_keys)
        self._ledger = Ledger()
        self._programs: dict[tuple[Any, ...], MemoryProgram] = {}  # for groups
        self._halted = False
        halt_for_forks(self)

    def __len__(self) -> int:
        """Return the number of keys, including expired ones that no sweep has dropped yet."""
        return self._tables.keys

    @property
    def keys_placed(self) -> int:
        """The number of new keys since the store was created."""
        return self._tables.placed

    def compile(self, plan: Plan, states: WarningStates | None = None, shown: Plan | None = None) -> MemoryProgram:
        """Return the program that decides requests of a plan: see `headgate.stores.program.Program`.

        Decisions get `states`. If `shown` is set, they show that plan instead of the charged one: its limits are
        larger, with the same amounts remaining.
        """
        return self._compile(plan, states, shown)

    def _compile(self, plan: Plan, states: WarningStates | None = None, shown: Plan | None = None) -> MemoryProgram:
        with self.lock:
            tables = [self._tables.of(limit.key_template, limit.quota) for limit in plan.limits]
        limits = [(table, table.algorithm.admit, limit.quota) for table, limit in zip(tables, plan.limits, strict=True)]
        reading = Reading(shown or plan, states, reader(limits))
        return compile_program(self, limits, reading, None if self._clock is None else self._clock.now_us)

    def check(self, groups: Sequence[Group]) -> list[Answer]:
        answers: list[Answer] = []
        for checks, peek, idempotency, client_penalty in groups:
            reservation, slot, arrived_us = checks[0][8:] if checks else (0, "", NOT_WAITING)
            has_extras = idempotency or client_penalty or reservation or slot
            extras = Extras(idempotency, client_penalty, reservation, slot, arrived_us) if has_extras else None
            program = self._program(checks)
            subjects, costs = tuple([check.subject for check in checks]), tuple([check.cost for check in checks])
            try:
                decision = program(subjects, costs, peek, extras)
            except (StoreFull, IdempotencyConflict) as error:  # others may still have room
                answers.append(error)
            else:
                answers.append(result_of(decision))
        return require_any_answer(answers)

    def _program(self, checks: tuple[Check, ...]) -> MemoryProgram:
        """Return the program of a group's checks, compiled on first use."""
        shape = tuple([(check.key_template, check.quota, check.enforced, check.rule) for check in checks])
        program = self._programs.get(shape)
        if program is None:
            if len(self._programs) >= MAX_PROGRAMS:
                self._programs = {}
            program = self._programs[shape] = self._compile(Plan(checks))
        return program

    # Methods that programs call for less common requests. The programs hold the lock.

    def recall(
        self,
        reading: Reading,
        subjects: tuple[str, ...],
        costs: tuple[int, ...],
        now: int,
        peek: bool,
        idempotency: Idempotency | None,
        penalty: Penalty | None,
    ) -> Decision | None:
        """Return a decision that does not depend on the limits: for a repetition, or a blocked client."""
        if idempotency is not None and not peek:
            known = self._answers.find(idempotency, now)
            if known is not None:
                repeated = known.decision(reading, subjects, costs)
                repeated.settled = True
                return repeated
        record = None if penalty is None or self._clients is None else self._clients.states.get(penalty.client)
        block = None if record is None else record.block(now, peek=peek)
        if block is None:
            return None
        answer = RememberedAnswer(now, False, (), block)
        if idempotency is not None and not peek:
            self._answers.put(idempotency, answer)
        return answer.decision(reading, subjects, costs)

    def keep(self, decision: Decision, peek: bool, idempotency: Idempotency | None, penalty: Penalty | None) -> None:
        """Count a refusal against its client, and store the answer to an idempotency key."""
        if peek:
            return
        if penalty is not None and not decision.allowed:
            block = self._violate(decision, penalty)
            if block is not None:
                decision.block = block
        if idempotency is not None:
            block = getattr(decision, "block", None)
            self._answers.put(idempotency, RememberedAnswer(decision.at_us, decision.allowed, decision.outcomes, block))

    def open_reservation(self, table: Table, subject: str, now: int, quota: Quota, reservation: int) -> None:
        """Track how much of a reservation that was just charged can be refunded. Windows need no tracking."""
        state, bucket = table.states.get(subject), cast(held.Bucket, table.algorithm)
        if state is not None and quota.algorithm in BUCKETS:
            table.states[subject] = held.open_reservation(bucket, state, now, quota, reservation)

    def make_room(
        self,
        tables: Sequence[Table],
        subjects: Sequence[str],
        costs: Sequence[int],
        befores: Sequence[Any],
        afters: Sequence[Any],
        now: int,
    ) -> None:
        """Make room for the new keys of a request, before anything is charged. Raises `StoreFull`."""
        kept = [at for at, after in enumerate(afters) if after is not befores[at]]
        new = sum([subjects[at] not in tables[at].states for at in kept])
        if new:
            self._tables.make_room(new, now)
            for at in kept:
                if subjects[at] not in tables[at].states:
                    self._tables.add(tables[at], subjects[at], None, costs[at])

    def _violate(self, decision: Decision, penalty: Penalty) -> Block | None:
        """Record a refusal. Return the block that it starts, if any."""
        limits, now = decision.plan.limits, decision.at_us
        checks = tuple([limit._replace(cost=cost) for limit, cost in zip(limits, decision.costs, strict=True)])
        check = binding(checks, decision.outcomes)
        if check is None:
            return None
        client, terms = penalty
        record = None if self._clients is None else self._clients.states.get(client)
        if record is None:
            record = self._new_record(client, terms, now)
        block: Block | None = record.violate(now, terms, check.quota.window_us, check.rule)
        return block

    def refund(self, charges: Sequence[Charge]) -> None:
        now = self._now()
        with self.lock:
            for charge in charges:
                self._undo(charge, now)

    def save_reservation(self, reservation_id: str, record: str, ttl_us: int) -> None:
        now = self._now()
        with self.lock:
            self._reservations.save_reservation(reservation_id, record, now, ttl_us)

    def new_reservation_id(self, charge: Group) -> str | None:  # noqa: ARG002
        return new_id()

    def reserve(self, reservation_id: str, pending: Record, ttl_us: int) -> ReservationAnswer:
        # The record is first, because there may be no room for it.
        self.save_reservation(reservation_id, pending.encode(), ttl_us + PENDING_US)
        is_admitted = False
        try:
            (answer,) = self.check([pending.charge])
            is_admitted = pending.is_admitted_by(answer)
        finally:
            if not is_admitted:
                with self.lock:
                    self._reservations.drop(reservation_id)
        if is_admitted:
            self.renew(reservation_id, pending.complete(answer).encode(), ttl_us)
        return ReservationAnswer(answer)

    def renew(self, reservation_id: str, record: str, ttl_us: int) -> bool:
        now = self._now()
        with self.lock:
            return self._reservations.renew(reservation_id, record, now, ttl_us)

    def claim_reservation(self, reservation_id: str, cost: Cost) -> Claim | None:
        now = self._now()
        with self.lock:
            return self._reservations.claim_reservation(reservation_id, cost, now)

    def claim_expired(self) -> ExpiredClaims:
        now = self._now()
        with self.lock:
            return self._reservations.claim_expired(now)

    def settle(self, settled: Sequence[ClaimedAdjustments]) -> list[list[int]]:
        now = self._now()
        with self.lock:
            return [
                self._adjust(*changes, now) if self._reservations.settle(claim, now) else [0] * len(changes.refunds)
                for claim, changes in settled
            ]

    def release_slots(self, held: Sequence[Check]) -> list[bool]:
        return self._each_slot(held, concurrency.release)

    def renew_slots(self, held: Sequence[Check]) -> list[bool]:
        return self._each_slot(held, concurrency.renew)

    def _each_slot(self, held: Sequence[Check], change: Callable[[Any, int, str, int], bool]) -> list[bool]:
        were_held = []
        self.lock.acquire()  # with try and finally: a with statement would take longer
        try:
            now = self._now()
            for check in held:
                table = self._tables.get(check.key_template)
                state = None if table is None else table.states.get(check.subject)
                if state is None and check.arrived_us != NOT_WAITING:
                    table = table or self._tables.of(check.key_template, check.quota)
                    state = self._tables.put(table, check.subject, concurrency.SlotSet(), check.cost, now)
                were_held.append(change(state, now, check.slot, check.arrived_us))
        finally:
            self.lock.release(None)
        return were_held

    def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> list[int]:
        now = self._now()
        with self.lock:
            return self._adjust(refunds, surcharges, now)

    def _adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check], now: int) -> list[int]:
        from headgate.algorithms.force import FORCES  # noqa: PLC0415 - only corrections of a charge need it

        refunded = [self._undo(charge._replace(reset_us=self._refunds.add(charge, now)), now) for charge in refunds]
        for check in surcharges:
            table = self._tables.of(check.key_template, check.quota)
            if table.quota is not check.quota:
                table.use(check.quota, now)
            state = table.states.get(check.subject)
            if state is None:
                self._tables.put(table, check.subject, None, check.cost, now)
            table.states[check.subject] = FORCES[check.quota.algorithm](state, now, check.quota, check.cost)
        return refunded

    def counts(self, checks: Sequence[Check]) -> list[Counted | None]:
        with self.lock:
            return [self._count_of(check) for check in checks]

    def read(self, names: Sequence[str]) -> list[LedgerPage]:
        now = self._now()
        with self.lock:
            return self._ledger.read(names, now)

    def swap(self, swaps: Sequence[Swap]) -> list[bool]:
        now = self._now()
        with self.lock:
            return self._ledger.swap(swaps, now)

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        with self.lock:
            for check in checks:
                table = self._tables.get(check.key_template)
                if table is not None and check.subject in table.states:
                    table.states[check.subject] = None
            for client in clients:
                if self._clients is not None and client in self._clients.states:
                    self._clients.states[client] = None

    def clear(self) -> None:
        """Delete everything."""
        with self.lock:
            self._tables.clear()
            self._answers.clear()
            self._reservations.clear()
            self._refunds.clear()
            self._ledger.clear()

    def clear_some(self, cursor: object = None) -> None:  # noqa: ARG002 - all of it in one call
        """Delete everything. Return None, because nothing is left."""
        self.clear()

    def close(self) -> None:
        self.clear()

    def halt(self) -> None:
        """Before a fork, wait for the check in progress, and block others."""
        try:
            self.lock.acquire(timeout=HALT_SECONDS)
        except Empty:
            return
        self._halted = True

    def resume(self) -> None:
        """Allow checks again after a fork."""
        if self._halted:
            self._halted = False
            self.lock.release(None)

    def reset_after_fork(self) -> None:
        """Reset in a forked child. It keeps the parent's counts, unless they were just being changed."""
        self.resume()
        if self.lock.is_held():  # by a thread of the parent
            self.lock.release(None)
            self.clear()

    def _now(self) -> int:
        return time_ns() // 1_000 if self._clock is None else self._clock.now_us()

    def _count_of(self, check: Check) -> Counted | None:
        table = self._tables.get(check.key_template)
        state = None if table is None else table.states.get(check.subject)
        return None if state is None else Counted(*state)

    def _undo(self, charge: Charge, now: int) -> int:
        """Undo a charge, and return how much of it was refunded."""
        check, charged_at, reset = charge
        quota, cost = check.quota, check.cost
        table = self._tables.get(check.key_template)
        state = None if table is None else table.states.get(check.subject)
        if table is None or state is None:
            return 0
        algorithm: Any = table.algorithm
        if quota.algorithm == CONCURRENCY:
            return cost if concurrency.release(state, now, check.slot) else 0
        if quota.algorithm not in BUCKETS:
            is_spent = algorithm.figures(state, now, quota)[0] == 0
            counted = unlimited(quota) if is_spent else quota  # more than the limit may be counted
            changed = algorithm.refund(state, now, quota, cost, charged_at, reset)
            back: int = algorithm.figures(changed, now, counted)[0] - algorithm.figures(state, now, counted)[0]
        elif check.reservation:
            changed, back = held.settle_reservation(algorithm, state, now, quota, cost, check.reservation)
        else:
            changed = algorithm.refund(state, now, quota, cost, charged_at, reset)
            back = held.refunded_cost(algorithm, state, changed, now, quota)
        table.states[check.subject] = changed
        return back

    def _new_record(self, client: Client, terms: Terms, now: int) -> penalty.PenaltyRecord:
        """Create the record of a client. If there is no room for it, the refusal stays but is not remembered."""
        record = penalty.PenaltyRecord(terms)
        table = self._clients
        if table is None:
            table = self._clients = Table(penalty.SCALE, penalty)
        if client not in table.states:
            try:
                self._tables.make_room(1, now)
            except StoreFull:
                return record
            self._tables.add(table, client, record, 1)
        table.states[client] = record
        return record
