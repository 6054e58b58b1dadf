"""Explanations: why each rule applies to a request or does not, its inputs, and what would let the request pass.

Pure: the matcher supplies the conditions and the planner the rules that apply. `explain_rules` makes an explanation,
and `conclude` completes it with the limiter's decisions on peeks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import nsmallest
from typing import Any, Final, Literal

from headgate.core.check import NEVER, Outcome
from headgate.core.clock import Clock
from headgate.core.cost import REQUESTS, Cost, checked_cost
from headgate.core.decision import Decision
from headgate.core.quota import MICROSECONDS
from headgate.rules.directory import UNKNOWN, Unknown
from headgate.rules.exemptions import Exempt, Exemption
from headgate.rules.matcher import RequestFacts, Unmet, rank_reason, unmet_conditions, unmet_fields
from headgate.rules.path import normal_path, segments_of
from headgate.rules.plan import AppliedRule, Facts, RulePlan, checks_of
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import Override, User

MAX_EXPLAINED: Final = 50  # rules: first those that apply, then those with the fewest unmet conditions
MAX_TIERS: Final = 20  # tiers to try

TierSource = Literal["request", "user", "default"]


@dataclass(frozen=True, slots=True)
class LimitState:
    """The state of a limit now, before the request. Times are in seconds."""

    limit: int
    used: int
    remaining: int
    reset_after: float
    allowed: bool  # whether this limit lets the request pass
    retry_after: float | None  # 0 when allowed; None: never


@dataclass(slots=True, kw_only=True)
class RuleExplanation:
    """One rule, and whether it applies."""

    rule: str
    name: str
    applies: bool
    unmet: tuple[Unmet, ...] = ()  # the conditions that the request does not meet
    group: str | None
    lost_to: str | None = None  # the rule of the same group that applies instead
    lost_because: str | None = None
    quota: str  # in force for this request
    rule_quota: str  # the rule's own
    override: dict[str, Any] | None = None  # the user's own limit, if it is in force
    action: str
    cost: int  # what the request costs this rule
    subject: str | None = None  # the subject whose state it reads
    key: str | None = None  # the key of that state, without the store's prefix
    state: LimitState | None = None


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that would let a refused request pass."""

    kind: Literal["wait", "tier", "cost"]
    value: str | float | Cost  # seconds, a tier, the largest cost that passes now
    at: str | None = None  # for kind wait: the time


@dataclass(slots=True)
class Explanation:
    """Everything that decides a request. The limiter fills in `decision` and `remedies`."""

    facts: dict[str, str]
    cost: Cost
    enabled: bool
    version: str  # version of the rules
    tier: str | None
    tier_source: TierSource | None
    exemption: Exemption | None
    rules: list[RuleExplanation]
    omitted: int  # number of rules left out, which match least
    decision: dict[str, Any] | None = None
    remedies: list[Remedy] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return {
            "facts": self.facts,
            "cost": self.cost if isinstance(self.cost, int) else dict(self.cost),
            "enabled": self.enabled,
            "version": self.version,
            "tier": self.tier,
            "tier_source": self.tier_source,
            "exemption": None
            if self.exemption is None
            else {"type": self.exemption.type, "value": self.exemption.value},
            "rules": [_rule_dict(one) for one in self.rules],
            "omitted": self.omitted,
            "decision": self.decision,
            "remedies": [{name: getattr(one, name) for name in ("kind", "value", "at")} for one in self.remedies],
        }


