"""RememberedAnswer: what the memory store keeps for a request with an idempotency key."""

from __future__ import annotations

from typing import NamedTuple

from headgate.core.check import (
    Block,
    Outcome,
)
from headgate.core.decision import Decision
from headgate.core.reading import Reading


class RememberedAnswer(NamedTuple):
    """The stored answer to an idempotency key."""

    fingerprint: str
    at_us: int
    allowed: bool
    outcomes: tuple[Outcome, ...]  # empty if the client was blocked before
    block: Block | None

    def decision(self, reading: Reading, subjects: tuple[str, ...], costs: tuple[int, ...]) -> Decision:
        decision = Decision.of(
            self.allowed, self.at_us, reading.plan, self.outcomes, costs=costs, subjects=subjects, states=reading.states
        )
        if self.block is not None:
            decision.block = self.block
        return decision
