"""Suggestion: the smallest limit of a rule that refuses at most a share of its requests, or of its subjects.

Each pass over the log tries several limits at once, and the next pass those between the two that enclose the answer.
The rule is tried alone, as if no other rule refused anything, with the memory store's real programs. The whole set of
rules decides which requests it applies to, and with which override.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, Literal

from headgate.core.plan import Plan
from headgate.core.quota import BUCKETS, CONCURRENCY, Quota
from headgate.replay.log import Log, OnProgress
from headgate.replay.ordering import TooSmall
from headgate.replay.record import LogRecord
from headgate.replay.report import PointReport, SuggestionReport
from headgate.replay.run import NO_BOUND, LogClock, copy_for_replay
from headgate.rules.plan import RulePlan, plan_of, quota_in_force
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot
from headgate.stores.memory import MemoryStore

TRIED: Final = 12  # limits in one pass
CURVE: Final = (0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0)  # times the limit: the first pass
CHUNK: Final = 5_000
MAX_COST: Final = 1_000  # average of a request: larger limits are not tried
_SHARE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%(?:\s+of\s+(requests|subjects))?\s*")

Of = Literal["requests", "subjects"]


@dataclass(frozen=True, slots=True)
class SuggestionTarget:
    """The goal: the rule's smallest limit that refuses at most this share."""

    rule: Rule
    at_most: float
    of: Of


def parse_target(snapshot: Snapshot, rule_id: str, share: str) -> SuggestionTarget:
    """Parse a target like `0.1%` or `1% of subjects`. Raises `ValueError`."""
    found = {rule.id: rule for rule in snapshot.rules}.get(rule_id)
    if found is None:
        raise ValueError(
            f"--suggest: there is no rule {rule_id!r}; expected one of {', '.join(r.id for r in snapshot.rules)}"
        )
    if found.quota.algorithm == CONCURRENCY:
        raise ValueError(f"--suggest: rule {rule_id!r} limits concurrency, and a log does not show when requests end")
    match = _SHARE.fullmatch(share)
    if match is None or not float(match[1]) <= 100:
        raise ValueError(f"--refuse-at-most: must be a share like 0.1%, or '1% of subjects', got {share!r}")
    of: Of = "subjects" if match[2] == "subjects" else "requests"
    return SuggestionTarget(found, float(match[1]) / 100, of)


class Trial:
    """The trial of one quota."""

    def __init__(self, quota: Quota, clock: LogClock) -> None:
        self.quota = quota
        self.refused = 0
        self.subjects: set[str] = set()
        self._store = MemoryStore(max_keys=NO_BOUND, clock=clock)
        self._programs: dict[Plan, Any] = {}

    def decide(self, plan: RulePlan, index: int, subject: str, cost: int) -> None:
        """Decide a request by this quota in place of the plan's. A user's override stays."""
        program = self._programs.get(plan)
        if program is None:
            applied = plan.applied[index]
            rule, template = applied.rule, applied.template._replace(enforced=True)
            if template.quota.calendar is not None:  # its boundaries depend on the time and the user's anchor
                if template.quota.limit == rule.quota.limit:
                    template = template._replace(quota=template.quota.with_limit(self.quota.limit))
            elif template.quota == quota_in_force(rule, rule.quota):
                template = template._replace(quota=quota_in_force(rule, self.quota))
            program = self._programs[plan] = self._store.compile(plan_of((applied._replace(template=template),)))
        if not program((subject,), (cost,)).allowed:
            self.refused += 1
            self.subjects.add(subject)


