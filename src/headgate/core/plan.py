"""Plan: the limits that apply to requests of one shape, and all about them that no single request changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from headgate.core.check import Check
from headgate.core.quota import MAX_INT
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
Subjects = Callable[[Mapping[str, str]], tuple[str, ...]]


class Plan:
    """The limits of requests of one shape, in the order in which they are checked.

    Each limit is a `Check` without a subject, at the cost of a request that costs 1. Without limits, `reason` says why
    there are none. `prepared` is where stores and protocols keep what they worked out for this plan, each under a key
    of its own. Plans are compared by identity.
    """

    __slots__ = (
        "__weakref__",
        "_factors",
        "capacities",
        "enforced",
        "holds",
        "limits",
        "ones",
        "places",
        "prepared",
        "reason",
        "shadows",
    )

    def __init__(self, limits: tuple[Check, ...], reason: Reason | None = None) -> None:
        self.limits = limits
        self.reason = reason
        self.enforced = any(limit.enforced for limit in limits)  # whether any of them can refuse
        self.shadows = not all(limit.enforced for limit in limits)
        self.holds = any(limit.refusal.max_delay_us for limit in limits)  # whether requests may be held back
        # What the limits count down from; 0 for those that never warn, as they are not enforced.
        self.capacities = tuple(limit.quota.capacity if limit.enforced else 0 for limit in limits)
        self.places = tuple(range(len(limits)))
        self.ones = tuple(limit.cost for limit in limits)  # what a request of cost 1 costs each limit
        self._factors = None if self.ones.count(1) == len(limits) else self.ones
        self.prepared: dict[Any, Any] = {}

    def costs(self, cost: int) -> tuple[int, ...]:
        """Return what a request of this cost costs each limit. Raises `InvalidCheck`."""
        if cost == 1 and cost.__class__ is int:
            return self.ones
        if isinstance(cost, bool) or not isinstance(cost, int) or not 0 <= cost <= MAX_INT:
            raise InvalidCheck(f"cost: must be a whole number from 0 to 2^53-1, got {cost!r}")
        if self._factors is None:
            return (cost,) * len(self.limits)
        costs = tuple([cost * factor for factor in self._factors])
        for limit, total in zip(self.limits, costs, strict=True):
            if total > MAX_INT:
                raise InvalidCheck(f"cost: {cost} times {limit.cost} of rule {limit.rule!r} is above 2^53-1")
        return costs
