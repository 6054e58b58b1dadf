"""Plan: the limits that apply to requests of one shape, with everything about them that no single request changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Self

from headgate.core.check import Check
from headgate.core.cost import REQUESTS, Cost, checked_cost
from headgate.core.quota import CONCURRENCY, MAX_INT
from headgate.errors import InvalidCheck

Reason = Literal[
    "within_limit",
    "over_limit",
    "shadow",
    "exempt",
    "no_rule",
    "penalty",
    "fail_open",
    "fail_closed",
    "local_fallback",
]
MAX_PARTS: Final = 64  # largest number of a plan's parts to remember, by the units that they charge

Subjects = Callable[[Mapping[str, str]], tuple[str, ...]]


class Plan:
    """The limits of requests of one shape, in the order in which they are checked.

    Each limit is a `Check` without a subject, with the cost of a request of cost 1. If there are no limits, `reason`
    says why. `prepared` is where stores and protocols keep what they computed for this plan, each under its own key.
    Plans are compared by identity.
    """

    __slots__ = (
        "__weakref__",
        "_factors",
        "_parts",
        "annotates",
        "capacities",
        "enforced",
        "holds",
        "indexes",
        "limits",
        "ones",
        "prepared",
        "reason",
        "refuses",
        "shadows",
        "slots",
        "units",
    )

    def __init__(self, limits: tuple[Check, ...], reason: Reason | None = None, *, refuses: bool = False) -> None:
        self.limits = limits
        self.reason = reason
        self.refuses = refuses  # whether requests are refused because no limit applies to them
        self.enforced = any(limit.enforced for limit in limits)  # whether any limit can refuse
        self.annotates = any(limit.refusal.annotates for limit in limits)  # whether decisions name shadow limits
        self.shadows = not all(limit.enforced for limit in limits)
        self.holds = any(limit.refusal.max_delay_us for limit in limits)  # whether requests may be delayed
        # The capacity of each limit; 0 for shadow limits, which never warn.
        self.capacities = tuple(limit.quota.capacity if limit.enforced else 0 for limit in limits)
        self.indexes = tuple(range(len(limits)))
        self.ones = tuple(limit.cost for limit in limits)  # the cost of a request of cost 1 to each limit
        self._factors = None if self.ones.count(1) == len(limits) else self.ones
        self.slots = tuple([at for at, limit in enumerate(limits) if limit.quota.algorithm == CONCURRENCY])
        units = tuple(limit.refusal.unit for limit in limits)
        self.units = None if units.count(REQUESTS) == len(units) else units  # by limit; None: all count requests
        self._parts: dict[tuple[str, ...] | None, Self | None] = {}  # by units; None: the whole plan
        self.prepared: dict[Any, Any] = {}

    def price(self, cost: Cost) -> tuple[Self, tuple[int, ...]]:
        """Return a plan of the limits whose units a cost names, and the cost to each of them.

        Raises `InvalidCheck`.
        """
        if cost.__class__ is int:
            plan = self if self.units is None else self._charging((REQUESTS,))
            return plan, plan.ones if cost == 1 else plan.costs(cost)
        names = tuple(cost) if cost.__class__ is dict else None
        if names in self._parts and _are_amounts(cost.values()):  # type: ignore[union-attr]  # these units were seen before
            plan = self._parts[names] or self
        else:
            cost = checked_cost(cost)
            if isinstance(cost, int):  # an instance of a subclass of int
                return self.price(int(cost))
            plan = self._charging(tuple(cost))
        assert isinstance(cost, Mapping)
        if plan.units is None:
            return plan, plan.costs(cost[REQUESTS]) if plan.limits else ()
        if plan._factors is None:
            return plan, tuple([cost[unit] for unit in plan.units])
        costs = tuple([cost[unit] * factor for unit, factor in zip(plan.units, plan.ones, strict=True)])
        return plan, plan._check_bounds(costs)

    def _charging(self, units: tuple[str, ...]) -> Self:
        """Return the limits that count any of these units, as a plan."""
        if units not in self._parts:
            self._log_unknown(units)
            named = self.units or (REQUESTS,) * len(self.limits)
            indexes = [index for index, unit in enumerate(named) if unit in units]
            if len(self._parts) >= MAX_PARTS:
                self._parts.clear()
            self._parts[units] = None if len(indexes) == len(self.limits) else self._part(indexes)
        return self._parts[units] or self

    def _log_unknown(self, units: tuple[str, ...]) -> None:
        """Log the units that no rule counts, where the rules are known."""

    def _part(self, indexes: Sequence[int]) -> Self:
        """Return the limits at these indexes as a plan."""
        return type(self)(tuple(self.limits[index] for index in indexes), None if indexes else "no_rule")

    def costs(self, cost: int) -> tuple[int, ...]:
        """Return what an amount of its own unit costs each limit. Raises `InvalidCheck`."""
        if cost == 1 and cost.__class__ is int:
            return self.ones
        checked_cost(cost)
        if self._factors is None:
            return (cost,) * len(self.limits)
        return self._check_bounds(tuple([cost * factor for factor in self._factors]))

    def _check_bounds(self, costs: tuple[int, ...]) -> tuple[int, ...]:
        for limit, total in zip(self.limits, costs, strict=True):
            if total > MAX_INT:
                cost = total // limit.cost
                raise InvalidCheck(f"cost: {cost} times {limit.cost} of rule {limit.rule!r} is above 2^53-1")
        return costs


def _are_amounts(amounts: Iterable[object]) -> bool:
    """Return whether these are valid amounts of units."""
    for amount in amounts:  # noqa: SIM110 - a generator takes twice as long
        if amount.__class__ is not int or not 0 <= amount <= MAX_INT:
            return False
    return True
