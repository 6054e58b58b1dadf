"""The plans of requests with several descriptions: one plan with the limits of all of them."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final, NamedTuple

from headgate.core.reading import Reading, WarningStates
from headgate.rules.plan import AppliedRule, RulePlan, plan_of

Indexes = tuple[tuple[int, ...], ...]  # by plan: the indexes of its limits in another plan

MAX_PLANS: Final = 4_096  # to remember


class CombinedPlan(NamedTuple):
    """One plan with the limits of several, and by plan: how to read its figures in a decision on all limits."""

    plan: RulePlan
    readings: tuple[Reading, ...]  # of decisions whose verdict has the decision on all limits behind the costs


class CombinedPlans:
    """Combines plans, and caches the result, because equal plans must share one program."""

    def __init__(self, states: WarningStates) -> None:
        self._states = states
        self._whole: dict[tuple[RulePlan, ...], CombinedPlan | None] = {}
        self._merged: dict[tuple[tuple[RulePlan, ...], Indexes], CombinedPlan] = {}

    def whole(self, plans: tuple[RulePlan, ...]) -> CombinedPlan | None:
        """Return one plan for a request that has several, with the limits of the first plan first.

        Returns None if several of them have the same limit: then the result depends on the subjects.
        """
        whole = self._whole.get(plans)
        if whole is not None or plans in self._whole:
            return whole
        key_templates = [limit.key_template for plan in plans for limit in plan.limits]
        if len(set(key_templates)) == len(key_templates):
            indexes: list[tuple[int, ...]] = []
            at = 0
            for plan in plans:
                indexes.append(tuple(range(at, at + len(plan.limits))))
                at += len(plan.limits)
            applied = tuple([one for plan in plans for one in plan.applied])
            whole = CombinedPlan(plan_of(applied), self._readings(plans, tuple(indexes)))
        if len(self._whole) >= MAX_PLANS:
            self._whole.clear()
        self._whole[plans] = whole
        return whole

    def merge(self, plans: tuple[RulePlan, ...], indexes: Indexes) -> CombinedPlan:
        """Return one plan for a request that has several. `indexes` are those of each plan's limits in it."""
        merged = self._merged.get((plans, indexes))
        if merged is None:
            applied: dict[int, AppliedRule] = {}
            for plan, own in zip(plans, indexes, strict=True):
                for one, index in zip(plan.applied, own, strict=True):
                    applied.setdefault(index, one)
            if len(self._merged) >= MAX_PLANS:
                self._merged.clear()
            plan = plan_of(tuple([applied[index] for index in sorted(applied)]))
            merged = self._merged[plans, indexes] = CombinedPlan(plan, self._readings(plans, indexes))
        return merged

    def _readings(self, plans: tuple[RulePlan, ...], indexes: Indexes) -> tuple[Reading, ...]:
        return tuple([Reading(plan, self._states, _reader(own)) for plan, own in zip(plans, indexes, strict=True)])


def _reader(indexes: tuple[int, ...]) -> Callable[[Any], tuple[tuple[int, int, int], ...]]:
    """Return the function that finds the figures of a part in the decision on the whole."""
    if len(indexes) == 1:
        (at,) = indexes
        return lambda verdict: (verdict[3].figures[at],)
    find = itemgetter(*indexes)
    return lambda verdict: find(verdict[3].figures)
