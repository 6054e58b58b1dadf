"""Decides a prepared request: by the program of its plan, or by its failure mode if the store cannot decide.

Async limiters also look up users here, without blocking the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from headgate.core.decision import Decision
from headgate.errors import StoreError
from headgate.limiter.engine import Engine
from headgate.limiter.prepared_check import NO_SUBJECT, KnownUser, PreparedCheck, Subject
from headgate.rules.directory import UNKNOWN


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
        return engine.fallback.decide(prepared, error)
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
        return engine.fallback.decide(prepared, error)
    if engine.outage.lasts:
        engine.note_answer(prepared.plan)
    return decision if prepared.extras is None and not prepared.peek else engine.conclude_one(prepared, decision)


async def look_up(engine: Engine, subject: Subject, facts: Mapping[str, Any]) -> KnownUser:  # async only
    """Return the user of a request, looked up if necessary."""
    known = engine.known_user(subject, facts)
    if known.user is UNKNOWN:
        directory = known.snapshot.directory
        assert directory is not None
        user_id = str(facts["user"] if subject is NO_SUBJECT else subject)
        return known._replace(user=await directory.find_async(user_id))
    return known


async def look_up_all(  # async only
    engine: Engine, facts: Sequence[dict[str, str]]
) -> list[KnownUser] | None:
    """Look up the users of several requests, all with one snapshot. Returns None if no look-up is needed."""
    snapshot = engine.snapshot
    directory = snapshot.directory
    if directory is None:
        return None
    known = [KnownUser(snapshot, snapshot.user(one)) for one in facts]
    unknown = {one["user"]: None for one, (_, user) in zip(facts, known, strict=True) if user is UNKNOWN}
    if unknown:
        users = dict(zip(unknown, await asyncio.gather(*map(directory.find_async, unknown)), strict=True))
        for index, (one, (_, user)) in enumerate(zip(facts, known, strict=True)):
            if user is UNKNOWN:
                known[index] = KnownUser(snapshot, users[one["user"]])
    return known
