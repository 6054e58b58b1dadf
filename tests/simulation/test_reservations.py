"""Unlimited demand for calls that reserve 400 and cost 100, in virtual time: what passes in a minute."""

from __future__ import annotations

import pytest

from headgate.core.quota import BUCKETS
from tests.simulation.reservations import passed

EACH = [pytest.param(name, marks=() if name == "gcra" else pytest.mark.extended) for name in BUCKETS]


@pytest.mark.parametrize("algorithm", EACH)
def test_calls_of_20_seconds_use_all_of_the_limit(algorithm: str) -> None:
    assert 9_500 <= passed(f"10000/minute {algorithm}", 20) <= 10_000


@pytest.mark.parametrize(("burst", "most"), [pytest.param(10_000, 5_000, marks=pytest.mark.extended), (20_000, 7_500)])
@pytest.mark.parametrize("algorithm", EACH)
def test_open_reservations_leave_as_much_as_there_can_be(algorithm: str, burst: int, most: int) -> None:
    """Reservations of the last minute are open: 400 of each, less what flows in a minute, is at most the burst."""
    assert most == (burst + 10_000) // 400 * 100
    assert 0.97 * most <= passed(f"10000/minute burst {burst} {algorithm}", 60) <= most
