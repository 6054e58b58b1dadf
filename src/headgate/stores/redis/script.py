"""The script: assembled from the algorithms' Lua twins, fed and read here. Pure; no I/O.

`check.lua` documents the arguments and the reply that `encode` and `decode` write and read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from hashlib import sha1
from importlib.resources import files
from typing import Any

from hiredis import pack_command

from headgate.algorithms import lua
from headgate.core.check import Block, Charge, Check, Client, Group, Outcome, Result, Terms
from headgate.core.key import escape, key, penalty_keys
from headgate.core.quota import Quota
from headgate.errors import IdempotencyConflict

CHARGE, PEEK, CHARGE_ONCE, REFUND, WITH_PENALTY = range(5)

Argument = str | bytes | int
Command = tuple[Argument, ...]


@cache
def sha(algorithms: tuple[str, ...], penalty: bool = False) -> str:
    """What EVALSHA knows the script by that has the twins of these algorithms, and penalties if need be.

    A script runs from the top at every call, so it holds nothing that the call does not need.
    """
    own = ("check", "penalty", "loop") if penalty else ("check", "loop")
    parts = [lua("prelude"), *map(lua, algorithms)]
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


def packed(command: Command) -> list[bytes]:
    """A command as it goes over the wire."""
    return [pack_command(command)]  # type: ignore[arg-type]  # its stub knows tuples of one


class Request:
    """Groups on their way to the script: keys and arguments, with each quota sent once."""

    __slots__ = ("_penalty", "_quotas", "arguments", "keys")

    def __init__(self) -> None:
        self.keys: list[Argument] = []
        self.arguments: list[Argument] = []
        self._penalty = False
        self._quotas: dict[int, tuple[int, Quota]] = {}  # by identity, which is faster to hash: place and quota

    def add(self, group: Group) -> None:
        checks, peek, idempotency, penalty = group
        arguments = self.arguments
        header = 8 * len(checks) if penalty is None else 8 * len(checks) + WITH_PENALTY
        if idempotency is not None and not peek:
            arguments.append(header + CHARGE_ONCE)
            arguments.append(idempotency.fingerprint)
            self.keys.append(idempotency_key(idempotency.name))
        else:
            arguments.append(header + (PEEK if peek else CHARGE))
        if penalty is not None:
            self._penalty = True
            self.keys += penalty_keys(*penalty.client)
            arguments.append(_terms_text(penalty.terms))
            arguments += [check.rule for check in checks]
        for check in checks:
            self._add_check(check)

    def add_refund(self, charge: Charge) -> None:
        self.arguments.append(8 + REFUND)
        self._add_check(charge.check)
        self.arguments += (charge.at_us, charge.reset_us)

    def _add_check(self, check: Check) -> None:
        _, space, subject, quota, cost, enforced, _ = check
        known = self._quotas.get(id(quota))
        if known is None:
            known = self._quotas[id(quota)] = (len(self._quotas) + 1, quota)
        self.keys.append(key(space, subject))
        self.arguments.append(known[0] if enforced else -known[0])
        self.arguments.append(cost)

    def command(self, now_us: int | None) -> Command:
        """The EVALSHA command. `now_us` None: by the server's own clock."""
        head: list[Argument] = ["" if now_us is None else now_us, len(self._quotas)]
        names = set()
        for _, quota in self._quotas.values():
            head += (quota.algorithm, quota.limit, quota.window_us, quota.burst)
            names.add(quota.algorithm)
        digest = sha(tuple(names) if len(names) == 1 else tuple(sorted(names)), self._penalty)
        return ("EVALSHA", digest, len(self.keys), *self.keys, *head, *self.arguments)


def encode(groups: Sequence[Group], now_us: int | None) -> Command:
    """The command that decides `groups`, in order."""
    request = Request()
    for group in groups:
        request.add(group)
    return request.command(now_us)


def frame(quota: Quota) -> tuple[Command, Command]:
    """The command that decides one enforced check, with gaps: head, key, now or empty, tail, cost."""
    head = ("EVALSHA", sha((quota.algorithm,)), 1)
    return head, (1, quota.algorithm, quota.limit, quota.window_us, quota.burst, 8 + CHARGE, 1)


def encode_refund(charges: Sequence[Charge], now_us: int | None) -> Command:
    """The command that undoes `charges`."""
    request = Request()
    for charge in charges:
        request.add_refund(charge)
    return request.command(now_us)


def encode_reset(checks: Sequence[Check], clients: Sequence[Client]) -> Command:
    """The command that forgets the state of `checks`, and all about `clients`."""
    return ("DEL", *(check.key for check in checks), *(key for client in clients for key in penalty_keys(*client)))


@lru_cache(maxsize=16)
def _terms_text(terms: Terms) -> str:
    return " ".join(map(str, (terms.detection_us, terms.threshold, *terms.multipliers)))


def decode(groups: Sequence[Group], reply: Sequence[Any]) -> list[Result | IdempotencyConflict]:
    """The script's reply to `encode(groups)`: a result per group, or the conflict that it ran into."""
    results: list[Result | IdempotencyConflict] = []
    at = 0
    for group in groups:
        now_us = reply[at]
        if len(group.checks) == 1 and group.penalty is None and now_us >= 0:  # most of them
            results.append(Result(now_us, (Outcome(reply[at + 1], reply[at + 2], reply[at + 3]),)))
            at += 4
            continue
        at += 1
        if now_us < 0 and group.idempotency is not None:
            results.append(IdempotencyConflict.of(group.idempotency.key))
            continue
        left_us = 0
        if group.penalty is not None:
            left_us = reply[at]
            at += 1
        outcomes = []
        if left_us >= 0:
            for _ in group.checks:
                outcomes.append(Outcome(reply[at], reply[at + 1], reply[at + 2]))
                at += 3
        block = None
        if left_us:
            block = Block(abs(left_us), reply[at].decode())
            at += 1
        results.append(Result(now_us, tuple(outcomes), block))
    return results


def idempotency_key(name: str) -> str:
    """Where the first answer to an idempotency key is kept."""
    return f"rl:idempotency:{{{escape(name)}}}"