def explain_rules(
    snapshot: Snapshot, facts: Facts, clock: Clock, user: User | Unknown | None, cost: Cost = 1
) -> tuple[Explanation, RulePlan]:
    """Explain why each rule applies to a request or does not. Also return the plan of the rules that apply.

    `user` is the user of the request, as for `Snapshot.plan`; an `UNKNOWN` user is looked up. Raises `InvalidCheck` if
    the cost is invalid.
    """
    if user is UNKNOWN and snapshot.directory is not None and "user" in facts:
        user = snapshot.directory.find(facts["user"])
    whole = snapshot.plan(facts, clock, user)
    plan, costs = whole.price(checked_cost(cost))
    known = user if isinstance(user, User) else None
    tier, source = tier_of(snapshot, facts, known)
    applied = {one.rule.id: index for index, one in enumerate(plan.applied)}
    winners = {one.rule.group: one.rule for one in plan.applied if one.rule.group is not None}
    unpriced = {one.rule.id for one in whole.applied} - applied.keys()
    checks = checks_of(plan, plan.subjects(facts), costs)
    request = _request(facts, tier)
    # Most rules are only counted: details are computed only for the rules that are shown.
    lacking = [
        0 if rule.id in applied else len(unmet_fields(rule, request)) + (rule.id in unpriced) for rule in snapshot.rules
    ]
    losing = [not one and rule.id not in applied for one, rule in zip(lacking, snapshot.rules, strict=True)]
    shown = nsmallest(MAX_EXPLAINED, zip(lacking, losing, range(len(lacking)), strict=True))
    rules = []
    for _, _, number in shown:
        rule = snapshot.rules[number]
        if rule.id not in applied:
            rules.append(_not_applied(rule, request, winners, no_unit=rule.id in unpriced))
        else:
            one, check = plan.applied[applied[rule.id]], checks[applied[rule.id]]
            rules.append(
                _explain_rule(
                    rule,
                    applies=True,
                    quota=str(check.quota),
                    override=_override(known, one, clock),
                    cost=check.cost,
                    subject=check.subject,
                    key=check.key,
                )
            )
    explanation = Explanation(
        facts=dict(facts),
        cost=cost,
        enabled=snapshot.enabled,
        version=snapshot.version,
        tier=tier,
        tier_source=source,
        exemption=_exemption(snapshot, facts),
        rules=rules,
        omitted=len(lacking) - len(rules),
    )
    return explanation, plan


def tier_of(snapshot: Snapshot, facts: Facts, user: User | None) -> tuple[str | None, TierSource | None]:
    """Return the tier of a request, and where it comes from."""
    if "tier" in facts:
        return facts["tier"], "request"
    if user is not None and user.tier is not None:
        return user.tier, "user"
    return snapshot.default_tier, None if snapshot.default_tier is None else "default"


def other_tiers(snapshot: Snapshot, tier: str | None) -> list[str]:
    """Return all tiers in the rules and in the list of tiers except this one."""
    named = dict.fromkeys(one.name for one in snapshot.tiers)
    named.update(dict.fromkeys(one for rule in snapshot.rules for one in rule.tiers))
    return [one for one in named if one != tier]


def _request(facts: Facts, tier: str | None) -> RequestFacts:
    path = normal_path(facts["endpoint"]) if "endpoint" in facts else None
    return RequestFacts(
        path=path,
        segments=None if path is None else segments_of(path),
        method=facts["method"].upper() if "method" in facts else None,
        facts=facts if tier is None else {**facts, "tier": tier},
    )


def _not_applied(rule: Rule, request: RequestFacts, winners: Mapping[str, Rule], *, no_unit: bool) -> RuleExplanation:
    unmet = unmet_conditions(rule, request)
    if no_unit:
        unmet = (*unmet, Unmet("unit", rule.unit, None))
    winner = None if unmet or rule.group is None else winners.get(rule.group)
    if winner is None:
        return _explain_rule(rule, applies=False, unmet=unmet)
    return _explain_rule(rule, applies=False, lost_to=winner.id, lost_because=rank_reason(winner, rule, request))


def _explain_rule(rule: Rule, **found: Any) -> RuleExplanation:
    """Return the explanation of a rule with what was found; the rest is the rule's own."""
    quota = str(rule.quota)
    own = {"rule": rule.id, "name": rule.name, "group": rule.group, "action": rule.action, "cost": rule.cost}
    return RuleExplanation(**{**own, "quota": quota, "rule_quota": quota, **found})


