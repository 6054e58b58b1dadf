"""The limits of a user, an address, an API key or a tenant, and what is left of them now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from headgate.core.decision import Decision
from headgate.core.quota import Quota
from headgate.core.verdict import LimitStatus
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.operations.storage import page_of
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import User, misfit

_BLIND: Final = ("fail_open", "fail_closed", "local_fallback")  # reasons of decisions without the store


class UserLimit(NamedTuple):
    """A rule that counts by user, applied to one user."""

    rule: Rule
    quota: Quota  # the user's
    overridden: bool
    status: LimitStatus | None  # None: it depends on the request, or the store fails


class UserLimits(NamedTuple):
    user_id: str
    user: User | None  # None: they have neither a tier nor an anchor nor overrides
    tier: str | None  # the effective one: the user's own, else the default
    exempt: bool
    limits: Sequence[UserLimit]
    at_us: int  # the store's time of the figures


async def subject_limits(
    snapshot: Snapshot,
    limiter: AsyncLimiter,
    fact: str,
    subject: str,
    user: User | None = None,
    *,
    after: str | None = None,
    max_items: int = 100,
) -> UserLimits:
    """Return the limits of the client that a fact names, by rule id. Charges nothing.

    Only users have tiers; others match rules of any tier.
    """
    tier = None
    if fact == "user":
        tier = snapshot.default_tier if user is None or user.tier is None else user.tier
    now_us = limiter.clock.now_us()
    applying = (rule for rule in snapshot.rules if _may_apply(rule, fact, tier))
    rules = page_of(applying, lambda rule: rule.id, after, max_items)
    quotas = _quotas(user, {rule.id: rule for rule in rules}, now_us)
    decision = await _peek(limiter, [rule for rule in rules if rule.facts == (fact,)], user, fact, subject)
    statuses = {} if decision is None else {status.rule: status for status in decision.limits}
    limits = [
        UserLimit(rule, quotas.get(rule.id) or _with_anchor(rule.quota, user), rule.id in quotas, statuses.get(rule.id))
        for rule in rules
    ]
    exempt = snapshot.is_exempt({fact: subject})
    return UserLimits(subject, user, tier, exempt, limits, now_us if decision is None else decision.at_us)


def _may_apply(rule: Rule, fact: str, tier: str | None) -> bool:
    return rule.enabled and fact in rule.facts and (not rule.tiers or fact != "user" or tier in rule.tiers)


def _quotas(user: User | None, rules: dict[str, Rule], now_us: int) -> dict[str, Quota]:
    """Return the quotas of a user's overrides, by rule."""
    quotas: dict[str, Quota] = {}
    for override in () if user is None else user.overrides:
        rule = rules.get(override.rule)
        if rule is not None and not override.has_expired(now_us) and misfit(override, rule) is None:
            quotas[rule.id] = override.applied_to(_with_anchor(rule.quota, user))
    return quotas


def _with_anchor(quota: Quota, user: User | None) -> Quota:
    """Return the quota with the user's anchor, if it goes by the calendar and accepts that anchor."""
    if quota.calendar is None or user is None or user.anchor is None:
        return quota
    return quota.with_anchor(user.anchor) or quota


async def _peek(
    limiter: AsyncLimiter, rules: list[Rule], user: User | None, fact: str, subject: str
) -> Decision | None:
    """Return the store's state of these rules for a subject, for any endpoint; None if the store fails.

    Rules without their conditions share the counts of the original rules: keys do not depend on conditions.
    """
    if not rules:
        return None
    by_id = {rule.id: rule for rule in rules}
    own = [] if user is None else [one for one in user.overrides if one.rule in by_id]
    own = [one for one in own if misfit(one, by_id[one.rule]) is None]
    anchor = None if user is None else user.anchor
    users = [User(id=subject, overrides=own, anchor=anchor)] if fact == "user" else []
    snapshot = Snapshot([without_conditions(rule) for rule in rules], users=users, facts=limiter.snapshot.facts)
    decision = await limiter.sibling(snapshot).peek(cost=1, **{fact: subject})
    return None if decision.reason in _BLIND else decision


def without_conditions(rule: Rule) -> Rule:
    """Return a copy of a rule that applies to every request, and shares its counts."""
    kept: Any = {
        name: getattr(rule, name)
        for name in ("id", "quota", "dimension", "action", "max_delay", "failure_mode", "cost")
    }
    return Rule(**kept)
