"""The generated checks of figures agree with the plain definitions, for any number of limits."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from headgate.core.verdict import low_check, order_allowed, order_check

PAIRS = tuple(product((0, 5, 9), (0, 7)))  # remaining and reset


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_only_the_order_of_restrictiveness_is_in_order(count: int) -> None:
    is_ordered = order_check(count)
    for pairs in product(PAIRS, repeat=count):
        figures = tuple((0, remaining, reset) for remaining, reset in pairs)
        right = order_allowed(figures)
        assert [order for order in permutations(range(count)) if is_ordered(figures, order)] == [right]


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_limits_are_low_if_any_has_no_more_than_its_amount(count: int) -> None:
    is_low = low_check(count)
    for remaining in product((0, 5, 9), repeat=count):
        figures = tuple((0, one, 7) for one in remaining)
        low = (5, 0, 8)[:count]
        assert is_low(figures, low) == any(one <= amount for one, amount in zip(remaining, low, strict=True))


@pytest.mark.parametrize("count", [10, 200])
def test_the_checks_take_many_limits(count: int) -> None:
    figures = tuple((0, remaining, 7) for remaining in range(count))
    order = tuple(range(count))
    assert order_check(count)(figures, order)
    assert not order_check(count)(figures, order[::-1])
    assert low_check(count)(figures, (0,) * count)
    assert not low_check(count)(figures, (-1,) * count)
