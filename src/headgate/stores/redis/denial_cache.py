"""A cache of denials: a refused request is refused again for a moment without a call to the server. No I/O.

A refusal charges nothing, so the same request is refused until its wait is over, unless a refund, a reset or a change
of the limit comes first. Refunds and resets by this store take effect here at once, and a changed limit is a different
entry. Changes by other nodes are seen after `remember_us` at the latest.

Leased limits are not cached, because nodes return unused slices all the time. `Leases` remembers their refusals, for a
shorter time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import monotonic_ns
from typing import Final, NamedTuple

from headgate.core.check import Answer, Check, Group, Outcome, Result
from headgate.core.clock import Clock
from headgate.core.key import DEFAULT_PREFIX, key
from headgate.core.quota import Quota
from headgate.errors import StoreError

REMEMBERED: Final = 16_384  # number of refusals

Term = tuple[Quota, int, bool]  # of a check: quota, cost, and whether it is enforced
Name = str | tuple[str, ...]  # the key of a check, or the keys of a group


class CachedDenial(NamedTuple):
    """A denial, and until when it is certain."""

    terms: tuple[Term, ...]
    sent_us: int
    until_us: int  # counted from the call to the server: never longer than the announced wait
    answered_us: int  # the remaining wait counts from here, so that it is over for clients that waited
    result: Result


class DenialCache:
    """The denials that one store knows. `known` is empty while there are none: check it first.

    Names are keys with the store's prefix. An entry that is dropped early only costs a call. Safe to share between
    threads.
    """

    def __init__(
        self, remember_us: int, clock: Clock | None, *, slotted: bool = False, prefix: str = DEFAULT_PREFIX
    ) -> None:
        self.known: dict[Name, CachedDenial] = {}
        self.epoch = 0  # requests from an earlier epoch may have been refunded since
        self.hits = 0
        self._remember_us = remember_us
        self._several: set[Name] = set()  # names in `known` that are, or were, of several checks
        self._clock = clock
        self._slotted = slotted
        self._prefix = prefix

    def now_us(self) -> int:
        """Return the time of the cache's clock, which is not the time of day."""
        return monotonic_ns() // 1_000 if self._clock is None else self._clock.now_us()

    def answer(self, name: Name, terms: tuple[Term, ...]) -> Result | None:
        """Return the refusal of a request that is known to be denied; None: call the server."""
        known = self.known.get(name)
        if known is None:
            return None
        now_us = self.now_us()
        # Any other request may be allowed, and change the figures.
        if known.terms != terms or not known.sent_us <= now_us < known.until_us:
            self.known.pop(name, None)
            return None
        self.hits += 1
        passed_us = max(0, now_us - known.answered_us)
        decided_us, outcomes, _ = known.result
        return Result(decided_us + passed_us, tuple([_later(outcome, passed_us) for outcome in outcomes]))

    def answers(self, groups: Sequence[Group]) -> list[Result | None]:
        """Return the refusals of groups: None for each that has to be sent."""
        return [
            self.answer(self._name(group.checks), _terms(group.checks)) if _is_plain(group) else None
            for group in groups
        ]

    def learn(self, groups: Sequence[Group], results: Sequence[Answer], sent_us: int, epoch: int) -> None:
        """Learn from the results of groups that were sent at `sent_us` in `epoch`."""
        for group, result in zip(groups, results, strict=True):
            if isinstance(result, StoreError):
                self.clear()
                return
            if result.__class__ is not Result:
                continue
            for outcome in result.outcomes:
                if outcome[0] > 0:
                    self._learn(group, result, sent_us, epoch)
                    break

    def put(self, name: Name, terms: tuple[Term, ...], result: Result, sent_us: int, epoch: int) -> None:
        """Remember a refusal for as long as its figures cannot change without an event."""
        if epoch != self.epoch or not self._remember_us:
            return
        lasts_us = self._remember_us
        for wait_us, _, reset_us in result.outcomes:
            if wait_us < 0:
                return
            if wait_us:
                lasts_us = min(lasts_us, wait_us)
            if reset_us:
                lasts_us = min(lasts_us, reset_us)
        now_us = self.now_us()
        if now_us - sent_us < lasts_us:
            if len(self.known) >= REMEMBERED or len(self._several) >= REMEMBERED:
                self._make_room(now_us)
            if not isinstance(name, str):
                self._several.add(name)
            self.known[name] = CachedDenial(terms, sent_us, sent_us + lasts_us, now_us, result)

    def drop(self, checks: Iterable[Check]) -> None:
        """Drop entries whose charges were, or may have been, refunded or reset."""
        self.epoch += 1
        if self.known:
            for check in checks:
                self.known.pop(f"{self._prefix}:{check.key}", None)
            several, self._several = self._several, set()
            for name in several:  # few entries have several checks, so check all of them
                self.known.pop(name, None)

    def clear(self) -> None:
        """Drop everything after a call failed: the next request shows the state of the server."""
        self.epoch += 1
        self.known.clear()
        self._several.clear()

    def _learn(self, group: Group, result: Result, sent_us: int, epoch: int) -> None:
        checks = group.checks
        if self._slotted and len(checks) > 1:
            self.drop(checks)  # charges in other slots were refunded
        elif _is_plain(group) and any(
            check.enforced and outcome.wait_us for check, outcome in zip(checks, result.outcomes, strict=True)
        ):
            self.put(self._name(checks), _terms(checks), result, sent_us, epoch)

    def _name(self, checks: Sequence[Check]) -> Name:
        if len(checks) == 1:
            return f"{self._prefix}:{key(checks[0].key_template, checks[0].subject)}"
        return tuple([f"{self._prefix}:{key(check.key_template, check.subject)}" for check in checks])

    def _make_room(self, now_us: int) -> None:
        for name, known in list(self.known.items()):
            if now_us >= known.until_us:
                self.known.pop(name, None)
        if len(self.known) >= REMEMBERED:
            self.known.clear()
        self._several = {name for name in list(self.known) if not isinstance(name, str)}


def _is_plain(group: Group) -> bool:
    if group.peek or group.idempotency is not None or group.penalty is not None:
        return False
    return not any(check.leased or check.slot for check in group.checks)  # slots are released at any moment


def _terms(checks: Sequence[Check]) -> tuple[Term, ...]:
    return tuple([(check.quota, check.cost, check.enforced) for check in checks])


def _later(outcome: Outcome, passed_us: int) -> Outcome:
    """Return an outcome after time has passed, which must be less than each of its nonzero times."""
    wait_us, remaining, reset_us = outcome
    return Outcome(wait_us and wait_us - passed_us, remaining, reset_us and reset_us - passed_us)
