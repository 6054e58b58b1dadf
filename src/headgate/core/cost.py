"""The cost of a request: a number of requests, or an amount for each of several units."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from headgate.core.quota import MAX_INT
from headgate.errors import InvalidCheck

T = TypeVar("T")
Cost = int | Mapping[str, int]
"""`5` means 5 requests. `{"requests": 1, "tokens": 4_000}` charges each rule by its own unit, in one step.

A rule whose unit the cost does not name does not apply. A unit with the amount 0 is evaluated but not charged.
"""

REQUESTS: Final = "requests"
UNIT: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_BOUNDS: Final = "must be a whole number from 0 to 2^53-1"


def checked_cost(cost: Any) -> Cost:
    """Validate a cost and return it. Raises `InvalidCheck`."""
    if isinstance(cost, Mapping):
        for unit, amount in cost.items():
            if not isinstance(unit, str) or not UNIT.fullmatch(unit):
                raise InvalidCheck(f"cost: must name units like 'requests' or 'tokens', got {unit!r}")
            if amount.__class__ is not int or not 0 <= amount <= MAX_INT:
                raise InvalidCheck(f"cost: {unit}: {_BOUNDS}, got {amount!r}")
        if cost:
            return cost
        raise InvalidCheck("cost: must name at least one unit, as in {'requests': 1, 'tokens': 4000}, got {}")
    return whole_cost(cost)


def whole_cost(cost: Any) -> int:
    """Validate a cost in requests and return it. Raises `InvalidCheck`."""
    if isinstance(cost, bool) or not isinstance(cost, int) or not 0 <= cost <= MAX_INT:
        raise InvalidCheck(f"cost: {_BOUNDS}, got {cost!r}")
    return cost


def cost_of_units(cost: Cost | None, units: Mapping[str, int], *, default: int | None = None) -> Cost:
    """Return the cost of a call that accepts a number, a mapping, or units as keyword arguments.

    Raises `InvalidCheck` unless exactly one of them is given.
    """
    if (cost is None) == (not units):
        if cost is None and default is not None:
            return default
        raise InvalidCheck("cost: give a number, a mapping, or units by name, as in tokens=4000; and only one of them")
    return checked_cost(dict(units) if cost is None else cost)


def amount_of(cost: Cost, unit: str) -> int:
    """Return the amount of a unit in a cost; 0 if the cost does not name the unit."""
    if isinstance(cost, int):
        return cost if unit == REQUESTS else 0
    return cost.get(unit, 0)


def amount_spent(cost: Cost, unit: str, reserved: int) -> int:
    """Return how much of `reserved` units was spent, given the actual `cost`.

    A plain 0 means that nothing was spent in any unit. A unit that the cost does not name was spent in full.
    """
    if isinstance(cost, int):
        return cost if unit == REQUESTS or cost == 0 else reserved
    return cost.get(unit, reserved)


def final_cost(reserved: Cost, cost: Cost) -> Cost:
    """Return what a request cost: the actual `cost`, and what was reserved in units that it does not name."""
    if cost == 0 or (isinstance(cost, int) and isinstance(reserved, int)):
        return cost
    units = dict.fromkeys((*_units(reserved), *_units(cost)))
    return {unit: amount_spent(cost, unit, amount_of(reserved, unit)) for unit in units}


def total_of(costs: Sequence[Cost]) -> Cost:
    """Return the sum of costs: a number if all of them are numbers, else a mapping by unit."""
    if all(isinstance(cost, int) for cost in costs):
        return sum(costs)  # type: ignore[arg-type]
    units = dict.fromkeys(unit for cost in costs for unit in _units(cost))
    return {unit: sum(amount_of(cost, unit) for cost in costs) for unit in units}


def divide_cost(cost: Cost, reserved: Sequence[tuple[T, Cost]]) -> list[tuple[T, Cost]]:
    """Divide an actual cost among the amounts that were reserved for it, in order.

    For each unit, the last entry that has the unit bears the remainder, however large. An entry keeps its reserved
    amount of every unit that the cost does not name.
    """
    if cost == 0:
        return [(one, 0) for one, _ in reserved]
    left = {REQUESTS: cost} if isinstance(cost, int) else dict(cost)
    last = {unit: at for at, (_, own) in enumerate(reserved) for unit in _units(own) if unit in left}
    shares = []
    for at, (one, own) in enumerate(reserved):
        share = {}
        for unit in _units(own):
            if unit in left:
                share[unit] = left[unit] if last[unit] == at else min(left[unit], amount_of(own, unit))
                left[unit] -= share[unit]
        shares.append((one, share[REQUESTS] if isinstance(own, int) and share else share or own))
    return shares


def _units(cost: Cost) -> Iterable[str]:
    return (REQUESTS,) if isinstance(cost, int) else cost


def cost_text(cost: Cost) -> str:
    """Return a cost as header fields show it: `5`, or `requests=1, tokens=4000`."""
    if isinstance(cost, int):
        return str(cost)
    return ", ".join(f"{unit}={amount}" for unit, amount in cost.items())
