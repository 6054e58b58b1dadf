"""Decides a prepared request: by the program of its plan, or by its failure mode if the store cannot decide."""

from __future__ import annotations

from collections.abc import Awaitable

from headgate.core.decision import Decision
from headgate.errors import StoreError
from headgate.limiter.engine import Engine
from headgate.limiter.prepared_check import PreparedCheck


def decide_async(engine: Engine, prepared: PreparedCheck, *, exact: bool = False) -> Decision | Awaitable[Decision]:
    """Return the decision on a prepared request. Raises `IdempotencyConflict`.

    An `exact` decision charges the store itself even where limits are leased.

    With asyncio, it returns the decision directly if nothing has to be awaited, as in memory.
    """
    plan, subjects, costs, peek, extras, _, block = prepared
    if block is not None or not plan.limits:
        return engine.decide_unsent(prepared)
    program = (engine.exact_programs if exact else engine.programs)[plan]
    try:
        decision = program(subjects, costs, peek, extras)
    except StoreError as error:
        return engine.decide_without_store(prepared, error)
    if decision.__class__ is not Decision:  # async only
        return await_decision(engine, decision, prepared)
    if engine.outage.lasts:
        engine.note_answer(plan)
    return decision if extras is None and not peek else engine.conclude_one(prepared, decision)


async def await_decision(
    engine: Engine, answer: Awaitable[Decision], prepared: PreparedCheck
) -> Decision:  # async only
    """Wait for the decision of a program."""
    try:
        decision = await answer
    except StoreError as error:
        return engine.decide_without_store(prepared, error)
    if engine.outage.lasts:
        engine.note_answer(prepared.plan)
    return decision if prepared.extras is None and not prepared.peek else engine.conclude_one(prepared, decision)
