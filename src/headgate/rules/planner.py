"""The planner: a snapshot's rules, made ready to tell quickly which of them apply to a request.

Plans are cached by the *shape* of a request: which patterns its path fits, its method and tier and the values of
facts that rules match on, as far as any rule names them, and which facts of the rules' dimensions it has. Users,
addresses and values that no rule names are not part of it, so that few shapes are shared by all requests. What is
remembered is bounded all the same, and goes with the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from headgate.core.check import Check
from headgate.core.clock import Clock
from headgate.core.key import space
from headgate.core.quota import Quota, duration_text
from headgate.rules.exemptions import Exempt, Exemption
from headgate.rules.matcher import Matcher, Shelf, applying
from headgate.rules.path import normal_path
from headgate.rules.plan import EXEMPT, NO_RULE, Applied, Facts, Plan, quota_in_force, template_of
from headgate.rules.recent import Recent
from headgate.rules.rule import FailureMode, Rule
from headgate.rules.users import User

MIN_REMEMBERED: Final = 4_096  # paths, and plans: with more rules than this, as many as there are rules
MAX_PATH: Final = 256  # characters: longer paths are not remembered

Shape = tuple[object, ...]


class _Overriding(NamedTuple):
    """A user's override of one rule, worked out."""

    expires_us: int | None
    space: str
    quota: Quota

    def applied_to(self, template: Check) -> Check:
        return template._replace(space=self.space, quota=self.quota)


class Planner:
    """Plans requests. Safe to share between threads."""

    def __init__(
        self,
        rules: Sequence[Rule],
        *,
        users: Sequence[User],
        exemptions: Sequence[Exemption],
        default_tier: str | None,
        failure_mode: FailureMode | None,
    ) -> None:
        self._default_tier = default_tier
        self._failure_mode = failure_mode
        self._exempt = Exempt(exemptions) if exemptions else None
        self._tier_of = {user.id: user.tier for user in users if user.tier is not None}
        by_id = {rule.id: rule for rule in rules}
        self._overrides = {user.id: _overriding(user, by_id) for user in users if user.overrides}

        rules = [rule for rule in rules if rule.enabled]
        self._matcher = Matcher(rules)
        self._empty = not rules
        self._facts = frozenset(fact for rule in rules for fact in rule.facts)
        self._tiers = frozenset(tier for rule in rules for tier in rule.tiers)
        self._methods = frozenset(method for rule in rules for method in rule.methods)
        if "GET" in self._methods:
            self._methods |= {"HEAD"}
        values: dict[str, set[str]] = {}
        for rule in rules:
            for fact, wanted in rule.match.items():
                values.setdefault(fact, set()).add(wanted)
        self._values = tuple((fact, frozenset(wanted)) for fact, wanted in values.items())
        self._by_tier = bool(self._tiers) or "tier" in self._facts
        self._by_path = any(rule.patterns for rule in rules)
        self._no_path = self._matcher.shelves(None)

        remembered = max(MIN_REMEMBERED, len(rules))
        self._plans: Recent[Shape, Plan] = Recent(remembered)
        self._shelves: Recent[str, tuple[Shelf, ...]] = Recent(remembered)

    def plan(self, facts: Facts, clock: Clock) -> Plan:
        """The rules that apply to a request. The clock is asked whether the user's overrides have expired."""
        if self._empty:
            return NO_RULE
        if self._exempt is not None and self._exempt.covers(facts):
            return EXEMPT
        tier = self._tier(facts) if self._by_tier else None
        shelves = self._shelves_of(facts["endpoint"]) if self._by_path and "endpoint" in facts else self._no_path
        shape = self._shape(facts, tier, shelves)
        plan = self._plans.get(shape)
        if plan is None:
            plan = self._make(facts, tier, shelves)
            self._plans.put(shape, plan)
        if self._overrides:
            overriding = self._overrides.get(facts.get("user", ""))
            if overriding is not None:
                return _overridden(plan, overriding, clock.now_us())
        return plan

    def _tier(self, facts: Facts) -> str | None:
        tier = facts.get("tier")
        if tier is None:
            tier = self._tier_of.get(facts.get("user", ""), self._default_tier)
        return tier

    def _shelves_of(self, path: str) -> tuple[Shelf, ...]:
        shelves = self._shelves.get(path)
        if shelves is None:
            shelves = self._matcher.shelves(normal_path(path))
            if len(path) <= MAX_PATH:
                self._shelves.put(path, shelves)
        return shelves

    def _shape(self, facts: Facts, tier: str | None, shelves: tuple[Shelf, ...]) -> Shape:
        """All that a plan depends on. Whatever no rule names looks the same."""
        method = facts.get("method") if self._methods else None
        if method is not None:
            method = method.upper()
            if method not in self._methods:
                method = None
        if "tier" not in self._facts and tier not in self._tiers:
            tier = None
        shape = (shelves, method, tier, self._facts.intersection(facts))
        if not self._values:
            return shape
        values = []
        for fact, wanted in self._values:
            value = facts.get(fact)
            values.append(value if value in wanted else None)
        return (*shape, *values)

    def _make(self, facts: Facts, tier: str | None, shelves: tuple[Shelf, ...]) -> Plan:
        known = dict(facts)
        if tier is not None:
            known["tier"] = tier
        method = facts.get("method")
        applied = applying(shelves, known, None if method is None else method.upper())
        return Plan.of(tuple(self._applied(rule, shelf, known) for rule, shelf in applied))

    def _applied(self, rule: Rule, shelf: Shelf, facts: Facts) -> Applied:
        fixed: dict[str, str] = {}
        if "endpoint" in rule.facts and shelf.text is not None:
            fixed["endpoint"] = shelf.text
        if "tier" in rule.facts:
            fixed["tier"] = facts["tier"]
        simple = len(rule.facts) == 1 and rule.facts[0] not in ("endpoint", "tier", "method")
        return Applied(
            rule=rule,
            template=template_of(rule),
            failure_mode=rule.failure_mode or self._failure_mode,
            fact=rule.facts[0] if simple else None,
            fixed=fixed,
        )


def _overriding(user: User, rules: Mapping[str, Rule]) -> dict[str, _Overriding]:
    """A user's overrides by rule. Those of another window count apart: a window's state means nothing to another."""
    worked_out = {}
    for override in user.overrides:
        rule = rules[override.rule]
        quota = override.applied_to(rule.quota)
        where = rule.space
        if quota.window_us != rule.quota.window_us:
            where = space(rule.dimension, rule.id, f"{quota.algorithm}:{duration_text(quota.window_us)}")
        worked_out[rule.id] = _Overriding(override.expires_us, where, quota_in_force(rule, quota))
    return worked_out


def _overridden(plan: Plan, overriding: Mapping[str, _Overriding], now_us: int) -> Plan:
    """The plan of a user with overrides."""
    applied = list(plan.applied)
    for place, one in enumerate(applied):
        found = overriding.get(one.rule.id)
        if found is not None and (found.expires_us is None or now_us < found.expires_us):
            applied[place] = one._replace(template=found.applied_to(one.template))
    return Plan.of(tuple(applied))
