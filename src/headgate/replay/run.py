"""Run: decides the requests of a log by one set of rules, with the real engine in memory, and counts the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from typing import Final, NamedTuple

from headgate.core.cost import Cost
from headgate.core.decision import Decision
from headgate.core.decision_factory import refuse_delayed
from headgate.core.plan import Plan
from headgate.core.quota import CONCURRENCY, MICROSECONDS
from headgate.http.middleware_options import Patience
from headgate.limiter.limiter import Limiter
from headgate.replay.bins import Bin, Bins
from headgate.replay.observer import Observer, observer_of
from headgate.replay.tally import REFUSED, REQUESTS, LimitTally, RuleTally
from headgate.rules.plan import RulePlan, plan_of_rule
from headgate.rules.snapshot import Snapshot
from headgate.stores.memory import MemoryStore

NO_BOUND: Final = 2**53  # keys: the store removes only expired ones


class LogClock:
    """A clock that shows the time of the current request."""

    __slots__ = ("at_us",)

    def __init__(self) -> None:
        self.at_us = 0

    def now_us(self) -> int:
        return self.at_us

    def sleep(self, seconds: float) -> None:
        raise NotImplementedError("a replay waits for nothing")

    async def sleep_async(self, seconds: float) -> None:
        raise NotImplementedError("a replay waits for nothing")


def copy_for_replay(snapshot: Snapshot) -> Snapshot:
    """Return a copy with a new planner: planners drop expired overrides, but a log goes back in time.

    Rules that limit concurrency are left out: a log does not show when requests end. Requests without a rule are not
    logged, as the report counts them.
    """
    kept = [rule for rule in snapshot.rules if rule.quota.algorithm != CONCURRENCY]
    known = {rule.id for rule in kept}
    users = [replace(user, overrides=[one for one in user.overrides if one.rule in known]) for user in snapshot.users]
    made = replace(snapshot, rules=kept, users=users)
    made.planner.unmatched.is_silent = True
    return made


class Verdict(NamedTuple):
    """The final decision on a request."""

    allowed: bool
    rule: str | None  # the rule that refused it
    subject: str


PASSED: Final = Verdict(True, None, "")
Counting = tuple[tuple[LimitTally, ...], Observer]
Settled = Callable[[Verdict], None]  # called when a delayed request is finally decided


class _HeldRequest(NamedTuple):
    due_us: int
    number: int  # orders requests that are due at the same time
    facts: dict[str, str]
    cost: Cost
    patience: Patience
    settled: Settled | None


class Run:
    """Replays requests under one snapshot. Pass requests in order of time.

    Requests that `throttle` rules delay are tried again when they are due, as in the middleware.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot = copy_for_replay(snapshot)
        self.clock = LogClock()
        self.limiter = Limiter(snapshot, store=MemoryStore(max_keys=NO_BOUND, clock=self.clock), clock=self.clock)
        self.rules = {rule.id: RuleTally(rule.id) for rule in snapshot.rules}
        self.bins = Bins()
        self.requests = self.refused = self.delayed = self.shadow = self.penalised = 0
        self.exempt = self.unmatched = 0
        self.first_us = self.last_us = 0
        self._decide = self.limiter.decide
        self._rules_by_id = {rule.id: rule for rule in snapshot.rules}
        self._by_plan: dict[Plan, Counting] = {}
        self._by_limit: dict[tuple[str, object], LimitTally] = {}
        self._bin: Bin = Bin()
        self._bin_end_us = -1
        self._held: list[_HeldRequest] = []
        self._numbers = count()

    def decide(
        self, at_us: int, facts: dict[str, str], cost: Cost = 1, settled: Settled | None = None
    ) -> Verdict | None:
        """Decide a request. Returns None if it is delayed; then `settled` is called later.

        Raises `InvalidCheck` for an invalid cost.
        """
        if self._held and self._held[0][0] <= at_us:
            self.settle_until(at_us)
        clock = self.clock
        clock.at_us = at_us
        decision = self._decide(facts, cost=cost)
        self.requests += 1
        if at_us >= self._bin_end_us:
            self._begin_bin(at_us)
        self._bin.requests += 1
        plan = decision.reading.plan
        known = self._by_plan.get(plan)
        if known is None:
            if plan.__class__ is not RulePlan:  # the client was already blocked: its limits were not checked
                return self._penalise(decision, facts)
            known = self._begin_plan(plan)
        tallies, observe = known
        if not tallies:
            if plan.reason == "exempt":
                self.exempt += 1
            else:
                self.unmatched += 1
            return PASSED
        observe(at_us, decision)
        if plan.holds:
            return self._hold(decision, facts, cost, Patience(clock), settled, tallies)
        if not decision.allowed:
            return self._refuse(decision, tallies)
        if plan.shadows:
            self._count_shadows(decision, tallies)
        return PASSED

    def settle_until(self, at_us: int) -> None:
        """Try delayed requests again that are due."""
        held = self._held
        while held and held[0][0] <= at_us:
            due_us, _, facts, cost, patience, settled = heappop(held)
            self.clock.at_us = due_us
            patience.ask_again()
            decision = self._decide(facts, cost=cost)
            plan = decision.reading.plan
            if plan.__class__ is not RulePlan:
                verdict: Verdict | None = self._penalise(decision, facts)
            else:
                tallies, _ = self._by_plan.get(plan) or self._begin_plan(plan)
                verdict = self._hold(decision, facts, cost, patience, settled, tallies, again=True)
            if verdict is not None and settled is not None:
                settled(verdict)

    def finish(self) -> None:
        """Decide all requests that are still delayed."""
        while self._held:
            self.settle_until(self._held[0][0])

    def _begin_plan(self, plan: Plan) -> Counting:
        """Return the tallies of a plan's limits, and the observer that counts decisions in them."""
        tallies = []
        for limit in plan.limits:
            key = (limit.rule, limit.quota)
            tally = self._by_limit.get(key)
            if tally is None:
                tally = self._by_limit[key] = LimitTally(limit)
                self.rules[limit.rule].limits.append(tally)
            tallies.append(tally)
        self._by_plan[plan] = counting = (tuple(tallies), observer_of(tallies))
        return counting

    def _begin_bin(self, at_us: int) -> None:
        if self._bin_end_us < 0:
            self.first_us = at_us
        self._bin = self.bins.at(at_us)
        self._bin_end_us = self.bins.end_us(at_us)

    def _bin_of(self, at_us: int) -> Bin:
        return self._bin if at_us < self._bin_end_us else self.bins.at(at_us)

    def _hold(
        self,
        decision: Decision,
        facts: dict[str, str],
        cost: Cost,
        patience: Patience,
        settled: Settled | None,
        tallies: tuple[LimitTally, ...],
        *,
        again: bool = False,
    ) -> Verdict | None:
        """Delay a request or finish its decision, as the middleware does."""
        seconds = patience.seconds(decision)
        if seconds is not None:
            due_us = self.clock.at_us + max(1, round(seconds * MICROSECONDS))
            heappush(self._held, _HeldRequest(due_us, next(self._numbers), facts, cost, patience, settled))
            return None
        if decision.hold and not patience.is_in_time(decision):
            self.limiter.give_back(decision)
            decision = refuse_delayed(decision)
        if not decision.allowed:
            return self._refuse(decision, tallies)
        if again or decision.hold:
            self.delayed += 1
            self._bin_of(self.clock.at_us).delayed += 1
            rule = self.rules.get(decision.rule or "")
            if rule is not None:
                rule.delayed += 1
        if decision.reading.plan.shadows:
            self._count_shadows(decision, tallies)
        return PASSED

    def _refuse(self, decision: Decision, tallies: tuple[LimitTally, ...]) -> Verdict:
        index = decision.order[0]
        tally, subject = tallies[index], decision.subjects[index]
        tally.count_refusal(subject)
        if decision.reading.reason == "penalty":  # this refusal started a block
            self.penalised += 1
            self.rules[tally.rule].penalised += 1
        return self._count_refusal(tally.rule, subject)

    def _penalise(self, decision: Decision, facts: dict[str, str]) -> Verdict:
        """Count a refusal by a penalty, for the subject of the rule that caused it."""
        rule_id = decision.rule or ""
        self.penalised += 1
        tally = self.rules.get(rule_id)
        rule = self._rules_by_id.get(rule_id)
        subject = ""
        if rule is not None and tally is not None and all(fact in facts for fact in rule.facts):
            tally.penalised += 1
            (subject,) = plan_of_rule(rule).subjects(facts)
            for limit in tally.limits:
                entry = limit.entries.get(subject)
                if entry is not None:
                    entry[REQUESTS] += 1
                    entry[REFUSED] += 1
                    break
        return self._count_refusal(rule_id, subject)

    def _count_refusal(self, rule: str, subject: str) -> Verdict:
        self.refused += 1
        step = self._bin_of(self.clock.at_us)
        step.refused += 1
        step.rules[rule] = step.rules.get(rule, 0) + 1
        tally = self.rules.get(rule)
        if tally is not None:
            tally.refused += 1
        return Verdict(False, rule, subject)

    def _count_shadows(self, decision: Decision, tallies: tuple[LimitTally, ...]) -> None:
        """Count the shadow rules that would have refused an allowed request."""
        hit = False
        for tally, subject, outcome in zip(tallies, decision.subjects, decision.outcomes, strict=True):
            if outcome.wait_us and tally.is_shadow:
                hit = True
                tally.count_refusal(subject)
                self.rules[tally.rule].shadow += 1
                step = self._bin_of(self.clock.at_us)
                step.rules[tally.rule] = step.rules.get(tally.rule, 0) + 1
        if hit:
            self.shadow += 1
            self._bin_of(self.clock.at_us).shadow += 1
