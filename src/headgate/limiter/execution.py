# Generated from async_execution.py by scripts/generate-sync: edit that file, and run `make generate`.
"""Decides a prepared request: by the program of its plan, or by its failure mode if the store cannot decide.

Async limiters also look up users here, without blocking the event loop.
"""

from __future__ import annotations

from headgate.core.decision import Decision
from headgate.errors import StoreError
from headgate.limiter.engine import Engine
from headgate.limiter.prepared_check import PreparedCheck


def decide(engine: Engine, prepared: PreparedCheck, *, exact: bool = False) -> Decision:
    """Return the decision on a prepared request. Raises `IdempotencyConflict`.

    An `exact` decision charges the store itself even where limits are leased.
    """
    plan, subjects, costs, peek, extras, _, block = prepared
    if block is not None or not plan.limits:
        return engine.decide_unsent(prepared)
    program = (engine.exact_programs if exact else engine.programs)[plan]
    try:
        decision = program(subjects, costs, peek, extras)
    except StoreError as error:
        return engine.fallback.decide(prepared, error)
    if engine.outage.lasts:
        engine.note_answer(plan)
    return decision if extras is None and not peek else engine.conclude_one(prepared, decision)
