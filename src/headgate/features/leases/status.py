"""Figures about leases, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """Since the limiter was made, but for `outstanding`, `unanswered` and `keys`, which are of now.

    Tokens are units of cost.
    """

    checks: int = 0  # requests to which leased rules applied
    hits: int = 0  # such as were decided without asking the store
    calls: int = 0  # to the store, for the others, for slices, and to return what was left of those
    fetches: int = 0  # slices requested from the store
    fetched: int = 0  # tokens in those that it gave, or may have given without our hearing of it
    returned: int = 0  # tokens that were not used, and given back
    # Tokens that were neither used nor given back: their window was over, the store was down, or it may have charged a
    # slice but never answered, despite repeated calls.
    stranded: int = 0
    outstanding: int = 0  # tokens that are held
    unanswered: int = 0  # tokens of slices whose answer was lost, and that will be fetched again
    keys: int = 0  # that are remembered, with or without tokens

    @property
    def calls_per_check(self) -> float:
        return self.calls / self.checks if self.checks else 0.0


@dataclass(slots=True)
class LeaseCounts:
    """Counts since the limiter was made: see `LeaseStatus`. Here, `checks` does not include `hits`."""

    checks: int = 0
    hits: int = 0
    calls: int = 0
    fetches: int = 0
    fetched: int = 0
    returned: int = 0
    stranded: int = 0

    def status(self, *, outstanding: int, unanswered: int, keys: int) -> LeaseStatus:
        return LeaseStatus(
            checks=self.checks + self.hits,
            hits=self.hits,
            calls=self.calls,
            fetches=self.fetches,
            fetched=self.fetched,
            returned=self.returned,
            stranded=self.stranded,
            outstanding=outstanding,
            unanswered=unanswered,
            keys=keys,
        )
