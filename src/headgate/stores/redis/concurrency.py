"""Slots on Redis: the commands that release and renew them, and their replies. Pure; no I/O.

`release.lua` documents the arguments and replies. `check.lua` takes slots, together with all other charges of a
request.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

from headgate.algorithms import lua
from headgate.core.check import Check
from headgate.core.quota import CONCURRENCY
from headgate.stores.redis import script

RELEASE: Final = "release"
RENEW: Final = "renew"


def encode(verb: str, held: Sequence[Check], now_us: int | None, prefix: str) -> script.Command:
    """Return the command that releases or renews the slots of these checks."""
    keys = [f"{prefix}:{check.key}" for check in held]
    slots = [f"{check.slot}:{check.cost}:{check.quota.window_us}" for check in held]
    return ("EVALSHA", _digest(), len(keys), *keys, "" if now_us is None else now_us, verb, *slots)


def decode(reply: Sequence[int]) -> list[bool]:
    """Return whether each slot was held."""
    return [bool(held) for held in reply]


@cache
def _digest() -> str:
    return script.register("\n".join((lua("prelude"), lua(CONCURRENCY), script.source("release"))))
