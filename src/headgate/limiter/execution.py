# Generated from async_execution.py by scripts/generate-sync: edit that file, and run `make generate`.
"""Decides a prepared request: by the program of its plan, or by its failure mode when the store cannot."""

from __future__ import annotations

from headgate.core.decision import Decision
from headgate.errors import StoreError
from headgate.limiter.engine import Engine
from headgate.limiter.prepared_check import PreparedCheck


def decide(engine: Engine, prepared: PreparedCheck, *, exact: bool = False) -> Decision:
    """Return the decision on a prepared request. Raises `IdempotencyConflict`.

    An `exact` decision charges the store itself, also where limits are leased.
    """
    if not prepared.sent:
        return engine.unsent(prepared)
    plan, subjects, costs, peek, extras, *_ = prepared
    try:
        decision = engine.program(plan, exact=exact)(subjects, costs, peek, extras)
    except StoreError as error:
        return engine.failed(prepared, error)
    if engine.outage.lasts:
        engine.answered(plan)
    return engine.concluded(prepared, decision)
