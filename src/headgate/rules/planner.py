"""The planner: finds the rules that apply to a request, quickly.

Plans are cached by the *shape* of a request: the patterns that its path matches; its method, its tier and the facts
that rules match on, as far as any rule names their values; and which facts of the rules' dimensions it has. Users,
addresses and values that no rule names are not part of the shape, so a few shapes cover all requests. The plan of a
user with overrides is cached by the resulting quotas, so that users with equal overrides share it. The caches are
bounded, and are discarded with the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from headgate.core.check import Check
from headgate.core.clock import Clock
from headgate.core.quota import CONCURRENCY, Quota, duration_text
from headgate.rules.directory import UNKNOWN, Directory, Listed, Unknown
from headgate.rules.facts import FactNames, UnitNames
from headgate.rules.matcher import Matcher, Shelf, applying
from headgate.rules.path import normal_path
from headgate.rules.plan import (
    EXEMPT,
    NO_RULE,
    AppliedRule,
    Facts,
    RulePlan,
    UnmatchedRequests,
    plan_of,
    quota_in_force,
    template_of,
)
from headgate.rules.recent import Recent
from headgate.rules.rule import FailureMode, Rule

if TYPE_CHECKING:
    from headgate.rules.exemptions import Exempt, Exemption
    from headgate.rules.users import User

MIN_REMEMBERED: Final = 4_096  # paths and plans; if there are more rules, as many as rules
MAX_PLANS: Final = 64  # for one user with overrides
MAX_PATH: Final = 256  # characters: longer paths are not cached

_NAMED: Final = ("endpoint", "method", "tier")  # facts that have their own fields in rules

Shape = tuple[object, ...]
Key = tuple[Any, ...]  # of a request: the names of its facts, its tier, and the values that matter


class _Overriding(NamedTuple):
    """A user's override of one rule, resolved."""

    expires_us: int | None
    key_template: str
    quota: Quota

    def applied_to(self, template: Check) -> Check:
        return template._replace(key_template=self.key_template, quota=self.quota)


class _Overrides:
    """All overrides of one user, and the resulting plans until the first override expires."""

    __slots__ = ("by_rule", "in_force", "plans", "until_us", "user")

    def __init__(self, user: User, by_rule: dict[str, _Overriding], now_us: int) -> None:
        self.user = user
        self.by_rule = by_rule
        ends = [one.expires_us for one in by_rule.values() if one.expires_us is not None and one.expires_us > now_us]
        self.until_us = min(ends, default=None)
        self.in_force = {
            rule: one for rule, one in by_rule.items() if one.expires_us is None or now_us < one.expires_us
        }
        self.plans: dict[RulePlan, RulePlan] = {}  # by the plan that they replace


