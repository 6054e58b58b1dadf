"""Pay groups from leases: take the tokens that are held, and combine them with the store's answer for the rest.

No I/O and no lock: `Leases` holds its lock around every call.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate.core.check import Answer, Check, Group, Outcome, Result
from headgate.features.leases.calls import Fetch, LeasedCheck, LeasedGroup, add_held
from headgate.features.leases.lease import Lease
from headgate.features.leases.lease_table import LeaseTable
from headgate.features.leases.status import LeaseCounts


class GroupPayment:
    """Pays groups. `prepare` a group, then `answer` it if nothing was sent to the store, else `conclude` it."""

    def __init__(self, table: LeaseTable, counts: LeaseCounts, now_us: Callable[[], int]) -> None:
        self._table = table
        self._counts = counts
        self._now_us = now_us

    def prepare(self, group: Group, leased: frozenset[str], at_us: int, wanted: list[Fetch]) -> LeasedGroup:
        """Take the tokens that are held, and find out what to send to the store."""
        if not any(check.rule in leased for check in group.checks):
            return LeasedGroup(group, group, [])
        if group.peek:
            return LeasedGroup(group, group, [self._find_leased(check, leased) for check in group.checks])
        if group.idempotency is not None or group.penalty is not None:
            self._counts.checks += 1
            return LeasedGroup(group, group, [])
        parts: list[LeasedCheck | None] = []
        local = refused = True  # whether everything is paid for; whether a refusal is certain
        for check in group.checks:
            part = self._take_tokens(check, at_us) if check.rule in leased else None
            parts.append(part)
            if part is None:
                local = refused = False
            elif part.unpaid:
                local = False
                refusal = part.lease.refusal
                refused = refused and refusal is not None and refusal.is_valid_for(part.unpaid, at_us)
        if local or refused:
            self._counts.hits += 1
            return LeasedGroup(group, None, parts)
        self._counts.checks += 1
        checks = []
        for check, part in zip(group.checks, parts, strict=True):
            if part is None:
                checks.append(check)
            elif part.unpaid:
                checks.append(check._replace(cost=part.unpaid))
                size = part.lease.due
                if size is None:
                    part.lease.count_direct(part.unpaid)
                    size = part.lease.fetch_size(at_us)
                part.lease.due = None
                if size:
                    part.lease.fetching = True
                    wanted.append(Fetch.of(part.lease, size))
        return LeasedGroup(group, Group(tuple(checks)), parts)

    def answer(self, leased: LeasedGroup, at_us: int) -> Result:
        """Return the answer to a group without the store: everything is paid for, or a refusal is known to last."""
        parts = [part for part in leased.parts if part is not None]
        waits = {part.lease: part.lease.refusal for part in parts if part.unpaid}
        refused = any(part.unpaid and check.enforced for check, part in zip(leased.group.checks, parts, strict=True))
        outcomes, now_us = [], 0
        for part in parts:
            refusal = waits.get(part.lease)  # it lasts as long as we hold the lock
            if refused or part.unpaid:
                self._table.put_back(part)
            if refusal is None:
                outcomes.append(part.lease.outcome(at_us))
                now_us = max(now_us, part.lease.now_us(at_us))
            else:
                outcomes.append(refusal.at(at_us))
                now_us = max(now_us, at_us + refusal.offset_us)
        return Result(now_us, tuple(outcomes))

    def conclude(self, leased: LeasedGroup, answer: Answer, sent_us: int, since: set[Lease]) -> Answer:
        """Return the answer to a group that the store decided in part. After an error, the tokens stay spent."""
        if not isinstance(answer, Result) or not any(leased.parts) or not answer.outcomes:
            return answer
        if leased.group.peek:
            return answer._replace(outcomes=tuple(map(add_held, leased.group.checks, leased.parts, answer.outcomes)))
        decided_there = iter(answer.outcomes)
        outcomes: list[Outcome | None] = []
        refused = False
        for check, part in zip(leased.group.checks, leased.parts, strict=True):
            if part is not None and not part.unpaid:
                outcomes.append(None)
                continue
            outcome = next(decided_there)
            refused = refused or (outcome.wait_us != 0 and check.enforced)
            if part is not None:
                if part.lease not in since:
                    part.lease.remaining = outcome.remaining
                outcome = part.lease.take_answer(part.unpaid, outcome, answer.now_us, sent_us)
            outcomes.append(outcome)
        found = self._pay_with_new_slice(leased) if refused else None
        if found is not None:
            return found
        final = []
        for part, decided in zip(leased.parts, outcomes, strict=True):
            if part is None:
                assert decided is not None
                final.append(decided)
                continue
            if refused or (decided is not None and decided.wait_us):
                self._table.put_back(part)
            if decided is None:
                final.append(part.lease.outcome(sent_us))
            else:
                final.append(decided._replace(remaining=part.lease.available))
        return Result(answer.now_us, tuple(final))

    def _take_tokens(self, check: Check, at_us: int) -> LeasedCheck | None:
        """Take tokens for a check from its lease; None if it has no lease or does not use it."""
        if not 0 < check.cost <= check.quota.capacity:
            return None
        lease = self._table.find_or_add(check, at_us)
        if lease is None:
            return None
        return LeasedCheck.take(lease, check.cost, at_us)

    def _find_leased(self, check: Check, leased: frozenset[str]) -> LeasedCheck | None:
        lease = self._table.get(check) if check.rule in leased else None
        return None if lease is None else LeasedCheck(lease, [], 0)

    def _pay_with_new_slice(self, leased: LeasedGroup) -> Result | None:
        """Return a result if a slice arrived while the store refused and it is enough; else None."""
        parts = [part for part in leased.parts if part is not None]
        if len(parts) < len(leased.parts):
            return None
        at_us = self._now_us()
        more = [LeasedCheck.take(part.lease, part.unpaid, at_us) for part in parts]
        if not any(part.unpaid for part in more):
            now_us = max(part.lease.now_us(at_us) for part in parts)
            return Result(now_us, tuple(part.lease.outcome(at_us) for part in parts))
        for part in more:
            self._table.put_back(part)
        return None
