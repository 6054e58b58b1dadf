"""Reservations on Redis: the commands, and what their replies mean. Pure; no I/O.

`reservations.lua` and `adjust.lua` document the arguments and replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

from headgate.algorithms import lua
from headgate.core.check import Charge, Check
from headgate.core.reservation import Claim, Expired, Status
from headgate.stores.redis import script

# One hash tag, and so one slot, for all: they are looked after together.
KEYS: Final = ("{reservations}:open", "{reservations}:late", "{reservations}:records")


def encode_hold(name: str, record: str, ttl_us: int, now_us: int | None, prefix: str) -> script.Command:
    return _command(prefix, now_us, "hold", name, record, ttl_us)


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
    """The command that undoes `refunds`, and charges `surcharges` whether they fit or not."""
    keys: list[script.Argument] = []
    arguments: list[script.Argument] = ["" if now_us is None else now_us]
    for check, at_us, reset_us in (*refunds, *(Charge(check, -1) for check in surcharges)):
        quota = check.quota
        key = f"{prefix}:{check.key}"
        keys += (key, f"{key}:refunds")
        arguments += (quota.algorithm, quota.limit, quota.window_us, quota.burst, check.cost)
        arguments += (at_us, reset_us, check.reservation)
    names = {charge.check.quota.algorithm for charge in refunds} | {check.quota.algorithm for check in surcharges}
    return ("EVALSHA", _adjust_sha(tuple(sorted(names))), len(keys), *keys, *arguments)


def _command(prefix: str, now_us: int | None, verb: str, *arguments: script.Argument) -> script.Command:
    keys = [f"{prefix}:{key}" for key in KEYS]
    return ("EVALSHA", _sha(), len(keys), *keys, "" if now_us is None else now_us, verb, *arguments)


@cache
def _sha() -> str:
    return script.known(_source("reservations"))


@cache
def _adjust_sha(algorithms: tuple[str, ...]) -> str:
    return script.known(
        "\n".join((lua("prelude"), lua("held"), lua("idle"), *map(lua, algorithms), lua("force"), _source("adjust")))
    )


def _source(name: str) -> str:
    return files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
