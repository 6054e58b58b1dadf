"""Reservations on Redis: the commands, and their replies. Pure; no I/O.

`reservations.lua` and `adjust.lua` document the arguments and replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from headgate.algorithms import lua
from headgate.core.check import Charge, Check
from headgate.core.reservation import Claim, Expired, Record, Status
from headgate.stores.redis import script

# All have one hash tag, and so one slot: scripts use them together.
KEYS: Final = ("{reservations}:open", "{reservations}:late", "{reservations}:records")


def encode_hold(name: str, record: str, ttl_us: int, now_us: int | None, prefix: str) -> script.Command:
    return _command(prefix, now_us, "hold", name, record, ttl_us)


def encode_reserve(
    check: script.Command, pending: Record, name: str, ttl_us: int, now_us: int | None, prefix: str
) -> script.Command:
    """Return the command that decides and replies like `check`, and stores the record of the charge."""
    keep = encode_hold(name, pending.encode(), ttl_us, now_us, prefix)
    keys, arguments = _parts(check)
    kept_keys, kept_arguments = _parts(keep)
    first = 2 if pending.penalty is None else 3
    enforced = "".join("1" if one.charge.check.enforced else "0" for one in pending.reserved)
    head: script.Command = ("EVALSHA", _reserve_digest(str(check[1])), len(keys) + len(kept_keys), *keys, *kept_keys)
    return (*head, len(keys), len(arguments), first, enforced, *arguments, *kept_arguments)


def encode_renew(name: str, record: str, ttl_us: int, now_us: int | None, prefix: str) -> script.Command:
    return _command(prefix, now_us, "renew", name, record, ttl_us)


def encode_claim(name: str, now_us: int | None, prefix: str) -> script.Command:
    return _command(prefix, now_us, "claim", name)


def decode_claim(reply: Sequence[Any]) -> Claim | None:
    return Claim(reply[0].decode(), Status(reply[1])) if reply else None


def encode_expire(now_us: int | None, prefix: str) -> script.Command:
    return _command(prefix, now_us, "expire")


def decode_expire(reply: Sequence[Any]) -> Expired:
    next_us, *records = reply
    return Expired(tuple(record.decode() for record in records), None if next_us < 0 else next_us)


def encode_adjust(
    refunds: Sequence[Charge], surcharges: Sequence[Check], now_us: int | None, prefix: str
) -> script.Command:
    """Return the command that undoes `refunds`, and charges `surcharges` even if they do not fit."""
    keys: list[script.Argument] = []
    arguments: list[script.Argument] = ["" if now_us is None else now_us]
    for check, at_us, reset_us in (*refunds, *(Charge(check, -1) for check in surcharges)):
        quota = check.quota
        key = f"{prefix}:{check.key}"
        keys += (key, f"{key}:refunds")
        arguments += (quota.algorithm, quota.limit, quota.window_us, quota.burst, check.cost)
        arguments += (at_us, reset_us, check.reservation)
    names = {charge.check.quota.algorithm for charge in refunds} | {check.quota.algorithm for check in surcharges}
    return ("EVALSHA", _adjust_digest(tuple(sorted(names))), len(keys), *keys, *arguments)


def _command(prefix: str, now_us: int | None, verb: str, *arguments: script.Argument) -> script.Command:
    keys = [f"{prefix}:{key}" for key in KEYS]
    digest, now = script.digest_of("reservations"), "" if now_us is None else now_us
    return ("EVALSHA", digest, len(keys), *keys, now, verb, *arguments)


@cache
def _adjust_digest(algorithms: tuple[str, ...]) -> str:
    shared = map(lua, ("prelude", "held", "idle", *algorithms, "force"))
    return script.register("\n".join((*shared, script.source("adjust"))))


@cache
def _reserve_digest(check: str) -> str:
    """Return the digest of reserve.lua around the script with this digest."""
    parts = [("check", script.text(check)), ("keep", script.source("reservations"))]
    functions = [f"local function {name}(KEYS, ARGV)\n{text}\nend" for name, text in parts]
    return script.register("\n".join((*functions, script.source("reserve"))))


def _parts(command: script.Command) -> tuple[script.Command, script.Command]:
    """Return the keys and the arguments of an EVALSHA command."""
    count = command[2]
    assert isinstance(count, int)
    return command[3 : 3 + count], command[3 + count :]
