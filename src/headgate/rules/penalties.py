"""Penalties: blocks for clients that keep exceeding their limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from headgate.core.check import MAX_VIOLATIONS, Client, Terms
from headgate.core.quota import duration_us
from headgate.rules import fields

IDENTITIES: Final = ("api_key", "user", "ip", "tenant")  # most specific first


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """The settings of penalties: a client is blocked after `violation_threshold` refusals in `detection_window`.

    The first block lasts for the rule's window times the first of `multipliers`. After it, each further refusal blocks
    the client for the next multiplier; the last one repeats. docs/reference/rules.md has the details.
    """

    enabled: bool = False
    detection_window: float | str | timedelta = 3600.0  # stored as seconds
    violation_threshold: int = 3
    multipliers: Sequence[int] = (1, 2, 4, 8)

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in _CHECKS}
        fields.set_checked(self, "[penalties]", values, _CHECKS)

    @property
    def terms(self) -> Terms | None:
        """Return the arguments for a store; None while penalties are disabled."""
        if not self.enabled:
            return None
        return Terms(duration_us(self.detection_window), self.violation_threshold, tuple(self.multipliers))


def client_of(facts: Mapping[str, str]) -> Client | None:
    """Return the client that a penalty for this request would block: its most specific known identity."""
    for fact in IDENTITIES:
        if fact in facts:
            return Client(fact, facts[fact])
    return None


def clients_of(facts: Mapping[str, str]) -> tuple[Client, ...]:
    """Return all clients that these facts identify."""
    return tuple(Client(fact, facts[fact]) for fact in IDENTITIES if fact in facts)


def _multipliers(value: Any) -> tuple[int, ...]:
    # Not fields.several, which drops repetitions: multipliers may repeat.
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"must be a non-empty list of whole numbers, got {value!r}")
    check = fields.whole(1, 1_000_000)
    return tuple(check(multiplier) for multiplier in value)


_CHECKS: Final[dict[str, fields.Check]] = {
    "enabled": fields.flag,
    "detection_window": fields.window,
    "violation_threshold": fields.whole(1, MAX_VIOLATIONS),  # stores do not remember more
    "multipliers": _multipliers,
}
