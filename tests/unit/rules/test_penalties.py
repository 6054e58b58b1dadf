from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headgate import InvalidRule
from headgate.rules import Penalties


def test_they_are_off_unless_asked_for() -> None:
    penalties = Penalties()
    assert not penalties.enabled
    assert (penalties.detection_window, penalties.violation_threshold) == (3600.0, 3)
    assert penalties.multipliers == (1, 2, 4, 8)


def test_values_are_kept_in_one_form() -> None:
    penalties = Penalties(enabled=True, detection_window=timedelta(minutes=5), multipliers=[2, 2, 4])
    assert penalties.detection_window == 300.0
    assert penalties.multipliers == (2, 2, 4)


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("enabled", 1, "must be true or false, got 1"),
        ("detection_window", 0, "from 1 ms to 366 days"),
        ("detection_window", "long", "cannot read 'long'"),
        ("violation_threshold", 0, "from 1 to"),
        ("violation_threshold", "3", "got '3'"),
        ("multipliers", [], "non-empty"),
        ("multipliers", 2, "must be a non-empty list"),
        ("multipliers", [0], "got 0"),
        ("multipliers", [1.5], "got 1.5"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any, complaint: str) -> None:
    with pytest.raises(InvalidRule) as caught:
        Penalties(**{field: value})
    (problem,) = caught.value.problems
    assert (problem.where, problem.field) == ("[penalties]", field)
    assert complaint in problem.message
