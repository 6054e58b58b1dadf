"""Plans made from rules: the rules that apply to requests of one shape, and how each finds its subject."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, Final, Literal, NamedTuple, Self

from headgate.core.check import Check, Refusal
from headgate.core.key import join_facts
from headgate.core.plan import Plan, Reason
from headgate.core.quota import MAX_INT, MICROSECONDS, Quota
from headgate.rules.facts import UnitNames
from headgate.rules.path import normal_path
from headgate.rules.rule import FailureMode, Rule

Facts = Mapping[str, str]

MAX_SHAPES: Final = 256  # of requests to which no rule applies, to log, each once
NO_SUBJECT: Final = join_facts(())  # the subject of a rule with dimension global
_EXPRESSIONS: Final = {  # for facts of which several spellings count as one
    "endpoint": "normal_path(facts[{!r}])",
    "method": "facts[{!r}].upper()",
}

log = logging.getLogger("headgate")


class AppliedRule(NamedTuple):
    """One rule of a plan."""

    rule: Rule
    template: Check  # without a subject, for a request of cost 1
    failure_mode: FailureMode | None  # None leaves it to the limiter
    fixed: Mapping[str, str]  # facts whose part in the subject is the same in all requests of the shape


class RulePlan(Plan):
    """A plan of rules. `subjects` returns the subject of each limit for a request with these facts."""

    __slots__ = ("_dated", "_rates", "applied", "failure_modes", "has_calendar", "notice", "subjects", "unit_names")

    def __init__(
        self,
        applied: tuple[AppliedRule, ...],
        reason: Reason | None = None,
        *,
        refuses: bool = False,
        notice: Callable[[Facts], None] | None = None,
        unit_names: UnitNames | None = None,
    ) -> None:
        super().__init__(tuple(one.template for one in applied), reason, refuses=refuses)
        self.applied = applied
        self.notice = notice  # called with the facts of the first request, which it logs; then set to None
        self.unit_names = unit_names  # of all rules; None: other units are not logged
        self.failure_modes = tuple(one.failure_mode for one in applied)  # None leaves it to the limiter
        self.subjects: Callable[[Facts], tuple[str, ...]] = _subjects(applied)
        self._rates: RulePlan | None = None
        self.has_calendar = any(limit.quota.calendar is not None for limit in self.limits)
        self._dated: tuple[int, int, RulePlan] | None = None  # the start and end of its validity, and the plan for it

    def at_time(self, now_us: int) -> RulePlan:
        """Return the plan with its calendars' boundaries around a time."""
        known = self._dated
        if known is not None and known[0] <= now_us < known[1]:
            return known[2]
        since, until, applied = 0, MAX_INT, []
        for one in self.applied:
            if one.template.quota.calendar is not None:
                quota, begins, ends = one.template.quota.at_time(now_us)
                since, until = max(since, begins), min(until, ends)
                applied.append(one._replace(template=one.template._replace(quota=quota)))
            else:
                applied.append(one)
        plan = plan_of(tuple(applied), self.unit_names)
        self._dated = (since, until, plan)
        return plan

    @property
    def rates(self) -> RulePlan:
        """The plan without concurrency limits, for callers that cannot tell when a request ends."""
        if not self.slots:
            return self
        if self._rates is None:
            applied = tuple([one for at, one in enumerate(self.applied) if at not in self.slots])
            self._rates = plan_of(applied, self.unit_names)
        return self._rates

    def _log_unknown(self, units: tuple[str, ...]) -> None:
        if self.unit_names is not None:
            self.unit_names.log_unknown(units)

    def _part(self, indexes: Sequence[int]) -> Self:
        return type(self)(tuple(self.applied[index] for index in indexes), None if indexes else "no_rule")

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that apply, in order."""
        return tuple(one.rule for one in self.applied)

    def checks(self, facts: Facts, cost: int) -> tuple[Check, ...]:
        """Return the checks of a request with these facts. Raises `InvalidCheck`."""
        return checks_of(self, self.subjects(facts), self.costs(cost))


def checks_of(plan: Plan, subjects: tuple[str, ...], costs: tuple[int, ...]) -> tuple[Check, ...]:
    """Return a plan's limits as checks for these subjects at these costs."""
    return tuple(
        [
            Check(rule, key_template, subject, quota, cost, enforced, refusal, leased)
            for (rule, key_template, _, quota, _, enforced, refusal, leased, *_), subject, cost in zip(
                plan.limits, subjects, costs, strict=True
            )
        ]
    )


