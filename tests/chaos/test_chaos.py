"""The short form of the chaos suite: faults that no other test has. Bounds of time are wide, of counts they are not."""

from __future__ import annotations

import pytest

from tests.chaos.__main__ import SLACK_OF_QUICK
from tests.chaos.case import Case, measured
from tests.chaos.cases import CASES

QUICK = [
    pytest.param(case, marks=pytest.mark.extended if case.extended else (), id=case.name)
    for case in CASES
    if case.quick
]


@pytest.mark.parametrize("case", QUICK)
def test_bounds_hold_under(case: Case) -> None:
    figures = measured(case, quick=True, slack=SLACK_OF_QUICK)
    assert len(figures.all) > 1
    assert [figure for figure in figures.all if not figure.held] == []
