"""Debt: the state of a bucket that was charged more than its capacity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headgate.core.quota import MAX_REFILL_US

LONGEST: Final = 2 * MAX_REFILL_US  # longest wait for a debt, in microseconds: at a slow rate there would be no bound


class Debt(tuple[int, ...]):
    """A state in debt. Time pays the debt off.

    It has its own type because a plain state may also be too full, when the clock went back or the burst was lowered. A
    plain state is reduced to the bucket's capacity.
    """

    since: int  # the time of the last charge to it

    def __new__(cls, state: Iterable[int], since: int) -> Debt:
        debt = super().__new__(cls, state)
        debt.since = since
        return debt
