"""Shares: by weight, floors, and max-min fair."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.features.regions.division import by_weight, fair, floors

names = st.sampled_from(["ap", "eu", "sa", "us", "za"])
weights = st.dictionaries(names, st.integers(1, 1_000), min_size=1)


@pytest.mark.parametrize(
    ("units", "given", "expected"),
    [
        (100, {"eu": 5, "us": 3, "ap": 2}, {"eu": 50, "us": 30, "ap": 20}),
        (100, {"eu": 1, "us": 1, "ap": 1}, {"eu": 33, "us": 33, "ap": 34}),
        (2, {"eu": 1, "us": 1, "ap": 1}, {"eu": 1, "us": 0, "ap": 1}),
        (1, {"eu": 1}, {"eu": 1}),
    ],
)
def test_shares_by_weight(units: int, given: dict[str, int], expected: dict[str, int]) -> None:
    assert by_weight(units, given) == expected


@given(st.integers(0, 2**53 - 1), weights)
def test_shares_add_up_and_are_cut_by_less_than_one(units: int, given: dict[str, int]) -> None:
    shares = by_weight(units, given)
    assert sum(shares.values()) == units
    for name, share in shares.items():
        assert abs(share - Fraction(units * given[name], sum(given.values()))) < 1


@given(st.integers(0, 2**53 - 1), weights)
def test_shares_are_the_same_in_whatever_order(units: int, given: dict[str, int]) -> None:
    turned = dict(reversed(given.items()))
    assert by_weight(units, given) == by_weight(units, turned)


@given(st.integers(1, 10**9), weights, st.floats(0, 0.5))
def test_floors_leave_most_of_the_limit_to_one_region(limit: int, given: dict[str, int], part: float) -> None:
    least = floors(limit, given, part)
    assert sum(least.values()) <= limit
    for name in given:
        others = sum(least.values()) - least[name]
        assert others <= max(limit * part, len(given) - 1) + len(given)
    if limit >= len(given):
        assert min(least.values()) >= 1


def test_floors_of_a_hundred() -> None:
    assert floors(100, {"eu": 1, "us": 1, "ap": 1}, 0.05) == {"eu": 2, "us": 2, "ap": 2}
    assert floors(2, {"eu": 1, "us": 5, "ap": 1}, 0.05) == {"eu": 0, "us": 1, "ap": 1}


@pytest.mark.parametrize(
    ("wants", "expected"),
    [
        ({"eu": 50, "us": 30, "ap": 10}, {"eu": 50, "us": 30, "ap": 10}),  # enough for all
        ({"eu": 100, "us": 100, "ap": 10}, {"eu": 45, "us": 45, "ap": 10}),
        ({"eu": 100, "us": 0, "ap": 0}, {"eu": 96, "us": 2, "ap": 2}),
    ],
)
def test_fair_shares(wants: dict[str, int], expected: dict[str, int]) -> None:
    least = {"eu": 2, "us": 2, "ap": 2}
    assert fair(100, wants, least, dict.fromkeys(wants, 1)) == expected


@given(st.integers(0, 1_000), st.lists(st.tuples(st.integers(0, 1_200), st.integers(1, 9)), min_size=1, max_size=5))
def test_fair_shares_are_max_min_fair(limit: int, given: list[tuple[int, int]]) -> None:
    wants = {str(number): want for number, (want, _) in enumerate(given)}
    weight = {str(number): weight for number, (_, weight) in enumerate(given)}
    least = dict.fromkeys(wants, 0)
    shares = fair(limit, wants, least, weight)
    assert sum(shares.values()) <= limit
    assert all(share <= wants[name] for name, share in shares.items())
    hungry = [name for name in wants if shares[name] < wants[name]]
    if hungry:  # then all is given away, and nobody who wants more has less, by weight, than anybody else
        assert sum(shares.values()) == limit
        for name in hungry:
            for other in wants:
                assert Fraction(shares[other] - 1, weight[other]) <= Fraction(shares[name] + 1, weight[name])
