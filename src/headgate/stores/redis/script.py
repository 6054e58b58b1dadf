"""The script: assembled from the algorithms' Lua twins, fed and read here. Pure; no I/O.

`check.lua` documents the arguments and the reply that `encode` and `decode` write and read. Functions that encode
a command take the store's `prefix`, which goes before each of its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, Literal

from hiredis import pack_command

from headgate.algorithms import lua
from headgate.core.check import (
    Block,
    Charge,
    Check,
    Client,
    Group,
    Idempotency,
    Outcome,
    Penalty,
    RepeatedResult,
    Result,
    Terms,
)
from headgate.core.key import escape, key, penalty_keys
from headgate.core.quota import BUCKETS, Quota
from headgate.errors import IdempotencyConflict

CHARGE, PEEK, CHARGE_ONCE, REFUND, WITH_PENALTY = range(5)
VIOLATION = 7
UNDO_ONCE = 7  # of a group with checks
RESERVES = 8 * 65_536


Argument = str | bytes | int
Command = tuple[Argument, ...]
Kind = Literal["plain", "groups", "penalised"]


@cache
def sha(algorithms: tuple[str, ...], kind: Kind = "groups") -> str:
    """What EVALSHA knows the script by that has the twins of these algorithms.

    A script runs from the top at every call, so it holds nothing that the call does not need: `plain` decides checks
    under one quota, each by itself; `groups` anything but penalties; `penalised` all.
    """
    own = {"groups": ("check", "loop"), "penalised": ("check", "penalty", "loop")}.get(kind, (kind,))
    shared = ["prelude"]
    if any(name in BUCKETS for name in algorithms):
        shared.append("held")
    if kind != "plain":
        shared.append("idle")
    parts = [lua(name) for name in (*shared, *algorithms)]
    parts += (files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8") for name in own)
    return known("\n".join(parts))


def known(text: str) -> str:
    """What EVALSHA knows a script by; `whole` finds its text again."""
    digest = sha1(text.encode(), usedforsecurity=False).hexdigest()
    _sources[digest] = text
    return digest


_sources: dict[str, str] = {}


def whole(command: Command) -> Command:
    """The same command for a server that does not know the script yet: it carries the whole text."""
    digest = command[1]
    assert isinstance(digest, str)
    return ("EVAL", _sources[digest], *command[2:])


def packed(command: Command) -> bytes:
    """A command as it goes over the wire."""
    result: bytes = pack_command(command)  # type: ignore[arg-type]  # its stub knows tuples of one
    return result


class Request:
    """Groups on their way to the script: keys and arguments, with each quota sent once."""

    __slots__ = ("_penalty", "_prefix", "_quotas", "arguments", "keys")

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.keys: list[Argument] = []
        self.arguments: list[Argument] = []
        self._penalty = False
        self._quotas: dict[int, tuple[int, Quota]] = {}  # by identity, which is faster to hash: place and quota

    def add(self, group: Group) -> None:
        checks, peek, idempotency, penalty = group
        arguments = self.arguments
        header = 8 * len(checks) if penalty is None else 8 * len(checks) + WITH_PENALTY
        mark = checks[0].reservation if checks else 0
        if mark:
            header += RESERVES
        if idempotency is not None and not peek:
            arguments.append(header + CHARGE_ONCE)
            if mark:
                arguments.append(mark)
            arguments.append(idempotency.fingerprint)
            self.keys.append(receipt_key(idempotency, self._prefix))
        else:
            arguments.append(header + (PEEK if peek else CHARGE))
            if mark:
                arguments.append(mark)
        if penalty is not None:
            self._penalty = True
            self._add_client(penalty.client)
            arguments.append(_terms_text(penalty.terms))
            arguments += [check.rule for check in checks]
        for check in checks:
            self._add_check(check)

    def add_refund(self, charge: Charge) -> None:
        mark = charge.check.reservation
        self.arguments += (8 + REFUND + RESERVES, mark) if mark else (8 + REFUND,)
        self._add_check(charge.check)
        self.arguments += (charge.at_us, charge.reset_us)

    def add_undo_once(self, group: Group) -> None:
        key = group.idempotency
        assert key is not None
        self.keys.append(receipt_key(key, self._prefix))
        first = 2 if group.penalty is None else 3
        mark = group.checks[0].reservation if group.checks else 0
        header = 8 * len(group.checks) + UNDO_ONCE
        self.arguments += (header + RESERVES, mark) if mark else (header,)
        self.arguments += (key.fingerprint, first)
        for check in group.checks:
            self._add_check(check)

    def add_violation(self, penalty: Penalty, check: Check) -> None:
        self._penalty = True
        self._add_client(penalty.client)
        self.arguments += (VIOLATION, _terms_text(penalty.terms), check.quota.window_us, check.rule)

    def _add_client(self, client: Client) -> None:
        self.keys += (f"{self._prefix}:{key}" for key in penalty_keys(*client))

    def _add_check(self, check: Check) -> None:
        _, space, subject, quota, cost, enforced, *_ = check
        known = self._quotas.get(id(quota))
        if known is None:
            known = self._quotas[id(quota)] = (len(self._quotas) + 1, quota)
        self.keys.append(f"{self._prefix}:{key(space, subject)}")
        self.arguments.append(known[0] if enforced else -known[0])
        self.arguments.append(cost)

    def command(self, now_us: int | None) -> Command:
        """The EVALSHA command. `now_us` None: by the server's own clock."""
        names = {quota.algorithm for _, quota in self._quotas.values()}
        kind: Kind = "penalised" if self._penalty else "groups"
        digest = sha(tuple(names) if len(names) == 1 else tuple(sorted(names)), kind)
        now: Argument = "" if now_us is None else now_us
        return ("EVALSHA", digest, len(self.keys), *self.keys, now, *self.quotas(), *self.arguments)

    def quotas(self) -> list[Argument]:
        """How many quotas there are, and what each is."""
        told: list[Argument] = [len(self._quotas)]
        for _, quota in self._quotas.values():
            told += (quota.algorithm, quota.limit, quota.window_us, quota.burst)
        return told


