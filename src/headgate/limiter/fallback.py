"""Outages of the store: how long one lasts, and the decisions by the rules' failure modes in the meantime."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING, Final

from headgate.core.check import NEVER, Check, Group, Outcome, Result
from headgate.core.clock import Clock
from headgate.core.decision import Decision
from headgate.core.decision_factory import decide
from headgate.core.plan import Plan, Reason
from headgate.errors import StoreError, StoreFull, StoreTimeout
from headgate.limiter.prepared_check import PreparedCheck
from headgate.rules.rule import FailureMode
from headgate.rules.snapshot import Snapshot
from headgate.stores.memory import MemoryStore

TURNS: Final = 3  # outages in quick succession; the last one ends only after a second without failures
SOON: Final = 1.0  # seconds
RETRY_US: Final = 1_000_000  # when to retry a store that could not decide

if TYPE_CHECKING:
    from headgate.limiter.shares import LocalShares

log = logging.getLogger("headgate")


class Outage:
    """The outage of a store, while it lasts.

    When one of a store's servers is down, some checks fail and others do not. So a recurring outage ends only when
    nothing has failed for a second.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self.lasts = False
        self._now = now
        self._failed = float("-inf")  # time of the last failure
        self._ended = float("-inf")
        self._turns = 0  # outages in quick succession so far

    def note_failure(self, error: StoreError) -> None:
        """Record that the store could not decide."""
        self._failed = self._now()
        if not self.lasts:
            self.lasts = True
            self._turns = self._turns + 1 if self._failed - self._ended < SOON else 1
            log.error("the store cannot decide: failure modes apply until it recovers (%s)", error)

    def note_probe(self) -> bool:
        """Record that the store answered a probe. Returns whether this ends the outage: not while checks fail."""
        return self._now() - self._failed >= SOON and self.note_answer()

    def note_answer(self) -> bool:
        """Record that the store decided a check. Returns whether this ends the outage."""
        if self.lasts:
            now = self._now()
            if self._turns < TURNS or now - self._failed >= SOON:
                self.lasts = False
                self._ended = now
                log.warning("the store answers again and enforces limits")
                return True
        return False


class Fallback:
    """The fallback of one limiter. `mode` is for rules without a failure mode."""

    def __init__(self, mode: FailureMode, clock: Clock) -> None:
        self.mode: FailureMode = mode
        self.outage = Outage()
        self.local = MemoryStore(clock=clock)  # counts rules with failure mode local while the store is down
        self._clock = clock
        self._seen: Snapshot | None = None  # the snapshot that `is_local` last looked at
        self._is_local = False

    @cached_property
    def shares(self) -> LocalShares:
        """This node's shares, for rules with failure mode local. A heartbeat makes them first, in the constructor."""
        from headgate.limiter.shares import LocalShares  # noqa: PLC0415 - a store in memory has no other nodes

        return LocalShares()

    def is_local(self, snapshot: Snapshot) -> bool:
        """Return whether any of these rules has failure mode local."""
        if snapshot is not self._seen:
            default = snapshot.failure_mode or self.mode
            self._is_local = any((rule.failure_mode or default) == "local" for rule in snapshot.rules)
            self._seen = snapshot
        return self._is_local

    def decide(self, prepared: PreparedCheck, error: StoreError) -> Decision:
        """Return the decision when the store could not decide: the strictest among the rules' failure modes."""
        self.outage.note_failure(error)
        plan = prepared.plan
        modes = [mode or self.mode for mode in plan.failure_modes]
        for mode, template in zip(modes, plan.limits, strict=True):
            if mode == "closed" and template.enforced:
                return self._refuse(template, "fail_closed")
        here = [index for index, mode in enumerate(modes) if mode == "local"]
        try:
            decision = self._locally(prepared, here)
        except StoreFull:  # no memory left to count in
            decision = None
        if decision is not None:
            return decision
        if isinstance(error, StoreTimeout) and error.charge_later is not None:
            error.charge_later()
        return Decision.of(True, self._clock.now_us(), reason="fail_open")

    def _locally(self, prepared: PreparedCheck, here: list[int]) -> Decision | None:
        """Return the decision by this node's share of the limits at these indexes; None if there are none."""
        plan, group = prepared.plan, prepared.group
        checks, parts, templates = [], [], []
        for index in here:
            check, template = group.checks[index], plan.limits[index]
            part = self.shares.of(check.quota)
            if part is not None:
                checks.append(check)
                parts.append(check._replace(quota=part))
                templates.append(template._replace(quota=part))
            elif check.enforced:
                return self._refuse(template, "local_fallback")
        if not parts:
            return None
        (result,) = self.local.check([Group(tuple(parts), group.peek)])
        assert isinstance(result, Result)
        outcomes = _hopeful(checks, result.outcomes)
        costs, subjects = tuple(check.cost for check in parts), tuple(check.subject for check in parts)
        here_plan = Plan(tuple(templates))
        decision = decide(here_plan, outcomes, result.now_us, costs=costs, subjects=subjects, reason="local_fallback")
        if decision.allowed and self.shares.merges and not group.peek:
            self.shares.spent(checks, parts, outcomes)
        return decision

    def _refuse(self, template: Check, reason: Reason) -> Decision:
        """Return a refusal for a request whose wait is unknown: it may retry after `RETRY_US`."""
        outcome = Outcome(RETRY_US, 0, RETRY_US)
        return Decision.of(False, self._clock.now_us(), Plan((template,)), (outcome,), subjects=("",), reason=reason)


def _hopeful(checks: Sequence[Check], outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Let a request that is too large for the share, but not for the whole limit, retry after `RETRY_US`."""
    return tuple(
        outcome._replace(wait_us=RETRY_US)
        if outcome.wait_us == NEVER and check.cost <= check.quota.capacity
        else outcome
        for check, outcome in zip(checks, outcomes, strict=True)
    )
