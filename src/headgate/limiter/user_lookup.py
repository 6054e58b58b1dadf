"""Look up the users of requests without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from headgate.limiter.engine import Engine
from headgate.limiter.prepared_check import NO_SUBJECT, KnownUser, Subject
from headgate.rules.directory import UNKNOWN


async def look_up(engine: Engine, subject: Subject, facts: Mapping[str, Any]) -> KnownUser:
    """Return the user of a request, looked up if necessary."""
    known = engine.known_user(subject, facts)
    if known.user is UNKNOWN:
        directory = known.snapshot.directory
        assert directory is not None
        user_id = str(facts["user"] if subject is NO_SUBJECT else subject)
        return known._replace(user=await directory.find_async(user_id))
    return known


async def look_up_all(engine: Engine, facts: Sequence[dict[str, str]]) -> list[KnownUser] | None:
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