def _subjects(applied: tuple[AppliedRule, ...]) -> Callable[[Facts], tuple[str, ...]]:
    """Return the function that finds all subjects. Its code is generated: it reads each fact once, without a loop."""
    names: dict[str, Any] = {"normal_path": normal_path, "NO_SUBJECT": NO_SUBJECT}
    variables: dict[str, str] = {}  # by the expression that they are set to
    subjects = []
    for one in applied:
        parts = []
        for fact in one.rule.facts:
            if fact in one.fixed:
                variable = f"fixed{len(names)}"
                names[variable] = one.fixed[fact]
            else:
                expression = _EXPRESSIONS.get(fact, "facts[{!r}]").format(fact)
                variable = variables.setdefault(expression, f"fact{len(variables)}")
            parts.append(variable)
        if len(parts) > 1:  # as join_facts does
            subjects.append('f"' + "".join([f"{{len({part})}}:{{{part}}}" for part in parts]) + '"')
        else:
            subjects.append(parts[0] if parts else "NO_SUBJECT")
    lines = [f"    {variable} = {expression}\n" for expression, variable in variables.items()]
    exec(
        _compiled(f"def subjects(facts):\n{''.join(lines)}    return ({''.join(f'{one}, ' for one in subjects)})"),
        names,
    )
    found: Callable[[Facts], tuple[str, ...]] = names["subjects"]
    return found


@lru_cache(maxsize=256)
def _compiled(source: str) -> CodeType:
    return compile(source, "<headgate subjects>", "exec")


NO_RULE: Final = RulePlan((), "no_rule")
EXEMPT: Final = RulePlan((), "exempt")


def plan_of(applied: tuple[AppliedRule, ...], unit_names: UnitNames | None = None) -> RulePlan:
    """Return the plan of requests to which these rules apply."""
    return RulePlan(applied, unit_names=unit_names) if applied else NO_RULE


def plan_of_rule(rule: Rule) -> RulePlan:
    """Return the plan of requests to which this rule alone applies."""
    return RulePlan((AppliedRule(rule, template_of(rule), rule.failure_mode, {}),))


def template_of(rule: Rule) -> Check:
    """Return the check of a rule, without a subject, for a request of cost 1."""
    delay = 0
    if rule.action == "throttle":
        delay = rule.quota.window_us if rule.max_delay is None else round(rule.max_delay * MICROSECONDS)
    refusal = Refusal(rule.status, rule.message, delay, rule.unit, rule.action == "annotate")
    quota = quota_in_force(rule, rule.quota)
    enforced, leased = rule.action not in ("annotate", "log_only"), rule.sync == "leased"
    return Check(rule.id, rule.key_template, "", quota, rule.cost, enforced, refusal, leased)


def quota_in_force(rule: Rule, quota: Quota) -> Quota:
    """Return the quota that a rule sends to the store; `quota` is its own or an override's.

    For a leaky bucket with action `throttle`, the burst is reduced to what leaks in `max_delay`, plus one request:
    requests that would not get their turn within that time are refused at once.
    """
    if rule.action != "throttle" or rule.max_delay is None or quota.algorithm != "leaky_bucket":
        return quota
    leaking = round(rule.max_delay * MICROSECONDS) * quota.limit // quota.window_us
    burst = min(quota.burst, leaking + rule.cost)
    return Quota(quota.limit, quota.window, burst=burst, algorithm=quota.algorithm)


class UnmatchedRequests:
    """Plans requests to which no rule applies, and logs each of their shapes once, even if the rules change.

    `previous` belongs to the rules before, if there were any.
    """

    def __init__(self, unmatched: Literal["allow", "refuse"], previous: UnmatchedRequests | None = None) -> None:
        self._refuses = unmatched == "refuse"
        self.is_silent = False  # disables the log
        self._logged: set[tuple[object, ...]] = set() if previous is None else previous._logged

    def plan(self, shape: tuple[object, ...]) -> RulePlan:
        """Return the plan of requests of this shape. It logs the first of them that is decided."""
        notice = None if self.is_silent else lambda facts: self._log(shape, facts)
        return RulePlan((), "no_rule", refuses=self._refuses, notice=notice)

    def _log(self, shape: tuple[object, ...], facts: Facts) -> None:
        shape = (self._refuses, *shape)
        if shape in self._logged or len(self._logged) >= MAX_SHAPES:
            return
        self._logged.add(shape)
        shown = {name: facts[name][:100] for name in ("method", "endpoint", "route", "tier") if name in facts}
        log.warning(
            "no rule applies to requests with the facts %s%s: they are %s",
            ", ".join(sorted(facts)) or "(none)",
            f" (such as {shown})" if shown else "",
            'refused, as unmatched = "refuse"' if self._refuses else "allowed, and not limited",
        )
