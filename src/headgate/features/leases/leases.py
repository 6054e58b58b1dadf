"""Leases: decide groups from the tokens that are held, and say what to send to the store for the rest.

It does no I/O. `decide` and `fetch` are generators: they yield groups for the store, and are sent its answers, or
thrown its error. `notify` calls their driver back when there is work in the background: to run `fetch`, and to run
`tend` every `TICK_US` while anything is held.

Every admitted request was charged to the store before. Tokens lost by a crash or a failed refund were charged and not
used: too little is admitted then, and never too much. A slice whose answer was lost is fetched again (lost.py).
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
from headgate.features.leases.calls import Decided, Fetch, LeasedCheck, LeasedGroup, Locked, may_have_done, peeked
from headgate.features.leases.lease import LIFE_US, Late, Lease, Slice, figures
from headgate.features.leases.lost_slices import LostSlices
from headgate.features.leases.status import LeaseStatus
from headgate.stores.program import Program

Ask = Callable[[Lease | None, tuple[str, ...], tuple[int, ...], int], Any]  # of lease, request, and the time
Steps = Generator[list[Group], Sequence[Answer], Any]

MAX_KEYS: Final = 16_384  # that are remembered
TICK_US: Final = 100_000


class Leases:
    """The leases of one node, safe to share between threads. `now_us` is a clock that only goes forward: the machine's,
    unless another is given."""

    def __init__(
        self,
        now_us: Callable[[], int] | None = None,
        *,
        max_keys: int = MAX_KEYS,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        self._own_now_us = now_us
        self._now_us = now_us or (lambda: monotonic_ns() // 1_000)
        self._max_keys = max_keys
        self._notify = notify
        self._lock: SimpleQueue[None] = SimpleQueue()  # with one token in it: quicker than a threading.Lock
        self._lock.put(None)
        self._locked = Locked(self._lock)
        self._tables: dict[str, dict[str, Lease]] = {}  # by space and subject
        self._keys = 0
        self._full_until_us = 0  # no room is looked for before
        self._sighted_us: dict[tuple[str, str], int] = {}  # times of the last checks of keys without a lease
        self._held: dict[Lease, None] = {}  # that have tokens, or had some at the last tick
        self._wanted: list[Fetch] = []
        self._lost = LostSlices()
        self._hits = self._checks = self._calls = 0
        self._fetches = self._fetched = self._returned = self._stranded = 0

    @property
    def busy(self) -> bool:
        """Whether there is anything to fetch, to hold or to give back."""
        return bool(self._held or self._wanted or self._lost)

    @property
    def waiting(self) -> bool:
        """Whether there is anything to fetch."""
        return bool(self._wanted)

    def compile(self, plan: Plan, states: WarningStates | None, grouped: Program, ask: Ask) -> Program:
        """Return the program of a plan with one limit, enforced and leased.

        If no token is held, `grouped` decides, and may fetch a slice. If no slice is wanted either, `ask`, the store's
        own program, decides; if there is a lease, the caller passes that decision to `heard`.
        """
        (template,) = plan.limits
        table = self._tables.setdefault(template.space, {})
        space, quota, now_us = template.space, template.quota, self._own_now_us
        reading, late_reading = Reading(plan, states), Reading(plan, states, partial(_read, quota))
        acquire, release, low = self._lock.get, self._lock.put, self._low

        def check(
            subjects: tuple[str, ...],
            costs: tuple[int, ...],
            peek: bool = False,
            extras: Extras | None = None,
        ) -> Any:
            (subject,), (cost,) = subjects, costs
            if cost <= 0 or peek or extras is not None:
                return grouped(subjects, costs, peek, extras)
            at_us = monotonic_ns() // 1_000 if now_us is None else now_us()
            lease = table.get(subject)
            if lease is None:
                if self._seen_lately((space, subject), at_us):
                    return grouped(subjects, costs)
                return ask(None, subjects, costs, at_us)
            refusal, alone = None, False
            acquire()  # with try and finally, as a with statement takes longer
            try:
                piece = lease.slice
                left = piece.left - cost
                held = left >= 0 and at_us < piece.until_us and (lease.quota is quota or lease.quota == quota)
                if held:
                    piece.left = left
                    self._hits += 1
                elif piece.left == 0 and not lease.spares and lease.quota == quota and cost <= quota.capacity:
                    if lease.refusal is not None and lease.refusal.stands(cost, at_us):
                        refusal = lease.refusal
                        self._hits += 1
                    else:
                        lease.asked(cost)
                        lease.due = lease.wanted(at_us) or None
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
            decision = Decision()
            decision.allowed = True
            decision.reading = late_reading
            decision.verdict = (at_us + piece.offset_us, subjects, costs, (piece.remaining + left, left, piece))
            return decision

        return check

    def heard(self, lease: Lease | None, decision: Decision, cost: int, sent_us: int) -> Decision:
        """The store has decided a single check. Returns what to say."""
        if lease is None:
            with self._locked:
                self._checks += 1
                self._calls += 1
            return decision
        now_us, (outcome,) = decision.at_us, decision.outcomes
        with self._locked:
            self._checks += 1
            self._calls += 1
            lease.remaining = outcome.remaining
            told = lease.told(cost, outcome, now_us, sent_us)
            if told.wait_us == 0:
                return decision
            at_us = self._now_us()
            part = LeasedCheck(lease, lease.take(cost, at_us), cost)  # a slice may have come meanwhile
            if part.paid:
                told, now_us = lease.outcome(at_us), lease.now_us(at_us)
            else:
                self._put_back(part)
        verdict = (now_us, decision.subjects, decision.costs, (told,))
        return decision_with(decision.reading.told, verdict, told.wait_us == 0)

    def decide(self, groups: Sequence[Group], leased: frozenset[str], *, inline: bool) -> Steps:
        """Decide groups; `leased` are the ids of leased rules. Returns `Decided`.

        With `inline`, the same call to the store fetches wanted slices; otherwise `fetch` does that later.
        """
        at_us = self._now_us()
        with self._locked:
            wanted: list[Fetch] = []
            before = self._checks
            trips = [self._prepared(group, leased, at_us, wanted) for group in groups]
            later = wanted if not inline else []
            self._wanted += later
            counts = self._checks > before  # one call for all of them; others' calls are not counted
        if later:
            wanted = []
            self._notify()
        asks = [trip.sent for trip in trips if trip.sent is not None]
        answers: Sequence[Answer] = ()
        if asks:
            answers = yield from self._ask(asks, wanted, at_us, counts=counts)
        given = iter(answers)
        since = {fetch.lease for fetch in wanted}  # of which there is later news than what was asked for at once
        with self._locked:
            decided = [
                self._answered(trip, at_us) if trip.sent is None else self._concluded(trip, next(given), at_us, since)
                for trip in trips
            ]
        if wanted:
            self._notify()
        return Decided(decided, bool(asks) and not any(isinstance(one, StoreError) for one in answers))

    def fetch(self) -> Steps:
        """Ask the store for the slices that are wanted."""
        with self._locked:
            wanted = [fetch for fetch in self._wanted if not fetch.lease.gone]
            self._wanted = []
        if wanted:
            yield from self._ask([], wanted, self._now_us())

    def recover(self) -> Steps:
        """Ask the store again for all slices whose answer was lost."""
        at_us = self._now_us()
        with self._locked:
            lost = self._lost.all()
        if lost:
            yield from self._ask([], lost, at_us)

    def tend(self) -> list[Charge]:
        """End slices that are unused, or whose time is up: run every `TICK_US`. Returns the charges to refund.

        The next `fetch` repeats the calls for slices whose answer was lost.
        """
        at_us = self._now_us()
        charges: list[Charge] = []
        with self._locked:
            if self._lost:
                self._strand(self._lost.give_up(at_us))
                asked = {fetch.key for fetch in self._wanted}
                self._wanted += [fetch for fetch in self._lost.due(at_us) if fetch.key not in asked]
            for lease in list(self._held):
                lease.tick(at_us)
                charges += self._returning(lease, at_us)
                if not lease.held:
                    del self._held[lease]
            wanted = bool(self._wanted)
        if wanted:
            self._notify()
        return charges

    def end(self) -> list[Charge]:
        """End all leases: this node takes its leave. Returns what the store has to take back."""
        at_us = self._now_us()
        charges: list[Charge] = []
        with self._locked:
            for lease in self._held:
                lease.end()
                charges += self._returning(lease, at_us)
            self._held.clear()
            self._strand(self._lost.clear())
        return charges

    def gave_back(self, charges: Sequence[Charge], error: StoreError | None = None) -> None:
        """The store has taken these back; with an error, it has not."""
        tokens = sum(charge.check.cost for charge in charges)
        with self._locked:
            self._calls += may_have_done(error)
            if error is None:
                self._returned += tokens
            else:
                self._stranded += tokens

    def forget(self, checks: Sequence[Check]) -> None:
        """Drop the leases of these: the store has reset them, and with them the charges of their slices."""
        with self._locked:
            for check in checks:
                lease = self._tables.get(check.space, {}).pop(check.subject, None)
                if lease is not None:
                    self._keys -= 1
                    self._drop(lease)

    def drop_all(self) -> None:
        """Drop all leases: the store has forgotten everything, and with it the charges of their slices."""
        with self._locked:
            for table in self._tables.values():
                for lease in table.values():
                    self._drop(lease)
                table.clear()
            self._keys = 0

    def forget_all(self) -> None:
        """In a forked child: what is held is the parent's to spend."""
        if self._lock.empty():  # held by a thread of the parent's
            self._lock.put(None)
        for table in self._tables.values():
            for lease in table.values():
                self._drop(lease)
            table.clear()
        self._held.clear()
        self._sighted_us.clear()
        self._wanted = []
        self._lost.clear()
        self._keys = 0

    def status(self) -> LeaseStatus:
        with self._locked:
            return LeaseStatus(
                checks=self._checks + self._hits,
                hits=self._hits,
                calls=self._calls,
                fetches=self._fetches,
                fetched=self._fetched,
                returned=self._returned,
                stranded=self._stranded,
                outstanding=sum(lease.held for lease in self._held),
                unanswered=self._lost.tokens,
                keys=self._keys,
            )

    def _drop(self, lease: Lease) -> None:
        """Take all tokens out of a lease, and give none of them back. Other threads may be reading the lease."""
        lease.gone = True
        lease.end()
        self._stranded += sum(count for _, count in lease.leftover)
        lease.leftover = []
        self._held.pop(lease, None)

    def _ask(
        self, asks: list[Group], wanted: list[Fetch], at_us: int, *, counts: bool = True
    ) -> Generator[list[Group], Sequence[Answer], Sequence[Answer]]:
        """Have groups decided and slices fetched, in one call. An error is the answer to each group.

        `counts`: it is a call on behalf of leased rules.
        """
        wanted = [fetch if fetch.sent_us else fetch._replace(sent_us=at_us) for fetch in wanted]
        groups = asks + [fetch.group for fetch in wanted]
        answers: Sequence[Answer]
        failed: BaseException | None = None
        try:
            answers = yield groups
        except BaseException as error:  # noqa: BLE001 - raised below, if it is not a StoreError
            failed = error
            answers = [error] * len(asks) if isinstance(error, StoreError) else ()
        with self._locked:
            self._calls += counts and may_have_done(failed)
            self._fetches += len(wanted)
            for place, fetch in enumerate(wanted, start=len(asks)):
                if failed is None:
                    self._arrived(fetch, answers[place])
                else:
                    self._missed(fetch, failed)
        if failed is not None and not isinstance(failed, StoreError):
            raise failed
        return answers

    def _arrived(self, fetch: Fetch, result: Answer) -> None:
        lease, size, _, sent_us = fetch
        if not isinstance(result, Result):  # of several servers, only this one failed
            self._missed(fetch, result)
            return
        if not self._lost.found(fetch):
            lease.fetching = False
        outcome = result.outcomes[0]
        if not isinstance(result, RepeatedResult):  # which tells what was left a while ago
            lease.remaining = outcome.remaining
        if outcome.wait_us:
            return
        self._fetched += size
        if lease.gone:
            self._stranded += size
            return
        lease.add(Slice(size, result, lease.quota, sent_us))
        self._held[lease] = None

    def _missed(self, fetch: Fetch, error: BaseException) -> None:
        """No answer came. If the slice may have been charged, the store will be asked again."""
        at_us = self._now_us()
        fetch.lease.failed(at_us)
        if may_have_done(error) or self._lost.found(fetch):
            self._lost.add(fetch, at_us)

    def _strand(self, tokens: int) -> None:
        """Give up tokens that the store may have charged."""
        self._fetched += tokens
        self._stranded += tokens

    def _low(self, lease: Lease, piece: Slice, at_us: int) -> None:
        """A slice is nearly used up: see whether to fetch another."""
        with self._locked:
            piece.mark = 0
            if lease.spares:
                return
            size = lease.wanted(at_us)
            if not size:
                return
            lease.fetching = True
            self._wanted.append(Fetch.of(lease, size))
        self._notify()

    def _prepared(self, group: Group, leased: frozenset[str], at_us: int, wanted: list[Fetch]) -> LeasedGroup:
        """Take what is held, and see what the store has to be asked."""
        if not any(check.rule in leased for check in group.checks):
            return LeasedGroup(group, group, [])
        if group.peek:
            return LeasedGroup(group, group, [self._seen(check, leased) for check in group.checks])
        if group.idempotency is not None or group.penalty is not None:
            self._checks += 1
            return LeasedGroup(group, group, [])
        parts: list[LeasedCheck | None] = []
        local = refused = True  # whether all is paid for; or nothing else is to be expected than a refusal
        for check in group.checks:
            part = self._part(check, at_us) if check.rule in leased else None
            parts.append(part)
            if part is None:
                local = refused = False
            elif part.asked:
                local = False
                refusal = part.lease.refusal
                refused = refused and refusal is not None and refusal.stands(part.asked, at_us)
        if local or refused:
            self._hits += 1
            return LeasedGroup(group, None, parts)
        self._checks += 1
        checks = []
        for check, part in zip(group.checks, parts, strict=True):
            if part is None:
                checks.append(check)
            elif part.asked:
                checks.append(check._replace(cost=part.asked))
                size = part.lease.due
                if size is None:
                    part.lease.asked(part.asked)
                    size = part.lease.wanted(at_us)
                part.lease.due = None
                if size:
                    part.lease.fetching = True
                    wanted.append(Fetch.of(part.lease, size))
        return LeasedGroup(group, Group(tuple(checks)), parts)

    def _part(self, check: Check, at_us: int) -> LeasedCheck | None:
        """Take tokens for a check from its lease; None if it has no lease, or does not use it."""
        if not 0 < check.cost <= check.quota.capacity:
            return None
        lease = self._lease(check, at_us)
        if lease is None:
            return None
        taken = lease.take(check.cost, at_us)
        return LeasedCheck(lease, taken, check.cost - sum(count for _, count in taken))

    def _seen(self, check: Check, leased: frozenset[str]) -> LeasedCheck | None:
        lease = self._tables.get(check.space, {}).get(check.subject) if check.rule in leased else None
        return None if lease is None else LeasedCheck(lease, [], 0)

    def _lease(self, check: Check, at_us: int) -> Lease | None:
        """That of a key, made if there is demand for it; None when there is not, or no room for another."""
        table = self._tables.get(check.space)
        if table is None:
            table = self._tables[check.space] = {}
        lease = table.get(check.subject)
        if lease is None:
            if not self._seen_lately((check.space, check.subject), at_us):
                return None
            if self._keys >= self._max_keys and not self._make_room(at_us):
                return None
            lease = table[check.subject] = Lease(check, at_us)
            self._keys += 1
        elif lease.quota != check.quota:  # the rule was changed
            lease.gone = True
            lease.end()
            lease = table[check.subject] = Lease(check, at_us)
        return lease

    def _seen_lately(self, key: tuple[str, str], at_us: int) -> bool:
        """Note a check of a key. Returns whether there was one in the last second. Most keys need no more than this."""
        sighted = self._sighted_us
        before_us = sighted.get(key)
        if before_us is None and len(sighted) >= self._max_keys:
            sighted.clear()
        sighted[key] = at_us
        return before_us is not None and at_us - before_us < LIFE_US

    def _make_room(self, at_us: int) -> bool:
        """Forget keys that hold nothing. Usually finds some, because leases are released within a second."""
        if at_us < self._full_until_us:
            return False
        for table in self._tables.values():
            for subject in [subject for subject, lease in table.items() if lease not in self._held]:
                if not table[subject].fetching:
                    del table[subject]
                    self._keys -= 1
        if self._keys > self._max_keys * 7 // 8:
            self._full_until_us = at_us + LIFE_US
        return self._keys < self._max_keys

    def _returning(self, lease: Lease, at_us: int) -> list[Charge]:
        charges, stranded = lease.returning(at_us)
        self._stranded += stranded
        return charges

    def _answered(self, trip: LeasedGroup, at_us: int) -> Result:
        """The answer to a group without the store's help: all is paid for, or a refusal is known to stand."""
        parts = [part for part in trip.parts if part is not None]
        waits = {part.lease: part.lease.refusal for part in parts if part.asked}
        refused = any(part.asked and check.enforced for check, part in zip(trip.group.checks, parts, strict=True))
        outcomes, now_us = [], 0
        for part in parts:
            refusal = waits.get(part.lease)  # it stands, as long as we have the lock
            if refused or part.asked:
                self._put_back(part)
            if refusal is None:
                outcomes.append(part.lease.outcome(at_us))
                now_us = max(now_us, part.lease.now_us(at_us))
            else:
                outcomes.append(refusal.at(at_us))
                now_us = max(now_us, at_us + refusal.offset_us)
        return Result(now_us, tuple(outcomes))

    def _concluded(self, trip: LeasedGroup, answer: Answer, sent_us: int, since: set[Lease]) -> Answer:
        """Return the answer to a group that the store decided in part. After an error, tokens taken stay spent."""
        if not isinstance(answer, Result) or not any(trip.parts) or not answer.outcomes:
            return answer
        if trip.group.peek:
            return answer._replace(outcomes=tuple(map(peeked, trip.group.checks, trip.parts, answer.outcomes)))
        given = iter(answer.outcomes)
        outcomes: list[Outcome | None] = []
        refused = False
        for check, part in zip(trip.group.checks, trip.parts, strict=True):
            if part is not None and not part.asked:
                outcomes.append(None)
                continue
            outcome = next(given)
            refused = refused or (outcome.wait_us != 0 and check.enforced)
            if part is not None:
                if part.lease not in since:
                    part.lease.remaining = outcome.remaining
                outcome = part.lease.told(part.asked, outcome, answer.now_us, sent_us)
            outcomes.append(outcome)
        found = self._second_thoughts(trip) if refused else None
        if found is not None:
            return found
        final = []
        for part, told in zip(trip.parts, outcomes, strict=True):
            if part is None:
                assert told is not None
                final.append(told)
                continue
            if refused or (told is not None and told.wait_us):
                self._put_back(part)
            if told is None:
                final.append(part.lease.outcome(sent_us))
            else:
                final.append(told._replace(remaining=part.lease.available))
        return Result(answer.now_us, tuple(final))

    def _second_thoughts(self, trip: LeasedGroup) -> Result | None:
        """The store has refused; but a slice may have come meanwhile. The result, if it is enough."""
        parts = [part for part in trip.parts if part is not None]
        if len(parts) < len(trip.parts):
            return None
        at_us = self._now_us()
        more = [LeasedCheck(part.lease, part.lease.take(part.asked, at_us), part.asked) for part in parts]
        if all(part.paid for part in more):
            now_us = max(part.lease.now_us(at_us) for part in parts)
            return Result(now_us, tuple(part.lease.outcome(at_us) for part in parts))
        for part in more:
            self._put_back(part)
        return None

    def _put_back(self, part: LeasedCheck) -> None:
        lease, taken, _ = part
        if lease.gone:
            self._stranded += sum(count for _, count in taken)
        elif taken:
            lease.put_back(taken)
            self._held[lease] = None  # for it to be looked at


def _read(quota: Quota, verdict: tuple[int, Any, Any, Late]) -> tuple[Outcome, ...]:
    """The outcome of a check that was paid from a slice."""
    now_us, _, _, late = verdict
    return (Outcome(0, *figures(late, now_us, quota)),)
