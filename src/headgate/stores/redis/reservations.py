"""Reservations on Redis: the commands, and their replies. Pure; no I/O.

`reservations.lua`, `reserve.lua` and `adjust.lua` document the arguments and replies. The `tag` of a command is the
hash tag of the records: see `reservation_slots`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from headgate.algorithms import lua
from headgate.core.check import Charge, Check, Group
from headgate.core.cost import Cost
from headgate.core.reservation import Claim, ExpiredClaims, Status
from headgate.stores.redis import script

NAMES: Final = ("open", "late", "records", "claims")


def keys_of(tag: str) -> list[str]:
    """Return the keys of the records with a hash tag. They are in one slot: scripts use them together."""
    return [f"{{{tag}}}:{name}" for name in NAMES]


def encode_hold(name: str, record: str, ttl_us: int, now_us: int | None, prefix: str, tag: str) -> script.Command:
    return _command(prefix, tag, now_us, "hold", name, record, ttl_us)


def encode_reserve(check: script.Command, group: Group, hold: script.Command, *, is_whole: bool) -> script.Command:
    """Return the command that decides and replies like `check`, and stores a record like `hold` if it fits.

    `check` decides `group`. `is_whole`: it is the whole request, so that the record is stored with the answer.
    """
    keys, arguments = _parts(check)
    held_keys, held_arguments = _parts(hold)
    penalty, receipt = (int(extra is not None) for extra in (group.penalty, group.idempotency))
    enforced = "".join("1" if one.enforced else "0" for one in group.checks)
    head: script.Command = ("EVALSHA", _reserve_digest(str(check[1])), len(keys) + len(held_keys), *keys, *held_keys)
    counts = (len(keys), len(arguments), 2 + receipt + penalty, penalty, int(is_whole), enforced)
    return (*head, *counts, *arguments, *held_arguments)


def encode_renew(name: str, record: str, ttl_us: int, now_us: int | None, prefix: str, tag: str) -> script.Command:
    return _command(prefix, tag, now_us, "renew", name, record, ttl_us)


def encode_claim(name: str, cost: Cost, now_us: int | None, prefix: str, tag: str) -> script.Command:
    text = json.dumps(cost if isinstance(cost, int) else dict(cost), separators=(",", ":"))
    return _command(prefix, tag, now_us, "claim", name, text)


def decode_claim(name: str, reply: Sequence[bytes]) -> Claim | None:
    if not reply:
        return None
    record, text = (part.decode() for part in reply)
    status, _, cost = text.split(" ", 2)
    return Claim(record, Status(int(status)), name, json.loads(cost), text)


def encode_claim_expired(now_us: int | None, prefix: str, tag: str) -> script.Command:
    return _command(prefix, tag, now_us, "claim_expired")


def decode_claim_expired(reply: Sequence[Any]) -> ExpiredClaims:
    next_us, *parts = reply
    found = [decode_claim(parts[at].decode(), parts[at + 1 : at + 3]) for at in range(0, len(parts), 3)]
    return ExpiredClaims([claim for claim in found if claim is not None], None if next_us < 0 else next_us)


def encode_adjust(
    refunds: Sequence[Charge], surcharges: Sequence[Check], now_us: int | None, prefix: str
) -> script.Command:
    """Return the command that undoes `refunds`, and charges `surcharges` even if they do not fit."""
    return encode_sections([Section((), ("none",), refunds, surcharges)], now_us, prefix)


class Section(NamedTuple):
    """Changes that adjust.lua applies if their guard allows it."""

    keys: Sequence[str]  # of the guard, without the prefix
    guard: tuple[script.Argument, ...]  # its name and arguments
    refunds: Sequence[Charge]
    surcharges: Sequence[Check]


def guarded_by_claim(claim: Claim, tag: str, refunds: Sequence[Charge], surcharges: Sequence[Check]) -> Section:
    """Return changes that take out the reservation. They are in the slot of its record."""
    return Section(keys_of(tag), ("claim", claim.reservation_id, claim.text), refunds, surcharges)


def guarded_by_receipt(claim: Claim, refunds: Sequence[Charge], surcharges: Sequence[Check]) -> Section:
    """Return changes in another slot than that of the record. They leave a receipt there."""
    status, claimed_us, _ = claim.text.split(" ", 2)
    one = refunds[0].check if refunds else surcharges[0]
    kind = "expired" if int(status) == Status.EXPIRING.value else "settled"
    return Section([f"{one.key}:{kind}:{claim.reservation_id}"], ("receipt", claimed_us), refunds, surcharges)


def encode_sections(sections: Sequence[Section], now_us: int | None, prefix: str) -> script.Command:
    """Return the command that applies these sections, in order."""
    keys: list[str] = []
    arguments: list[script.Argument] = []
    names = set()
    for guard_keys, (guard, *others), refunds, surcharges in sections:
        keys += [f"{prefix}:{key}" for key in guard_keys]
        arguments += (guard, len(refunds) + len(surcharges), *others)
        for check, at_us, reset_us in (*refunds, *(Charge(check, -1) for check in surcharges)):
            quota = check.quota
            key = f"{prefix}:{check.key}"
            keys += (key, f"{key}:refunds")
            arguments += (quota.algorithm, quota.limit, quota.window_us, quota.burst, check.cost)
            arguments += (at_us, reset_us, check.reservation)
            names.add(quota.algorithm)
    return script.command_of(_adjust_digest(tuple(sorted(names))), keys, now_us, *arguments)


def _command(prefix: str, tag: str, now_us: int | None, verb: str, *arguments: script.Argument) -> script.Command:
    keys = [f"{prefix}:{key}" for key in keys_of(tag)]
    return script.command_of(script.digest_of("reservations"), keys, now_us, verb, *arguments)


@cache
def _adjust_digest(algorithms: tuple[str, ...]) -> str:
    shared = map(lua, ("prelude", "held", "idle", *algorithms, "force"))
    return script.register("\n".join((*shared, script.source("adjust"))))


@cache
def _reserve_digest(check: str) -> str:
    """Return the digest of reserve.lua around the script with this digest."""
    parts = [("check", script.text(check)), ("keep", script.text(script.digest_of("reservations")))]
    functions = [f"local function {name}(KEYS, ARGV)\n{text}\nend" for name, text in parts]
    return script.register("\n".join((*functions, script.source("reserve"))))


def _parts(command: script.Command) -> tuple[script.Command, script.Command]:
    """Return the keys and the arguments of an EVALSHA command."""
    count = command[2]
    assert isinstance(count, int)
    return command[3 : 3 + count], command[3 + count :]