def _override(user: User | None, applied: AppliedRule, clock: Clock) -> dict[str, Any] | None:
    """Return the override that set the quota of an applied rule; None if the quota is the rule's own."""
    if user is None:
        return None
    override: Override | None = next((one for one in user.overrides if one.rule == applied.rule.id), None)
    if override is None or override.has_expired(clock.now_us()):
        return None
    return {
        "user": user.id,
        "limit": override.limit,
        "window": override.window,
        "burst": override.burst,
        "expires": None if override.expires is None else override.expires.isoformat(),
    }


def _exemption(snapshot: Snapshot, facts: Facts) -> Exemption | None:
    """Return the first exemption that covers a request."""
    if not snapshot.planner.is_exempt(facts):
        return None
    return next((one for one in snapshot.exemptions if Exempt([one]).covers(facts)), None)


def _rule_dict(rule: RuleExplanation) -> dict[str, Any]:
    names = [name for name in RuleExplanation.__slots__ if name not in ("unmet", "state")]
    table: dict[str, Any] = {name: getattr(rule, name) for name in names}
    table["unmet"] = [{**one._asdict(), "message": str(one)} for one in rule.unmet]
    state = rule.state
    table["state"] = None if state is None else {name: getattr(state, name) for name in LimitState.__slots__}
    return table


def conclude(
    explanation: Explanation, plan: RulePlan, decision: Decision, by_tier: Mapping[str, Decision]
) -> Explanation:
    """Return the explanation with the decision of a peek, and of peeks with other tiers."""
    if len(decision.plan.limits) == len(plan.limits):
        outcomes = dict(zip((limit.rule for limit in plan.limits), decision.outcomes, strict=False))
        capacities = {limit.rule: limit.quota.capacity for limit in plan.limits}
        for rule in explanation.rules:
            if rule.applies and rule.rule in outcomes:
                rule.state = _state(outcomes[rule.rule], capacities[rule.rule])
    explanation.decision = decision.as_dict()
    explanation.decision.pop("decision_id", None)  # nothing was decided, so there is no event with this id
    if not decision.allowed:
        explanation.remedies = list(_remedies(explanation, plan, decision, by_tier))
    return explanation


def _state(outcome: Outcome, capacity: int) -> LimitState:
    wait_us, remaining, reset_us = outcome
    return LimitState(
        limit=capacity,
        used=capacity - remaining,
        remaining=remaining,
        reset_after=reset_us / MICROSECONDS,
        allowed=wait_us == 0,
        retry_after=None if wait_us == NEVER else wait_us / MICROSECONDS,
    )


def _remedies(
    explanation: Explanation, plan: RulePlan, decision: Decision, by_tier: Mapping[str, Decision]
) -> list[Remedy]:
    remedies = []
    if decision.retry_after is not None:
        at = datetime.fromtimestamp(decision.at_us / MICROSECONDS + decision.retry_after, UTC).isoformat()
        remedies.append(Remedy("wait", decision.retry_after, at))
    remedies += [Remedy("tier", tier) for tier, one in by_tier.items() if one.allowed]
    if decision.reason == "over_limit":
        cost = _fitting_cost(explanation.cost, plan, decision)
        if cost is not None:
            remedies.append(Remedy("cost", cost))
    return remedies


def _fitting_cost(cost: Cost, plan: RulePlan, decision: Decision) -> Cost | None:
    """Return the largest cost, in each unit, at which a refused request passes now; None if only 0 passes."""
    fitting = {REQUESTS: cost} if isinstance(cost, int) else dict(cost)
    for limit, outcome, factor in zip(plan.limits, decision.outcomes, plan.ones, strict=False):
        if limit.enforced and outcome.wait_us:
            unit = limit.refusal.unit
            fitting[unit] = min(fitting[unit], outcome.remaining // factor)
            if not fitting[unit]:
                return None
    return fitting[REQUESTS] if isinstance(cost, int) else fitting
