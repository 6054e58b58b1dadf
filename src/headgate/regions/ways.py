"""What the short ways of both kinds of store have in common."""

from __future__ import annotations

from typing import Any, Final

from headgate.core.check import Check
from headgate.core.decision import Decision, States, single, told
from headgate.regions.router import Router
from headgate.rules.rule import Spread

WAYS: Final = 1_024  # that are remembered for one rule, by limit


def refusal(router: Router, mode: Spread, template: Check, states: States | None, subject: str, cost: int) -> Decision:
    """The decision when nothing may pass here."""
    outcome = router.nothing(mode, template._replace(cost=cost))
    return single((template,), outcome, router.store_us(), cost, states, subject)


def told_of(template: Check, decision: Decision, cost: int, states: States | None, subject: str) -> Decision:
    """The same decision, as one on the whole limit: what remains is the same."""
    basis: Any = decision._basis
    if basis.__class__ is tuple and basis[7] is told:  # the figures do not depend on the limit
        decision._basis = (basis[0], (template,), *basis[2:])
        return decision
    return single((template,), decision.basis.outcomes[0], decision.at_us, cost, states, subject)
