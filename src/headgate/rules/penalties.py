"""Penalties: what happens to clients that keep running into their limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from headgate.rules import fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """Blocks a client once it was refused `violation_threshold` times within `detection_window`.

    It is blocked for the rule's window times the first of `multipliers`, then the second, and so on; the last one
    repeats.
    """

    enabled: bool = False
    detection_window: float | str | timedelta = 3600.0  # kept as seconds
    violation_threshold: int = 3
    multipliers: Sequence[int] = (1, 2, 4, 8)

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in _CHECKS}
        fields.checked(self, "[penalties]", values, _CHECKS)


def _multipliers(value: Any) -> tuple[int, ...]:
    # Not fields.several, which drops what comes twice: multipliers may repeat.
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"must be a list of whole numbers that is not empty, got {value!r}")
    check = fields.whole(1, 1_000_000)
    return tuple(check(multiplier) for multiplier in value)


_CHECKS: Final[dict[str, fields.Check]] = {
    "enabled": fields.flag,
    "detection_window": fields.window,
    "violation_threshold": fields.whole(1),
    "multipliers": _multipliers,
}
