"""The plans of requests with several descriptions: one plan with the limits of all of them."""

from __future__ import annotations

from typing import Final

from headgate.rules.plan import AppliedRule, RulePlan, plan_of

Places = tuple[tuple[int, ...], ...]  # by plan: the indexes of its limits in another plan

MAX_PLANS: Final = 4_096  # to remember


class CombinedPlans:
    """Combines plans, and caches the result, because equal plans must share one program."""

    def __init__(self) -> None:
        self._whole: dict[tuple[RulePlan, ...], tuple[RulePlan | None, Places]] = {}
        self._merged: dict[tuple[tuple[RulePlan, ...], Places], RulePlan] = {}

    def whole(self, plans: tuple[RulePlan, ...]) -> tuple[RulePlan | None, Places]:
        """Return one plan for a request that has several, and the indexes of their limits in it.

        Returns no plan if several of them have the same limit: then the result depends on the subjects.
        """
        whole = self._whole.get(plans)
        if whole is None:
            key_templates = [limit.key_template for plan in plans for limit in plan.limits]
            places: list[tuple[int, ...]] = []
            at = 0
            for plan in plans:
                places.append(tuple(range(at, at + len(plan.limits))))
                at += len(plan.limits)
            together = None
            if len(set(key_templates)) == len(key_templates):
                together = plan_of(tuple([one for plan in plans for one in plan.applied]))
            if len(self._whole) >= MAX_PLANS:
                self._whole.clear()
            whole = self._whole[plans] = together, tuple(places)
        return whole

    def merge(self, plans: tuple[RulePlan, ...], places: Places) -> RulePlan:
        """Return one plan for a request that has several. `places` are the indexes of each plan's limits in it."""
        merged = self._merged.get((plans, places))
        if merged is None:
            applied: dict[int, AppliedRule] = {}
            for plan, own in zip(plans, places, strict=True):
                for one, place in zip(plan.applied, own, strict=True):
                    applied.setdefault(place, one)
            if len(self._merged) >= MAX_PLANS:
                self._merged.clear()
            merged = self._merged[plans, places] = plan_of(tuple([applied[place] for place in sorted(applied)]))
        return merged
