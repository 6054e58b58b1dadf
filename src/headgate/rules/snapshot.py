"""Snapshot: all rules at one version, immutable; and Plan: those of them that apply to a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headgate.core.check import Check
from headgate.core.key import joined
from headgate.core.quota import MAX_INT
from headgate.errors import InvalidCheck, InvalidRule
from headgate.rules.rule import Rule

Facts = Mapping[str, str]


class Plan(NamedTuple):
    """The rules that apply to requests of one shape, and a check for each that lacks subject and cost."""

    rules: tuple[Rule, ...]
    templates: tuple[Check, ...]

    def checks(self, facts: Facts, cost: int) -> tuple[Check, ...]:
        """What to ask the store for a request with these facts."""
        return tuple(
            template._replace(subject=subject_of(rule, facts), cost=scaled(rule, cost))
            for rule, template in zip(self.rules, self.templates, strict=True)
        )


class Snapshot:
    """Rules, in the order in which they were given. Two of them never share an id."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        seen: set[str] = set()
        for rule in self.rules:
            if rule.id in seen:
                raise InvalidRule(f"rule {rule.id!r}: id: used twice; every rule needs an id of its own")
            seen.add(rule.id)
        self._plans: dict[frozenset[str], Plan] = {}
        self._needed = frozenset(name for rule in self.rules for name in rule.facts)

    def plan(self, facts: Facts) -> Plan:
        """The rules that apply to a request. Cached by which facts that matter it has: bounded by the rules."""
        shape = self._needed.intersection(facts)
        plan = self._plans.get(shape)
        if plan is None:
            rules = tuple(rule for rule in self.rules if rule.enabled and shape.issuperset(rule.facts))
            plan = self._plans[shape] = Plan(rules, tuple(template_of(rule) for rule in rules))
        return plan


def template_of(rule: Rule) -> Check:
    """The check of a rule, for a subject that is not known yet and a request of cost 1."""
    return Check(rule.id, rule.space, "", rule.quota, rule.cost, rule.action != "log_only")


def subject_of(rule: Rule, facts: Facts) -> str:
    """Whose state a rule looks at, for a request with these facts."""
    names = rule.facts
    if len(names) == 1:
        return facts[names[0]]
    return joined(tuple(facts[name] for name in names))


def scaled(rule: Rule, cost: int) -> int:
    """What a request of `cost` costs by this rule."""
    total = rule.cost * cost
    if total > MAX_INT:
        raise InvalidCheck(f"cost: {cost} times {rule.cost} of rule {rule.id!r} is above 2^53-1")
    return total
