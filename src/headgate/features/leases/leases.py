"""Leases: decide groups from the tokens that are held, and yield what to send to the store for the rest.

It does no I/O. `decide` and `fetch` are generators: they yield groups for the store, and receive its answers or its
error. `notify` tells their driver about work in the background: to run `fetch`, and to run `tend` every `TICK_US` while
any tokens are held.

Every admitted request was charged to the store in advance. Tokens lost by a crash or a failed refund were charged but
not used: then too little is admitted, never too much. A slice whose answer was lost is fetched again (lost_slices.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from queue import SimpleQueue
from time import monotonic_ns
from typing import Any, Final

from headgate.core.check import Answer, Charge, Check, Extras, Group, Outcome, RepeatedResult, Result
from headgate.core.decision import Decision, decision_with
from headgate.core.plan import Plan
from headgate.core.quota import Quota
from headgate.core.reading import Reading, WarningStates
from headgate.errors import StoreError
from headgate.features.leases.calls import Decided, Fetch, LeasedCheck, Locked, may_have_done
from headgate.features.leases.lease import Late, Lease, Slice, figures
from headgate.features.leases.lease_table import LeaseTable
from headgate.features.leases.lost_slices import LostSlices
from headgate.features.leases.payment import GroupPayment
from headgate.features.leases.status import LeaseCounts, LeaseStatus
from headgate.stores.program import Program

Ask = Callable[[Lease | None, tuple[str, ...], tuple[int, ...], int], Any]  # gets lease, request and time
Steps = Generator[list[Group], Sequence[Answer], Any]

MAX_KEYS: Final = 16_384  # to remember
TICK_US: Final = 100_000


class Leases:
    """The leases of one node, safe to share between threads.

    `now_us` is a clock that only goes forward: by default, the machine's.
    """

    def __init__(
        self,
        now_us: Callable[[], int] | None = None,
        *,
        max_keys: int = MAX_KEYS,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        self._own_now_us = now_us
        self._now_us = now_us or (lambda: monotonic_ns() // 1_000)
        self._notify = notify
        self._lock: SimpleQueue[None] = SimpleQueue()  # contains one token: faster than threading.Lock
        self._lock.put(None)
        self._locked = Locked(self._lock)
        self._counts = LeaseCounts()
        self._table = LeaseTable(max_keys, self._counts)
        self._payment = GroupPayment(self._table, self._counts, self._now_us)
        self._wanted: list[Fetch] = []
        self._lost = LostSlices()

    @property
    def busy(self) -> bool:
        """Whether there is anything to fetch, to hold or to return."""
        return bool(self._table.held or self._wanted or self._lost)

    @property
    def waiting(self) -> bool:
        """Whether there is anything to fetch."""
        return bool(self._wanted)

    def compile(self, plan: Plan, states: WarningStates | None, grouped: Program, ask: Ask) -> Program:
        """Return the program of a plan with one limit, enforced and leased.

        If no token is held, `grouped` decides, and may fetch a slice. If no slice is wanted either, `ask`, the store's
        own program, decides; if there is a lease, the caller passes that decision to `take_decision`.
        """
        (template,) = plan.limits
        table = self._table.of(template.key_template)
        key_template, quota, now_us = template.key_template, template.quota, self._own_now_us
        reading, late_reading = Reading(plan, states), Reading(plan, states, partial(_read, quota))
        acquire, release, low = self._lock.get, self._lock.put, self._fetch_ahead
        counts, note_check = self._counts, self._table.note_check

        def check(
            subjects: tuple[str, ...], costs: tuple[int, ...], peek: bool = False, extras: Extras | None = None
        ) -> Any:
            (subject,), (cost,) = subjects, costs
            if cost <= 0 or peek or extras is not None:
                return grouped(subjects, costs, peek, extras)
            at_us = monotonic_ns() // 1_000 if now_us is None else now_us()
            lease = table.get(subject)
            if lease is None:
                if note_check((key_template, subject), at_us):
                    return grouped(subjects, costs)
                return ask(None, subjects, costs, at_us)
            refusal, alone = None, False
            acquire()  # try and finally, because a with statement takes longer
            try:
                piece = lease.slice
                left = piece.left - cost
                held = left >= 0 and at_us < piece.until_us and (lease.quota is quota or lease.quota == quota)
                if held:
                    piece.left = left
                    counts.hits += 1
                elif piece.left == 0 and not lease.spares and lease.quota == quota and cost <= quota.capacity:
                    if lease.refusal is not None and lease.refusal.is_valid_for(cost, at_us):
                        refusal = lease.refusal
                        counts.hits += 1
                    else:
                        lease.count_direct(cost)
                        lease.due = lease.fetch_size(at_us) or None
                        alone = lease.due is None
            finally:
                release(None)
            if not held:
                if refusal is not None:
                    verdict = (at_us + refusal.offset_us, subjects, costs, (refusal.at(at_us),))
                    return decision_with(reading, verdict, False)
                return ask(lease, subjects, costs, at_us) if alone else grouped(subjects, costs)
            if left < piece.mark:
                low(lease, piece, at_us)
            late_verdict = (at_us + piece.offset_us, subjects, costs, (piece.remaining + left, left, piece))
            return decision_with(late_reading, late_verdict, True)

        return check

    def take_decision(self, lease: Lease | None, decision: Decision, cost: int, sent_us: int) -> Decision:
        """Record the store's decision on a single check. Return the decision for the caller."""
        if lease is None:
            with self._locked:
                self._counts.checks += 1
                self._counts.calls += 1
            return decision
        now_us, (outcome,) = decision.at_us, decision.outcomes
        with self._locked:
            self._counts.checks += 1
            self._counts.calls += 1
            lease.remaining = outcome.remaining
            final = lease.take_answer(cost, outcome, now_us, sent_us)
            if final.wait_us == 0:
                return decision
            at_us = self._now_us()
            part = LeasedCheck.take(lease, cost, at_us)  # a slice may have arrived in the meantime
            if part.unpaid:
                self._table.put_back(part)
            else:
                final, now_us = lease.outcome(at_us), lease.now_us(at_us)
        verdict = (now_us, decision.subjects, decision.costs, (final,))
        reading = decision.reading
        known = Reading.of_outcomes(reading.plan, reading.states, reading.reason)
        return decision_with(known, verdict, final.wait_us == 0)

    def decide(self, groups: Sequence[Group], leased: frozenset[str], *, inline: bool) -> Steps:
        """Decide groups; `leased` are the ids of leased rules. Returns `Decided`.

        With `inline`, the same call to the store fetches wanted slices; otherwise `fetch` does it later.
        """
        at_us = self._now_us()
        with self._locked:
            wanted: list[Fetch] = []
            before = self._counts.checks
            leased_groups = [self._payment.prepare(group, leased, at_us, wanted) for group in groups]
            later = wanted if not inline else []
            self._wanted += later
            counts = self._counts.checks > before  # one call for all of them; others' calls are not counted
        if later:
            wanted = []
            self._notify()
        asks = [one.sent for one in leased_groups if one.sent is not None]
        answers: Sequence[Answer] = ()
        if asks:
            answers = yield from self._ask(asks, wanted, at_us, counts=counts)
        remaining = iter(answers)
        since = {fetch.lease for fetch in wanted}  # leases with newer data than the direct answer
        pay = self._payment
        with self._locked:
            decided = [
                pay.answer(one, at_us) if one.sent is None else pay.conclude(one, next(remaining), at_us, since)
                for one in leased_groups
            ]
        if wanted:
            self._notify()
        return Decided(decided, bool(asks) and not any(isinstance(one, StoreError) for one in answers))

    def fetch(self) -> Steps:
        """Fetch the wanted slices from the store."""
        with self._locked:
            wanted = [fetch for fetch in self._wanted if not fetch.lease.gone]
            self._wanted = []
        if wanted:
            yield from self._ask([], wanted, self._now_us())

    def recover(self) -> Steps:
        """Ask the store again for all slices whose answer was lost."""
        at_us = self._now_us()
        with self._locked:
            lost = self._lost.take_all()
        if lost:
            yield from self._ask([], lost, at_us)

    def tend(self) -> list[Charge]:
        """End slices that are unused or have expired. Run it every `TICK_US`. Returns the charges to refund.

        The next `fetch` repeats the calls for slices whose answer was lost.
        """
        at_us = self._now_us()
        with self._locked:
            if self._lost:
                self._strand(self._lost.give_up(at_us))
                self._wanted += self._lost.take_due(at_us)
            charges = self._table.tick(at_us)
            wanted = bool(self._wanted)
        if wanted:
            self._notify()
        return charges

    def end(self) -> list[Charge]:
        """End all leases, because this node stops. Return the charges to refund."""
        at_us = self._now_us()
        with self._locked:
            charges = self._table.end(at_us)
            self._strand(self._lost.clear())
        return charges

    def note_return(self, charges: Sequence[Charge], error: StoreError | None = None) -> None:
        """Record that the store has refunded these charges; with an error, that it has not."""
        tokens = sum(charge.check.cost for charge in charges)
        with self._locked:
            self._counts.calls += may_have_done(error)
            if error is None:
                self._counts.returned += tokens
            else:
                self._counts.stranded += tokens

    def forget(self, checks: Sequence[Check]) -> None:
        """Drop the leases of these checks: the store has reset them, and the charges of their slices."""
        with self._locked:
            self._table.remove(checks)

    def drop_all(self) -> None:
        """Drop all leases: the store was cleared, including the charges of their slices."""
        with self._locked:
            self._table.clear()

    def forget_all(self) -> None:
        """Reset in a forked child: the tokens belong to the parent."""
        if self._lock.empty():  # a thread of the parent holds it
            self._lock.put(None)
        self._table.forget_all()
        self._wanted = []
        self._lost.clear()

    def status(self) -> LeaseStatus:
        with self._locked:
            return self._counts.status(
                outstanding=self._table.outstanding, unanswered=self._lost.tokens, keys=self._table.keys
            )

    def _ask(
        self, asks: list[Group], wanted: list[Fetch], at_us: int, *, counts: bool = True
    ) -> Generator[list[Group], Sequence[Answer], Sequence[Answer]]:
        """Decide groups and fetch slices in one call. An error is the answer to each group.

        `counts`: the call is for leased rules.
        """
        wanted = [fetch if fetch.sent_us else fetch._replace(sent_us=at_us) for fetch in wanted]
        groups = asks + [fetch.group for fetch in wanted]
        answers: Sequence[Answer]
        failed: BaseException | None = None
        try:
            answers = yield groups
        except BaseException as error:  # noqa: BLE001 - raised below unless it is a StoreError
            failed = error
            answers = [error] * len(asks) if isinstance(error, StoreError) else ()
        with self._locked:
            self._counts.calls += counts and may_have_done(failed)
            self._counts.fetches += len(wanted)
            for index, fetch in enumerate(wanted, start=len(asks)):
                if failed is None:
                    self._take_slice(fetch, answers[index])
                else:
                    self._note_lost(fetch, failed)
        if failed is not None and not isinstance(failed, StoreError):
            raise failed
        return answers

    def _take_slice(self, fetch: Fetch, result: Answer) -> None:
        lease, size, _, sent_us, is_repeated = fetch
        if not isinstance(result, Result):  # only one of several servers failed
            self._note_lost(fetch, result)
            return
        if not is_repeated:
            lease.fetching = False
        elif not self._lost.forget(fetch):
            return  # it was given up
        outcome = result.outcomes[0]
        if not isinstance(result, RepeatedResult):  # a repeated answer has old figures
            lease.remaining = outcome.remaining
        if outcome.wait_us:
            return
        self._counts.fetched += size
        if lease.gone:
            self._counts.stranded += size
            return
        lease.add(Slice(size, result, lease.quota, sent_us))
        self._table.held[lease] = None

    def _note_lost(self, fetch: Fetch, error: BaseException) -> None:
        """Handle a missing answer. If the slice may have been charged, the store will be asked again."""
        at_us = self._now_us()
        fetch.lease.note_failure(at_us)
        if fetch.is_repeated or may_have_done(error):
            self._lost.add(fetch, at_us)

    def _strand(self, tokens: int) -> None:
        """Give up tokens that the store may have charged."""
        self._counts.fetched += tokens
        self._counts.stranded += tokens

    def _fetch_ahead(self, lease: Lease, piece: Slice, at_us: int) -> None:
        """Check whether to fetch another slice, because this one is nearly used up."""
        with self._locked:
            piece.mark = 0
            if lease.spares:
                return
            size = lease.fetch_size(at_us)
            if not size:
                return
            lease.fetching = True
            self._wanted.append(Fetch.of(lease, size))
        self._notify()


def _read(quota: Quota, verdict: tuple[int, Any, Any, Late]) -> tuple[Outcome, ...]:
    """Return the outcome of a check that was paid from a slice."""
    now_us, _, _, late = verdict
    return (Outcome(0, *figures(late, now_us, quota)),)
