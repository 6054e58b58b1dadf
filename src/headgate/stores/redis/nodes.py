"""The live nodes of a limiter: the command, and its reply. Pure; no I/O."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.core.key import escape
from headgate.core.share import Standing
from headgate.stores.redis import script


def encode_heartbeat(name: str, node: str, ttl_us: int, now_us: int | None, prefix: str) -> script.Command:
    """Return the command for a heartbeat. `nodes.lua` documents the arguments and the reply."""
    key = f"{prefix}:nodes:{{{escape(name)}}}"
    return ("EVALSHA", script.digest_of("nodes"), 1, key, "" if now_us is None else now_us, node, ttl_us)


def decode_heartbeat(reply: Sequence[int]) -> Standing:
    return Standing(*reply)
