"""What the short ways of both kinds of store have in common."""

from __future__ import annotations

from typing import Final

from headgate.core.check import Check, Outcome
from headgate.core.decision import Decision, States, single
from headgate.regions.router import Router
from headgate.rules.rule import Spread

WAYS: Final = 1_024  # that are remembered for one rule, by limit


def refusal(router: Router, mode: Spread, template: Check, states: States | None, subject: str, cost: int) -> Decision:
    """The decision when nothing may pass here."""
    outcome = router.nothing(mode, template._replace(cost=cost))
    return single((template,), outcome, router.store_us(), cost, states, subject)


def outcome_of(decision: Decision) -> Outcome:
    """The only outcome of a decision."""
    return decision.basis.outcomes[0]
