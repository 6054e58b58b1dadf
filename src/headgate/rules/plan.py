"""Plan: the rules that apply to requests of one shape, made ready to ask a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from headgate.core.check import Check, Refusal
from headgate.core.decision import Reason
from headgate.core.key import joined
from headgate.core.quota import MAX_INT, MICROSECONDS, Quota
from headgate.errors import InvalidCheck
from headgate.rules.path import normal_path
from headgate.rules.rule import FailureMode, Rule

Facts = Mapping[str, str]

NOBODY: Final = joined(())  # the subject of a rule of dimension global


class Applied(NamedTuple):
    """One rule of a plan."""

    rule: Rule
    template: Check  # lacks its subject, and is of a request that costs 1
    failure_mode: FailureMode | None  # None leaves it to the limiter
    fact: str | None  # the fact that is the subject; None when it is not as simple as that
    fixed: Mapping[str, str]  # facts whose part in the subject is the same in all requests of the shape

    def subject(self, facts: Facts) -> str:
        """Whose state the rule looks at, for a request with these facts."""
        if self.fact is not None:
            return facts[self.fact]
        names = self.rule.facts
        if not names:
            return NOBODY
        if len(names) == 1:
            return self._part(names[0], facts)
        return joined(tuple([self._part(name, facts) for name in names]))

    def _part(self, name: str, facts: Facts) -> str:
        if name in self.fixed:
            return self.fixed[name]
        if name == "endpoint":
            return normal_path(facts[name])
        return facts[name].upper() if name == "method" else facts[name]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Which rules apply. Without any, `reason` says why, and the store is not asked."""

    applied: tuple[Applied, ...]
    templates: tuple[Check, ...]  # of the applied, in order: what a decision is read with
    reason: Reason | None = None
    enforced: bool = False  # whether any of them can refuse
    only: Applied | None = None  # the one that applies, if it is enforced and charges what the request costs

    @classmethod
    def of(cls, applied: tuple[Applied, ...]) -> Plan:
        if not applied:
            return NO_RULE
        templates = tuple(one.template for one in applied)
        plain = len(templates) == 1 and templates[0].enforced and templates[0].cost == 1
        enforced = any(template.enforced for template in templates)
        return cls(applied, templates, enforced=enforced, only=applied[0] if plain else None)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that apply, in order."""
        return tuple(one.rule for one in self.applied)

    def subject(self, facts: Facts) -> str:
        """The subject of a request to which one rule applies."""
        only = self.applied[0]
        return only.subject(facts) if only.fact is None else facts[only.fact]

    def checks(self, facts: Facts, cost: int) -> tuple[Check, ...]:
        """What to ask the store for a request with these facts. Raises `InvalidCheck`."""
        checks = []
        for one in self.applied:
            rule, space, _, quota, factor, enforced, refusal, leased = one.template
            fact = one.fact
            subject = one.subject(facts) if fact is None else facts[fact]
            total = cost if factor == 1 else factor * cost
            if total > MAX_INT:
                raise InvalidCheck(f"cost: {cost} times {factor} of rule {rule!r} is above 2^53-1")
            checks.append(Check(rule, space, subject, quota, total, enforced, refusal, leased))
        return tuple(checks)


NO_RULE: Final = Plan((), (), "no_rule")
EXEMPT: Final = Plan((), (), "exempt")


def template_of(rule: Rule) -> Check:
    """The check of a rule, for a subject that is not known yet and a request of cost 1."""
    delay = 0
    if rule.action == "throttle":
        delay = rule.quota.window_us if rule.max_delay is None else round(rule.max_delay * MICROSECONDS)
    refusal = Refusal(rule.status, rule.message, delay)
    quota = quota_in_force(rule, rule.quota)
    enforced, leased = rule.action != "log_only", rule.sync == "leased"
    return Check(rule.id, rule.space, "", quota, rule.cost, enforced, refusal, leased)


def quota_in_force(rule: Rule, quota: Quota) -> Quota:
    """The quota that a rule asks with, when `quota` is its own or that of an override.

    A leaky bucket that throttles is made no deeper than what leaks in `max_delay`, and one request: what does not
    get its turn within that time is refused at once.
    """
    if rule.action != "throttle" or rule.max_delay is None or quota.algorithm != "leaky_bucket":
        return quota
    leaking = round(rule.max_delay * MICROSECONDS) * quota.limit // quota.window_us
    burst = min(quota.burst, leaking + rule.cost)
    return Quota(quota.limit, quota.window, burst=burst, algorithm=quota.algorithm)
