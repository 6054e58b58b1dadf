"""Commands of every script but check.lua and those of reservations, and what their replies say. Pure; no I/O.

`release.lua`, `ledger.lua`, `nodes.lua` and `idempotency.lua` document the arguments and replies.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from struct import unpack
from typing import Any, Final

from headgate.algorithms import lua
from headgate.core.check import NOT_WAITING, Block, Check, Idempotency, Outcome, OutcomeAt, RepeatedResult, Result
from headgate.core.key import escape
from headgate.core.quota import CONCURRENCY
from headgate.core.share import Standing
from headgate.stores.protocol import Counted, LedgerPage, Swap
from headgate.stores.redis import script
from headgate.stores.redis.encoding import Encoder

# What is done with concurrency slots.
RELEASE: Final = "release"
RENEW: Final = "renew"
QUEUE: Final = "queue"

# The status of a claim of an idempotency key. An unanswered claim lasts a little longer than its caller may take.
CLAIMED, ANSWERED, BUSY, CONFLICT = 0, 1, 2, -1
MARGIN_US: Final = 1_000_000

SLACK_MS: Final = 3_600_000  # the caller's clock may run slower than the server's, by which keys expire
_FIXED, _SLIDING = 24, 32  # sizes of states in bytes: see the Lua twins, and save2 and save3 in prelude.lua


def encode_slots(verb: str, held: Sequence[Check], now_us: int | None, prefix: str) -> script.Command:
    """Return the command that releases or renews the slots of these checks, or queues for them."""
    keys = [f"{prefix}:{check.key}" for check in held]
    slots = [
        f"{check.slot}:{check.cost}:{check.quota.window_us}"
        if check.arrived_us == NOT_WAITING
        else f"{check.slot}:{check.cost}:{check.quota.window_us}:{check.arrived_us}"
        for check in held
    ]
    return script.command_of(_slots_digest(), keys, now_us, verb, *slots)


def decode_slots(reply: Sequence[int]) -> list[bool]:
    """Return whether each slot was held."""
    return [bool(held) for held in reply]


@cache
def _slots_digest() -> str:
    return script.register("\n".join((lua("prelude"), lua(CONCURRENCY), script.source("release"))))


def encode_read(names: Sequence[str], now_us: int | None, prefix: str) -> script.Command:
    keys = [f"{prefix}:{name}" for name in names]
    return script.command_of(script.digest_of("ledger"), keys, now_us, "read")


def decode_read(reply: Sequence[Any]) -> list[LedgerPage]:
    now_us = int(reply[0])
    # Lua would end a list at its first nil, but GET returns false in its place, so the list is complete.
    return [LedgerPage(now_us, None if text is None else text.decode()) for text in reply[1:]]


def encode_swap(swaps: Sequence[Swap], now_us: int | None, prefix: str) -> script.Command:
    keys = [f"{prefix}:{swap.name}" for swap in swaps]
    arguments: list[script.Argument] = []
    slack = 0 if now_us is None else SLACK_MS
    for swap in swaps:
        arguments += (swap.before or "", swap.after, -(-swap.ttl_us // 1_000) + slack)
    return script.command_of(script.digest_of("ledger"), keys, now_us, "swap", *arguments)


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


def encode_heartbeat(name: str, node: str, ttl_us: int, now_us: int | None, prefix: str) -> script.Command:
    """Return the command for a heartbeat. `nodes.lua` documents the arguments and the reply."""
    key = f"{prefix}:nodes:{{{escape(name)}}}"
    return script.command_of(script.digest_of("nodes"), [key], now_us, node, ttl_us)


def decode_heartbeat(reply: Sequence[int]) -> Standing:
    return Standing(*reply)


def encode_claim(key: Idempotency, token: str, timeout: float, now_us: int | None, encoder: Encoder) -> script.Command:
    return _idempotency_command(encoder, key, now_us, "claim", token, round(timeout * 1_000_000) + MARGIN_US)


def decode_claim(reply: Sequence[Any]) -> tuple[int, Result | None]:
    """Return the status of the claim, and the answer if there is one."""
    return reply[0], _decode_result(reply[1]) if reply[0] == ANSWERED else None


def encode_keep(key: Idempotency, token: str, result: Result, now_us: int | None, encoder: Encoder) -> script.Command:
    return _idempotency_command(encoder, key, now_us, "keep", token, result.now_us, _encode_result(result))


def encode_drop(key: Idempotency, token: str, now_us: int | None, encoder: Encoder) -> script.Command:
    return _idempotency_command(encoder, key, now_us, "drop", token)


def _idempotency_command(
    encoder: Encoder, key: Idempotency, now_us: int | None, verb: str, *arguments: script.Argument
) -> script.Command:
    keys = [encoder.receipt_key(key)]
    return script.command_of(script.digest_of("idempotency"), keys, now_us, verb, key.fingerprint, *arguments)


def _encode_result(result: Result) -> str:
    outcomes = [(*one, one.at_us) if isinstance(one, OutcomeAt) else one for one in result.outcomes]
    return json.dumps((result.now_us, outcomes, result.block), separators=(",", ":"))


def _decode_result(text: bytes) -> Result:
    now_us, outcomes, block = json.loads(text)
    read = [OutcomeAt.of(Outcome(*one[:3]), one[3]) if len(one) > 3 else Outcome(*one) for one in outcomes]
    return RepeatedResult(now_us, tuple(read), None if block is None else Block(*block))