class LimitSearch:
    """The passes over a log that search for a limit."""

    def __init__(self, log: Log, snapshot: Snapshot, target: SuggestionTarget, progress: OnProgress | None) -> None:
        self._log, self._snapshot, self._target, self._progress = log, snapshot, target, progress
        self._tried: dict[Quota, PointReport] = {}
        self.requests = 0
        self.all_subjects = 0
        self._hold_us: int | None = None

    def try_all(self, quotas: Iterable[Quota]) -> dict[Quota, PointReport]:
        """Try new quotas in one pass, and return the results of all."""
        new = [quota for quota in dict.fromkeys(quotas) if quota not in self._tried]
        if new:
            while True:
                try:
                    self._pass(new)
                    break
                except TooSmall as error:
                    self._hold_us = error.next_hold_us(self._log.sort_window_us)
        return self._tried

    def is_good(self, point: PointReport) -> bool:
        """Return whether a result refuses at most the target's share."""
        share = point.share_of_requests if self._target.of == "requests" else point.share_of_subjects
        return share <= self._target.at_most

    def _pass(self, quotas: Sequence[Quota]) -> None:
        clock = LogClock()
        trials = [Trial(quota, clock) for quota in quotas]
        planner, rule_id = copy_for_replay(self._snapshot).planner, self._target.rule.id
        indexes: dict[RulePlan, int | None] = {}  # of the target's rule in each plan; None: it does not apply
        subjects: set[str] = set()
        requests = 0
        for at_us, facts, cost in self._records():
            clock.at_us = at_us
            plan, costs = planner.plan(facts, clock).price(cost)
            if plan not in indexes:
                indexes[plan] = next((at for at, one in enumerate(plan.applied) if one.rule.id == rule_id), None)
            index = indexes[plan]
            if index is None:
                continue
            subject = plan.subjects(facts)[index]
            requests += 1
            subjects.add(subject)
            for trial in trials:
                trial.decide(plan, index, subject, costs[index])
        self.requests, self.all_subjects = requests, len(subjects)
        for trial in trials:
            self._tried[trial.quota] = _point(trial, requests, len(subjects))

    def _records(self) -> Iterator[LogRecord]:
        for number, record in enumerate(self._log.records(self._hold_us), start=1):
            if number % CHUNK == 0 and self._progress is not None:
                self._progress(number, self._log.progress)
            yield record


def suggest(
    log: Log, snapshot: Snapshot, target: SuggestionTarget, *, progress: OnProgress | None = None
) -> SuggestionReport:
    """Return the smallest limit, and burst if the rule sets one, that refuse at most the target's share.

    Raises `InvalidLog`.
    """
    rule = target.rule
    search = LimitSearch(log, snapshot, target, progress)
    own = rule.quota
    ratio = own.burst / own.limit if own.algorithm in BUCKETS and own.burst != own.limit else None

    def with_limit(limit: int) -> Quota:
        if own.calendar is not None:
            return own.with_limit(limit)
        burst = None if ratio is None else max(1, ceil(limit * ratio))
        return Quota(limit, own.window, burst=burst, algorithm=own.algorithm)

    def with_burst(limit: int) -> Callable[[int], Quota]:
        return lambda burst: Quota(limit, own.window, burst=burst, algorithm=own.algorithm)

    first = sorted({max(1, round(own.limit * times)) for times in CURVE})
    tried = search.try_all([own, *map(with_limit, first)])
    limit = _smallest(search, with_limit, first)
    found = None if limit is None else with_limit(limit)
    if limit is not None and found is not None and ratio is not None:
        burst = _smallest(search, with_burst(limit), [1, found.burst])
        found = with_burst(limit)(burst or found.burst)
    curve = [tried[quota] for quota in tried if quota == with_limit(quota.limit)]
    return SuggestionReport(
        rule=rule.id,
        of=target.of,
        at_most=target.at_most,
        requests=search.requests,
        all_subjects=search.all_subjects,
        limit=limit,
        burst=None if found is None or ratio is None else found.burst,
        quota="" if found is None else str(found),
        now=tried[own],
        found=None if found is None else tried[found],
        curve=sorted(curve, key=lambda point: point.limit),
    )


def _smallest(search: LimitSearch, quota_of: Callable[[int], Quota], numbers: Sequence[int]) -> int | None:
    """Return the smallest number whose quota is good; None if there is none in range. `numbers` are tried first."""
    low, high = 0, 0  # `low` is too small, `high` is not; 0: unknown
    between = list(numbers)
    while True:
        tried = search.try_all(map(quota_of, between))
        for number in between:
            if search.is_good(tried[quota_of(number)]):
                high = number
                break
            low = number
        if not high:
            if low >= search.requests * MAX_COST:
                return None
            between = [low * times for times in (2, 4, 8, 16)]
        elif high - low <= 1:
            return high
        else:
            step = max(1, (high - low) // (TRIED + 1))
            between = list(range(low + step, high, step))


def _point(trial: Trial, requests: int, subjects: int) -> PointReport:
    quota = trial.quota
    return PointReport(
        limit=quota.limit,
        burst=quota.burst if quota.algorithm in BUCKETS and quota.burst != quota.limit else None,
        refused=trial.refused,
        subjects=len(trial.subjects),
        share_of_requests=trial.refused / requests if requests else 0.0,
        share_of_subjects=len(trial.subjects) / subjects if subjects else 0.0,
    )
