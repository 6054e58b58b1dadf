"""Figures about leases, for metrics."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """Figures since the limiter was created; `outstanding`, `unanswered` and `keys` are current values.

    Tokens are units of cost.
    """

    checks: int = 0  # requests to which leased rules applied
    hits: int = 0  # of those, decided without calling the store
    calls: int = 0  # to the store: for the other checks, for slices, and to return unused tokens
    fetches: int = 0  # slices requested from the store
    fetched: int = 0  # tokens in slices that the store charged, or may have charged although its answer was lost
    returned: int = 0  # unused tokens that were returned
    # Tokens that were neither used nor returned: their window was over, the store was down, or it may have charged a
    # slice but never answered, despite repeated calls.
    stranded: int = 0
    outstanding: int = 0  # tokens held
    unanswered: int = 0  # tokens of slices whose answer was lost, which will be fetched again
    keys: int = 0  # remembered, with or without tokens

    @property
    def calls_per_check(self) -> float:
        return self.calls / self.checks if self.checks else 0.0


@dataclass(slots=True)
class LeaseCounts:
    """Counts since the limiter was created: see `LeaseStatus`. Here, `checks` does not include `hits`."""

    checks: int = 0
    hits: int = 0
    calls: int = 0
    fetches: int = 0
    fetched: int = 0
    returned: int = 0
    stranded: int = 0

    def status(self, **current: int) -> LeaseStatus:
        """Return the counts with the current values: `outstanding`, `unanswered` and `keys`."""
        return LeaseStatus(**{**asdict(self), "checks": self.checks + self.hits}, **current)
