"""Counts decisions per rule and minute, cheaply enough for every check.

The event loop counts by plan, which is one tally however many rules apply, and passes on a window of counts every few
seconds. Another thread takes the window, and computes the counts of each rule in the background.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator
from heapq import nlargest
from typing import Final, NamedTuple

from headgate.core.check import Check
from headgate.core.clock import Clock, SystemClock
from headgate.core.cost import REQUESTS, Cost, amount_of
from headgate.core.decision import Decision
from headgate.core.plan import Plan
from headgate.core.quota import MICROSECONDS
from headgate.db.events import MINUTE_US, kept_text
from headgate.db.usage import ALL, BOUNDS_US, FIGURES, NO_RULE, OTHER, UsageCount

WINDOW_SECONDS: Final = 10  # of counts that a crash may lose
LIVE_SECONDS: Final = 900  # kept second by second
TIMED_PER_SECOND: Final = 256  # timed checks; all of them if there are fewer
MAX_WINDOWS: Final = 360  # waiting to be taken: an hour's worth
FAILURE_MODES: Final = frozenset({"fail_open", "fail_closed", "local_fallback"})

ALLOWED, REFUSED, SHADOW, DELAYED, FAILURE_MODE, COST = range(6)
TIMES: Final = 6  # index of the first latency bucket: one per bound, and one above all bounds
assert len(FIGURES) == TIMES + len(BOUNDS_US) + 1


class Second(NamedTuple):
    """The decisions of one second, and how long checks took (None if there were none)."""

    at: int  # Unix time
    allowed: int
    refused: int
    shadow: int
    delayed: int
    failure_mode: int
    p50_us: float | None
    p99_us: float | None


class UsageWindow:
    """The counts since the previous window."""

    __slots__ = ("minute_us", "number", "rules", "tallies")

    def __init__(self, minute_us: int, number: int) -> None:
        self.minute_us = minute_us
        self.number = number
        # Of plans whose checks were simply allowed: their limits, and count, cost and this window's number.
        self.tallies: list[tuple[tuple[Check, ...], list[int]]] = []
        self.rules: dict[str, list[int]] = {}  # the figures of each rule, from all other checks

    def totals(self) -> list[int]:
        """Return the figures of all checks, without their times."""
        totals = self.rules.get(ALL, [0] * TIMES)[:TIMES]
        for _, (count, cost, _) in self.tallies:
            totals[ALLOWED] += count
            totals[COST] += cost
        return totals

    def figures(self, rule: str) -> list[int]:
        """Return the figures of a rule, for adding to them."""
        figures = self.rules.get(rule)
        if figures is None:
            figures = self.rules[rule] = [0] * len(FIGURES)
        return figures


class UsageCounter:
    """Counts decisions. Belongs to the thread of one event loop, except for `take`.

    Call `tick` once a second, and `rotate` at the end. The `max_rules` busiest rules of a minute are counted
    separately; the rest together.
    """

    def __init__(self, *, max_rules: int = 1_000, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._window = UsageWindow(self._minute_us(), 0)
        self._number = 0  # of the window
        self._windows: deque[UsageWindow] = deque(maxlen=MAX_WINDOWS)
        self._ends_at = self._clock.now_us() + WINDOW_SECONDS * MICROSECONDS
        self._counted = [0] * TIMES  # of this window, up to the last tick
        self._times_us: list[float] = []  # of checks since the last tick
        self._stride = 1
        self._own = _OwnRules(max_rules)
        self.untimed = 0  # checks until the next one is timed; callers count down
        self.seconds: deque[Second] = deque(maxlen=LIVE_SECONDS)

    def add(self, cost: Cost, decision: Decision) -> None:
        """Count a decision."""
        reading = decision.reading
        if reading.reason is None and decision.allowed and cost.__class__ is int:
            plan = reading.plan
            tally = plan.prepared.get(self)
            if tally is not None:  # which only plans have whose allowed checks are all counted alike
                if tally[2] == self._number:
                    tally[0] += 1
                    tally[1] += cost
                else:
                    tally = plan.prepared[self] = [1, cost, self._number]
                    self._window.tallies.append((plan.limits, tally))
                return
        self._add(cost, decision)

    def add_time(self, plan: Plan, seconds: float) -> None:
        """Record how long a check took, and choose the next one to time."""
        self.untimed = self._stride
        us = seconds * MICROSECONDS
        if len(self._times_us) < 4 * TIMED_PER_SECOND:
            self._times_us.append(us)
        index = TIMES + bisect_left(BOUNDS_US, us)
        self._window.figures(ALL)[index] += 1
        for limit in plan.limits:
            self._window.figures(limit.rule)[index] += 1

    def tick(self) -> None:
        """Record the second that has just ended, and pass on the window if it is due.

        A call that is a little early or late counts for the nearest second. A second call for it does nothing.
        """
        now_us = self._clock.now_us()
        at = (now_us + MICROSECONDS // 2) // MICROSECONDS - 1
        if self.seconds and at <= self.seconds[-1].at:
            return
        totals = self._window.totals()
        done = [now - before for now, before in zip(totals, self._counted, strict=True)]
        self._counted = totals
        times, self._times_us = sorted(self._times_us), []
        p50, p99 = (times[int(len(times) * share)] if times else None for share in (0.5, 0.99))
        self.seconds.append(Second._make((at, *done[:COST], p50, p99)))
        self._stride = max(1, (done[ALLOWED] + done[REFUSED] + done[SHADOW]) // TIMED_PER_SECOND)
        self.untimed = min(self.untimed, self._stride)
        if now_us >= self._ends_at or self._minute_us() != self._window.minute_us:
            self.rotate()

    def rotate(self) -> None:
        """End the window, so that its counts can be taken."""
        window = self._window
        self._number += 1
        self._window = UsageWindow(self._minute_us(), self._number)
        self._counted = [0] * TIMES
        self._ends_at = self._clock.now_us() + WINDOW_SECONDS * MICROSECONDS
        if window.tallies or window.rules:
            self._windows.append(window)

    def take(self) -> list[UsageCount]:
        """Take the counts of each rule in the ended windows. For one thread at a time."""
        counts: list[UsageCount] = []
        while self._windows:
            window = self._windows.popleft()
            counts += self._own.rule_counts(window.minute_us, _by_rule(window))
        return counts

    def _minute_us(self) -> int:
        now_us = self._clock.now_us()
        return now_us - now_us % MINUTE_US

    def _add(self, cost: Cost, decision: Decision) -> None:
        """Count a decision that is not simply an allowed one of a known plan."""
        plan, reason = decision.plan, decision.reason
        is_plain = reason == "within_limit" and plan.limits and not plan.shadows and not plan.holds
        if is_plain and isinstance(cost, int):
            plan.prepared[self] = [0, 0, -1]  # a new plan may not occur again
        failing = reason in FAILURE_MODES
        if not decision.allowed:
            for rule in (ALL, decision.rule):
                if rule is not None:
                    self._figures(rule, REFUSED, failing)
            return
        delayed = plan.holds and decision.hold > 0
        for rule, outcome, charged in _parts(decision, reason, amount_of(cost, REQUESTS)):
            figures = self._figures(rule, outcome, failing)
            figures[DELAYED] += delayed
            figures[COST] += charged

    def _figures(self, rule: str, outcome: int, failing: bool) -> list[int]:
        figures = self._window.figures(rule)
        figures[outcome] += 1
        figures[FAILURE_MODE] += failing
        return figures


def _parts(decision: Decision, reason: str, cost: int) -> Iterator[tuple[str, int, int]]:
    """Yield an allowed check's outcome and cost, for all checks together and for each of its rules.

    `cost` is its cost in requests.
    """
    limits = decision.plan.limits
    yield ALL, SHADOW if reason == "shadow" else ALLOWED, cost
    if reason == "no_rule":
        yield NO_RULE, ALLOWED, cost
    outcomes = decision.outcomes if reason == "shadow" else ()
    for index, limit in enumerate(limits):
        refuses = bool(outcomes) and not limit.enforced and outcomes[index].wait_us != 0
        yield limit.rule, SHADOW if refuses else ALLOWED, 0 if refuses else decision.costs[index]


def _by_rule(window: UsageWindow) -> dict[str, list[int]]:
    """Return the figures of all checks, and of each rule that applied."""
    window.figures(ALL)[:TIMES] = window.totals()
    for limits, (count, cost, _) in window.tallies:
        for limit in limits:
            figures = window.figures(limit.rule)
            figures[ALLOWED] += count
            figures[COST] += cost * limit.cost
    return window.rules


class _OwnRules:
    """Chooses the rules with their own rows: in each minute, the busiest of the minute before, then any."""

    def __init__(self, max_rules: int) -> None:
        self._max_rules = max_rules
        self._minute_us = 0
        self._checks: Counter[str] = Counter()  # of this minute
        self._own: set[str] = set()

    def rule_counts(self, minute_us: int, figures: dict[str, list[int]]) -> list[UsageCount]:
        """Return the counts of a window: of all checks, of some rules, and of all others together."""
        checks = {rule: sum(one[:DELAYED]) for rule, one in figures.items() if rule not in (ALL, NO_RULE)}
        if minute_us != self._minute_us:
            self._minute_us = minute_us
            self._own = set(nlargest(self._max_rules, self._checks, key=self._checks.__getitem__))
            self._checks = Counter()
        self._checks.update(checks)
        room = self._max_rules - len(self._own)
        if room > 0:
            self._own.update(nlargest(room, checks.keys() - self._own, key=checks.__getitem__))
        rest = [one for rule, one in figures.items() if rule in checks and rule not in self._own]
        kept = [
            UsageCount(minute_us, kept_text(rule), one)
            for rule, one in figures.items()
            if rule in self._own or rule not in checks
        ]
        if rest:
            kept.append(UsageCount(minute_us, OTHER, [sum(column) for column in zip(*rest, strict=True)]))
        return kept
