"""Bounds of a table's quotas: few, however many quotas its subjects have."""

from __future__ import annotations

import pytest

from headgate import Quota
from headgate.stores.memory.tables import Bounds
from tests.integration.limiters import ALGORITHMS


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_quotas_between_those_known_change_nothing(algorithm: str) -> None:
    """A new user with an override takes no longer among thousands of them."""
    bounds = Bounds(Quota.parse(f"10/hour {algorithm}"))
    bounds.include(Quota.parse(f"10_000/hour {algorithm}"))
    known = bounds.quotas
    assert len(known) <= 2
    for limit in range(11, 2_000):
        bounds.include(Quota.parse(f"{limit}/hour {algorithm}"))
    assert bounds.quotas is known


def test_each_window_is_judged_by_its_own_boundaries() -> None:
    bounds = Bounds(Quota.parse("10/7m fixed_window"))
    bounds.include(Quota.parse("4/10m fixed_window"))
    bounds.include(Quota.parse("20/7m fixed_window"))
    assert [(one.limit, one.window) for one in bounds.quotas] == [(4, 420.0), (4, 600.0)]


def test_each_calendar_is_judged_by_its_own_boundaries() -> None:
    own = [Quota.parse(f"5/calendar month anchor {anchor}").at_time(0)[0] for anchor in (1, 15, 15)]
    bounds = Bounds(own[0])
    for quota in own[1:]:
        bounds.include(quota)
    assert list(bounds.quotas) == own[:2]