def encode(groups: Sequence[Group], now_us: int | None, prefix: str) -> Command:
    """The command that decides `groups`, in order."""
    return _encode_plain(groups, now_us, prefix) or _encode_groups(groups, now_us, prefix)


def _encode_groups(groups: Sequence[Group], now_us: int | None, prefix: str) -> Command:
    request = Request(prefix)
    for group in groups:
        request.add(group)
    return request.command(now_us)


def _encode_plain(groups: Sequence[Group], now_us: int | None, prefix: str) -> Command | None:
    """The same, shorter, if all are under one quota and nothing is special about any of them; else None."""
    keys: list[str] = []
    costs: list[int] = []
    shared = groups[0].checks[0].quota if groups and groups[0].checks else None
    for checks, peek, idempotency, penalty in groups:
        if len(checks) != 1 or peek or idempotency is not None or penalty is not None:
            return None
        _, space, subject, quota, cost, enforced, _, _, mark = checks[0]
        if quota is not shared or not enforced or mark:
            return None
        keys.append(key(space, subject))
        costs.append(cost)
    return None if shared is None else encode_checks(shared, keys, costs, now_us, prefix)


def encode_checks(quota: Quota, keys: Sequence[str], costs: Sequence[int], now_us: int | None, prefix: str) -> Command:
    """The command that decides checks under one quota, each by itself. `keys` are without the prefix."""
    now: Argument = "" if now_us is None else now_us
    keys = [f"{prefix}:{key}" for key in keys]
    cost = costs[0] if costs.count(costs[0]) == len(costs) else None
    head, tail = frame(quota, len(keys))
    return (*head, *keys, now, *tail, *costs) if cost is None else (*head, *keys, now, *tail, cost)


def frame(quota: Quota, count: int = 1) -> tuple[Command, Command]:
    """The command that decides so many checks under one quota, with gaps: head, keys, now or empty, tail, costs."""
    return ("EVALSHA", sha((quota.algorithm,), "plain"), count), terms(quota)


def terms(quota: Quota) -> Command:
    """What the script is told of a quota, if it knows the algorithm."""
    return quota.limit, quota.window_us, quota.burst


def packer(quota: Quota) -> Callable[[str, Argument, int], bytes]:
    """Packs the command that decides one check, of key with prefix, now or empty, and cost; all else is packed once."""
    head, tail = frame(quota)
    start, middle = f"*{len(head) + len(tail) + 3}\r\n{_packed(*head)}", _packed(*tail)
    one = _packed(1)

    def pack(key: str, now_us: Argument, cost: int) -> bytes:
        now = "$0\r\n\r\n" if now_us == "" else _packed(now_us)
        last = one if cost == 1 else _packed(cost)
        return f"{start}${len(key)}\r\n{key}\r\n{now}{middle}{last}".encode()

    return pack


