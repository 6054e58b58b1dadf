"""Pages of a ledger, and raw counts, on Redis: the commands, and their replies. Pure; no I/O.

`ledger.lua` documents the arguments and replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import unpack
from typing import Any, Final

from headgate.core.check import Check
from headgate.stores.protocol import Counted, LedgerPage, Swap
from headgate.stores.redis import script

SLACK_MS: Final = 3_600_000  # the caller's clock may run slower than the server's, by which keys expire
_FIXED, _SLIDING = 24, 32  # sizes of states in bytes: see the Lua twins, and save2 and save3 in prelude.lua


def encode_read(names: Sequence[str], now_us: int | None, prefix: str) -> script.Command:
    keys = [f"{prefix}:{name}" for name in names]
    return ("EVALSHA", script.digest_of("ledger"), len(keys), *keys, "" if now_us is None else now_us, "read")


def decode_read(reply: Sequence[Any]) -> list[LedgerPage]:
    now_us = int(reply[0])
    # Lua would end a list at its first nil, but GET returns false in its place, so the list is complete.
    return [LedgerPage(now_us, None if text is None else text.decode()) for text in reply[1:]]


def encode_swap(swaps: Sequence[Swap], now_us: int | None, prefix: str) -> script.Command:
    arguments: list[script.Argument] = ["" if now_us is None else now_us, "swap"]
    slack = 0 if now_us is None else SLACK_MS
    for swap in swaps:
        arguments += (swap.before or "", swap.after, -(-swap.ttl_us // 1_000) + slack)
    return ("EVALSHA", script.digest_of("ledger"), len(swaps), *(f"{prefix}:{swap.name}" for swap in swaps), *arguments)


def decode_swap(reply: Sequence[Any]) -> list[bool]:
    return [one == 1 for one in reply]


def encode_counts(checks: Sequence[Check], prefix: str) -> script.Command:
    return ("MGET", *(f"{prefix}:{check.key}" for check in checks))


def decode_counts(checks: Sequence[Check], reply: Sequence[Any]) -> list[Counted | None]:
    return [_count_of(check, state) for check, state in zip(checks, reply, strict=True)]


def _count_of(check: Check, state: bytes | None) -> Counted | None:
    algorithm = check.quota.algorithm
    if state is not None and algorithm == "fixed_window" and len(state) == _FIXED:
        _, start, current = map(int, unpack("<ddd", state))
        return Counted(start, current)
    if state is not None and algorithm == "sliding_window_counter" and len(state) == _SLIDING:
        _, start, current, previous = map(int, unpack("<dddd", state))
        return Counted(start, current, previous)
    return None
