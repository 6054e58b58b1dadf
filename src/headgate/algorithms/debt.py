"""Debt: the state of a bucket that was charged more than it holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headgate.core.quota import MAX_REFILL_US

LONGEST: Final = 2 * MAX_REFILL_US  # to wait for a debt, in microseconds: a slower rate could make it any longer


class Debt(tuple[int, ...]):
    """A state in debt, of a type of its own: a debt is paid by waiting.

    A plain state may seem too full because the clock went back or the burst was lowered. That one is cut down to what
    the bucket holds.
    """

    since: int  # when it was last added to

    def __new__(cls, state: Iterable[int], since: int) -> Debt:
        debt = super().__new__(cls, state)
        debt.since = since
        return debt