class Planner:
    """Plans requests. Safe to share between threads. `previous` is the planner of the snapshot before, if any."""

    def __init__(
        self,
        rules: Sequence[Rule],
        *,
        directory: Directory,
        exemptions: Sequence[Exemption],
        default_tier: str | None,
        failure_mode: FailureMode | None,
        fact_names: FactNames | None = None,
        unmatched: Literal["allow", "refuse"] = "allow",
        previous: Planner | None = None,
    ) -> None:
        self._fact_names = fact_names or FactNames()
        before = None if previous is None else previous.unmatched
        self.unmatched: UnmatchedRequests = UnmatchedRequests(unmatched, before)
        self._default_tier = default_tier
        self._failure_mode = failure_mode
        self._exempt: Exempt | None = None
        if exemptions:
            from headgate.rules.exemptions import Exempt  # noqa: PLC0415 - most rules have none

            self._exempt = Exempt(exemptions)
        self._directory = directory
        self._by_id = {rule.id: rule for rule in rules}
        self._calendars = [rule for rule in rules if rule.quota.calendar is not None and "user" in rule.facts]

        rules = [rule for rule in rules if rule.enabled]
        self.unit_names: UnitNames = UnitNames(
            [rule.unit for rule in rules], None if previous is None else previous.unit_names
        )
        self._matcher: Matcher = Matcher(rules, None if previous is None else previous._matcher)
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
        self._by_value = frozenset((*_NAMED, *values))  # facts whose values matter, not just their presence
        self.by_route = "route" in self._facts or "route" in values  # whether the route of a request matters
        self._by_tier = bool(self._tiers) or "tier" in self._facts
        self._by_user = "user" in self._facts  # only rules that count by user can be overridden
        self._asks = not isinstance(directory, Listed) or directory.has_tiers or directory.has_overrides
        self._by_path = any(rule.patterns for rule in rules)
        self._no_path = self._matcher.shelves(None)
        paths, methods = ["endpoint"] if self._by_path else [], ["method"] if self._methods else []
        self._key: Callable[[Facts, str | None], Key] = _key_function((*paths, *methods, *values))

        remembered = max(MIN_REMEMBERED, len(rules))
        self._plans: Recent[Shape, RulePlan] = Recent(remembered)
        self._by_request: Recent[Key, RulePlan] = Recent(remembered)
        self._with_quotas: Recent[Shape, RulePlan] = Recent(remembered)
        self._shelves: Recent[str, tuple[Shelf, ...]] = Recent(remembered)
        self._overrides: Recent[str, _Overrides] = Recent(remembered)

    def plan(self, facts: Facts, clock: Clock, user: User | Unknown | None = UNKNOWN) -> RulePlan:
        """Return the rules that apply to a request. `clock` decides whether the user's overrides have expired.

        Raises `InvalidCheck` if a fact has a name that is neither well-known nor declared.
        """
        if self._empty:
            self._fact_names.require(facts)
            return NO_RULE
        if self._exempt is not None and self._exempt.covers(facts):
            self._fact_names.require(facts)
            return EXEMPT
        if user is UNKNOWN:
            user = self.user(facts) if self._asks else None
            if user is UNKNOWN:
                user = self._directory.find(facts["user"])
        tier = self._tier(facts, user) if self._by_tier else None
        key = self._key(facts, tier)
        plan = self._by_request.get(key)
        if plan is None:
            plan = self._plan_by_shape(facts, tier)
            if sum([len(value) for value in key[2:] if value is not None]) <= MAX_PATH:
                self._by_request.put(key, plan)
        if user is not None and (user.overrides or user.anchor is not None):
            overrides = self._overrides_of(user, clock)
            plan = overrides.plans.get(plan) or self._plan_with_overrides(plan, overrides)
        return plan.at_time(clock.now_us()) if plan.has_calendar else plan

    def _plan_by_shape(self, facts: Facts, tier: str | None) -> RulePlan:
        """Return the plan for a request's shape, without overrides. Raises `InvalidCheck` on unknown facts."""
        self._fact_names.require(facts)
        shelves = self._shelves_of(facts["endpoint"]) if self._by_path and "endpoint" in facts else self._no_path
        shape = self._shape(facts, tier, shelves)
        plan = self._plans.get(shape)
        if plan is None:
            plan = self._make(facts, tier, shelves)
            self._plans.put(shape, plan)
        return plan if plan.applied else self._plan_unmatched(facts, shape, shelves)

    def _plan_unmatched(self, facts: Facts, shape: Shape, shelves: tuple[Shelf, ...]) -> RulePlan:
        """Return the plan of a request to which no rule applies. Each set of facts has its own, to be logged once."""
        named = (*shape, frozenset(facts))
        plan = self._plans.get(named)
        if plan is None:
            plan = self.unmatched.plan((tuple(shelf.text for shelf in shelves), *named[1:]))
            self._plans.put(named, plan)
        return plan

    def is_exempt(self, facts: Facts) -> bool:
        """Return whether a request is never limited."""
        return self._exempt is not None and self._exempt.covers(facts)

    def user(self, facts: Facts) -> User | Unknown | None:
        """Return the user of a request if a plan depends on it; `UNKNOWN` if the directory must look them up."""
        directory = self._directory
        if (directory.has_overrides and self._by_user) or (
            directory.has_tiers and self._by_tier and "tier" not in facts
        ):
            user_id = facts.get("user")
            if user_id is not None:
                return directory.recall(user_id)
        return None

    def depends_on(self, fact: str, facts: Facts) -> bool:
        """Return whether the plan of a request with these facts depends on the value of another fact.

        A user who has to be looked up counts as such a value.
        """
        if self._exempt is not None or fact in self._by_value:
            return True
        if not self._asks or not (fact == "user" or "user" in facts):
            return False
        directory = self._directory
        return (directory.has_overrides and self._by_user) or (
            directory.has_tiers and self._by_tier and "tier" not in facts
        )

    def _tier(self, facts: Facts, user: User | None) -> str | None:
        tier = facts.get("tier")
        if tier is None and user is not None:
            tier = user.tier
        return self._default_tier if tier is None else tier

    def _overrides_of(self, user: User, clock: Clock) -> _Overrides:
        """Return a user's overrides, cached until they change or one of them expires."""
        found = self._overrides.get(user.id)
        if found is not None and found.user is user:
            if found.until_us is None:
                return found
            now_us = clock.now_us()
            if now_us < found.until_us:
                return found
        else:
            now_us = clock.now_us()
        found = _Overrides(user, _overriding(user, self._by_id, self._calendars), now_us)
        self._overrides.put(user.id, found)
        return found

    def _plan_with_overrides(self, plan: RulePlan, overrides: _Overrides) -> RulePlan:
        """Return the plan of a user with these overrides, in place of `plan`."""
        in_force = overrides.in_force
        own = [(index, in_force[one.rule.id]) for index, one in enumerate(plan.applied) if one.rule.id in in_force]
        found = plan
        if own:
            shape = (plan, *((index, one.key_template, one.quota) for index, one in own))
            known = self._with_quotas.get(shape)
            if known is None:
                applied = list(plan.applied)
                for index, one in own:
                    applied[index] = applied[index]._replace(template=one.applied_to(applied[index].template))
                known = plan_of(tuple(applied), self.unit_names)
                self._with_quotas.put(shape, known)
            found = known
        if len(overrides.plans) >= MAX_PLANS:
            overrides.plans.clear()
        overrides.plans[plan] = found
        return found

    def _shelves_of(self, path: str) -> tuple[Shelf, ...]:
        shelves = self._shelves.get(path)
        if shelves is None:
            shelves = self._matcher.shelves(normal_path(path))
            if len(path) <= MAX_PATH:
                self._shelves.put(path, shelves)
        return shelves

    def _shape(self, facts: Facts, tier: str | None, shelves: tuple[Shelf, ...]) -> Shape:
        """Return everything that a plan depends on. Values that no rule names are all treated alike."""
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

    def _make(self, facts: Facts, tier: str | None, shelves: tuple[Shelf, ...]) -> RulePlan:
        known = dict(facts)
        if tier is not None:
            known["tier"] = tier
        method = facts.get("method")
        applied = applying(shelves, known, None if method is None else method.upper())
        return plan_of(tuple(self._apply_rule(rule, shelf, known) for rule, shelf in applied), self.unit_names)

    def _apply_rule(self, rule: Rule, shelf: Shelf, facts: Facts) -> AppliedRule:
        fixed: dict[str, str] = {}
        if "endpoint" in rule.facts and shelf.text is not None:
            fixed["endpoint"] = shelf.text
        if "tier" in rule.facts:
            fixed["tier"] = facts["tier"]
        return AppliedRule(
            rule=rule,
            template=template_of(rule),
            failure_mode=rule.failure_mode or self._failure_mode,
            fixed=fixed,
        )


