"""Slots on Redis: the commands that release and renew them and queue for them, and their replies. Pure; no I/O.

`release.lua` documents the arguments and replies. `check.lua` takes slots, together with all other charges of a
request.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

from headgate.algorithms import lua
from headgate.core.check import NEVER, NOT_WAITING, Check, Group, Outcome
from headgate.core.quota import CONCURRENCY
from headgate.stores.redis import script

RELEASE: Final = "release"
RENEW: Final = "renew"
QUEUE: Final = "queue"


def encode(verb: str, held: Sequence[Check], now_us: int | None, prefix: str) -> script.Command:
    """Return the command that releases or renews the slots of these checks, or queues for them."""
    keys = [f"{prefix}:{check.key}" for check in held]
    slots = [
        f"{check.slot}:{check.cost}:{check.quota.window_us}"
        if check.arrived_us == NOT_WAITING
        else f"{check.slot}:{check.cost}:{check.quota.window_us}:{check.arrived_us}"
        for check in held
    ]
    return ("EVALSHA", _digest(), len(keys), *keys, "" if now_us is None else now_us, verb, *slots)


def decode(reply: Sequence[int]) -> list[bool]:
    """Return whether each slot was held."""
    return [bool(held) for held in reply]


def waiting_checks(group: Group, now_us: int) -> list[Check]:
    """Return the checks of a group that wait for a slot, with the time at which the request came: `now_us` if now."""
    return [
        check._replace(arrived_us=check.arrived_us or now_us)
        for check in group.checks
        if check.arrived_us != NOT_WAITING and check.quota.algorithm == CONCURRENCY and check.enforced and check.cost
    ]


def lacks_more_than_slots(checks: Sequence[Check], outcomes: Sequence[Outcome]) -> bool:
    """Return whether waiting for a slot does not help: a rate refuses the request, or it never fits."""
    return any(
        check.enforced and outcome.wait_us and (check.quota.algorithm != CONCURRENCY or outcome.wait_us == NEVER)
        for check, outcome in zip(checks, outcomes, strict=True)
    )


@cache
def _digest() -> str:
    return script.register("\n".join((lua("prelude"), lua(CONCURRENCY), script.source("release"))))
