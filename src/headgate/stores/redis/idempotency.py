"""Idempotency keys on a cluster, which may be in a different slot than the limits: claimed first, answered last.

Pure; no I/O. `idempotency.lua` documents the arguments and replies. An unanswered claim lasts a little longer than its
caller may take.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from headgate.core.check import Block, Idempotency, Outcome, OutcomeAt, RepeatedResult, Result
from headgate.stores.redis import script
from headgate.stores.redis.encoding import Encoder

CLAIMED, ANSWERED, BUSY, CONFLICT = 0, 1, 2, -1
MARGIN_US: Final = 1_000_000


def encode_claim(key: Idempotency, token: str, timeout: float, now_us: int | None, encoder: Encoder) -> script.Command:
    return _command(encoder, key, now_us, "claim", token, round(timeout * 1_000_000) + MARGIN_US)


def decode_claim(reply: Sequence[Any]) -> tuple[int, Result | None]:
    """Return the status of the claim, and the answer if there is one."""
    return reply[0], _read(reply[1]) if reply[0] == ANSWERED else None


def encode_keep(key: Idempotency, token: str, result: Result, now_us: int | None, encoder: Encoder) -> script.Command:
    return _command(encoder, key, now_us, "keep", token, result.now_us, _write(result))


def encode_drop(key: Idempotency, token: str, now_us: int | None, encoder: Encoder) -> script.Command:
    return _command(encoder, key, now_us, "drop", token)


def _command(
    encoder: Encoder, key: Idempotency, now_us: int | None, verb: str, *arguments: script.Argument
) -> script.Command:
    digest, now = script.digest_of("idempotency"), "" if now_us is None else now_us
    head = ("EVALSHA", digest, 1, encoder.receipt_key(key), now)
    return (*head, verb, key.fingerprint, *arguments)


def _write(result: Result) -> str:
    outcomes = [(*one, one.at_us) if isinstance(one, OutcomeAt) else one for one in result.outcomes]
    return json.dumps((result.now_us, outcomes, result.block), separators=(",", ":"))


def _read(text: bytes) -> Result:
    now_us, outcomes, block = json.loads(text)
    read = [OutcomeAt.of(Outcome(*one[:3]), one[3]) if len(one) > 3 else Outcome(*one) for one in outcomes]
    return RepeatedResult(now_us, tuple(read), None if block is None else Block(*block))