def _packed(*arguments: Argument) -> str:
    """Arguments as they go over the wire; ASCII, as keys are."""
    return "".join(f"${len(text)}\r\n{text}\r\n" for text in map(str, arguments))


def encode_refund(charges: Sequence[Charge], now_us: int | None, prefix: str) -> Command:
    """The command that undoes `charges`."""
    request = Request(prefix)
    for charge in charges:
        request.add_refund(charge)
    return request.command(now_us)


def encode_undo(charges: Sequence[Charge], look: Group, now_us: int | None, prefix: str) -> Command:
    """The command that undoes `charges` and then looks at `look`, a peek; `decode([look], …)` reads the reply."""
    request = Request(prefix)
    for charge in charges:
        request.add_refund(charge)
    request.add(look)
    return request.command(now_us)


def encode_undo_once(group: Group, now_us: int | None, prefix: str, *, look: Group | None = None) -> Command:
    """The command that undoes what a group charged under its receipt, and keeps it from charging anything later.

    With `look`, a peek, `decode([look], …)` reads the reply.
    """
    request = Request(prefix)
    request.add_undo_once(group)
    if look is not None:
        request.add(look)
    return request.command(now_us)


def encode_violation(penalty: Penalty, check: Check, now_us: int | None, prefix: str) -> Command:
    """The command that counts a refusal by `check`, decided elsewhere, against its client."""
    request = Request(prefix)
    request.add_violation(penalty, check)
    return request.command(now_us)


def decode_violation(reply: Sequence[Any]) -> Block | None:
    """The block that it began, or that stood already."""
    return Block(reply[1], reply[2].decode()) if reply[1] else None


def encode_reset(checks: Sequence[Check], clients: Sequence[Client], prefix: str) -> Command:
    """The command that forgets the state of `checks`, and all about `clients`."""
    keys = [check.key for check in checks]
    keys += [key for client in clients for key in penalty_keys(*client)]
    return ("DEL", *(f"{prefix}:{key}" for key in keys))


@lru_cache(maxsize=16)
def _terms_text(terms: Terms) -> str:
    return " ".join(map(str, (terms.detection_us, terms.threshold, *terms.multipliers)))


def decode(groups: Sequence[Group], reply: Sequence[Any]) -> list[Result | IdempotencyConflict]:
    """The script's reply to `encode(groups)`: a result per group, or the conflict that it ran into."""
    results: list[Result | IdempotencyConflict] = []
    now_us = reply[0]
    at = 1
    for group in groups:
        checks, peek, idempotency, penalty = group
        if len(checks) == 1 and penalty is None and idempotency is None:  # most of them
            results.append(Result(now_us, (Outcome(reply[at], reply[at + 1], reply[at + 2]),)))
            at += 3
            continue
        decided_us, kind = now_us, Result
        if idempotency is not None and not peek:
            decided_us = reply[at]
            at += 1
            if decided_us == -1:
                results.append(IdempotencyConflict.of(idempotency.key))
                continue
            if decided_us < 0:
                decided_us, kind = -2 - decided_us, RepeatedResult
        left_us = 0
        if penalty is not None:
            left_us = reply[at]
            at += 1
        outcomes = []
        if left_us >= 0:
            for _ in checks:
                outcomes.append(Outcome(reply[at], reply[at + 1], reply[at + 2]))
                at += 3
        block = None
        if left_us:
            block = Block(abs(left_us), reply[at].decode())
            at += 1
        results.append(kind(decided_us, tuple(outcomes), block))
    return results


def receipt_key(key: Idempotency, prefix: str) -> str:
    """Where the first answer to an idempotency key is kept: in a slot of its own, or in that of its tag."""
    if key.tag:
        return f"{prefix}:idempotency:{escape(key.name)}:{{{key.tag}}}"
    return idempotency_key(key.name, prefix)


def idempotency_key(name: str, prefix: str) -> str:
    """Where the first answer to an idempotency key is kept."""
    return f"{prefix}:idempotency:{{{escape(name)}}}"