def _key_function(valued: Sequence[str]) -> Callable[[Facts, str | None], Key]:
    """Return the function that makes a request's key. The values of the facts `valued` matter, next to the tier."""
    values = "".join(f"facts.get({fact!r}), " for fact in valued)
    made: Callable[[Facts, str | None], Key] = eval(f"lambda facts, tier: (tuple(facts), tier, {values})")
    return made


def _overriding(user: User, rules: Mapping[str, Rule], calendars: Sequence[Rule]) -> dict[str, _Overriding]:
    """Return a user's overrides by rule. An override with another window has its own count, because states differ.

    An override that fits no rule of the snapshot is ignored: the directory may be newer or older than the snapshot. A
    user with an anchor has separate quotas for all `calendars` whose periods accept that anchor.
    """
    from headgate.rules.users import misfit  # noqa: PLC0415 - users with overrides have loaded it

    worked_out = {}
    for one in () if user.anchor is None else calendars:
        anchored = one.quota.with_anchor(user.anchor)
        if anchored is not None:
            worked_out[one.id] = _Overriding(None, one.key_template, anchored)
    for override in user.overrides:
        rule = rules.get(override.rule)
        if rule is None or misfit(override, rule) is not None:
            continue
        quota = override.applied_to(worked_out[rule.id].quota if rule.id in worked_out else rule.quota)
        where = rule.key_template
        if quota.window_us != rule.quota.window_us and quota.algorithm != CONCURRENCY:
            where = f"{rule.key_template}:{duration_text(quota.window_us)}"
        worked_out[rule.id] = _Overriding(override.expires_us, where, quota_in_force(rule, quota))
    return worked_out
