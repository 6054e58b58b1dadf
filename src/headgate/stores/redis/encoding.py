"""Encode requests as commands: a template for everything that similar requests share, filled with keys and costs.

Requests of one tick with the same template are sent as one command, whatever their plan and protocol. Each template is
check.lua with some fragments; check.lua documents arguments and reply. Pure; no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from headgate.core.check import (
    NOT_WAITING,
    Block,
    Check,
    Client,
    Extras,
    Group,
    Idempotency,
    Outcome,
    Penalty,
    RepeatedResult,
    Result,
    Terms,
)
from headgate.core.key import escape, key, penalty_keys
from headgate.core.quota import Quota
from headgate.stores.redis import script
from headgate.stores.redis.script import EncodedCommand

MAX_TEMPLATES: Final = 4_096  # to remember per store
MAX_COSTS: Final = 256  # to remember in packed form per template
FIGURES: Final = 3  # per limit in a reply: wait, remaining and reset

Limits = tuple[tuple[Quota, bool], ...]  # of each limit: its quota, and whether it is enforced


RequestParts = tuple[tuple[str, ...], tuple[int, ...], tuple[script.Argument, ...]]
"""An `EncodedRequest` as a plain tuple, which is made faster."""


class EncodedRequest(NamedTuple):
    """The part of a command for one request."""

    keys: tuple[str, ...]  # with the store's prefix; those of fragments first
    costs: tuple[int, ...]  # of each limit
    arguments: tuple[script.Argument, ...] = ()  # of fragments


class CommandTemplate:
    """Encodes requests whose limits have the same quotas and fragments. The reply has `figures` for each of them."""

    __slots__ = ("_common", "_digest", "_heads", "_tails", "figures", "fragments", "limits")

    def __init__(self, limits: Limits, *, peek: bool = False, fragments: tuple[str, ...] = ()) -> None:
        self.limits = limits
        self.fragments = fragments
        self.figures = FIGURES * len(limits) + ("idempotency" in fragments) + 2 * ("penalty" in fragments)
        self._digest = script.check_digest(tuple(sorted({quota.algorithm for quota, _ in limits})), fragments)
        self._common: list[script.Argument] = [int(peek), len(limits)]
        for quota, enforced in limits:
            self._common += (quota.algorithm, quota.limit, quota.window_us, quota.burst, int(enforced))
        self._heads: dict[int, str] = {}  # start of a packed command, by number of keys
        self._tails: dict[tuple[int, ...], str] = {}  # end of a packed command without the time, by costs

    def terms_at(self, costs: tuple[int, ...]) -> tuple[tuple[Quota, int, bool], ...]:
        """Return quota, cost and `enforced` of each limit of a request, which the denial cache compares."""
        return tuple([(quota, cost, enforced) for (quota, enforced), cost in zip(self.limits, costs, strict=True)])

    def command(self, requests: Sequence[RequestParts], now_us: int | None) -> script.Command:
        """Return the command that decides requests, in order. Without `now_us`, the server's own clock applies."""
        keys = [key for request in requests for key in request[0]]
        now: script.Argument = "" if now_us is None else now_us
        costs = requests[0][1]
        if not self.fragments and [request[1] for request in requests].count(costs) == len(requests):
            return ("EVALSHA", self._digest, len(keys), *keys, now, *self._common, *costs)
        each = [argument for request in requests for argument in (*request[2], *request[1])]
        return ("EVALSHA", self._digest, len(keys), *keys, now, *self._common, *each)

    def encode(self, request: EncodedRequest, now_us: int | None) -> EncodedCommand:
        """Return the command that decides one request, from parts that are already packed."""
        keys, costs, _ = request
        command = self.command((request,), now_us)
        if self.fragments or now_us is not None:
            return EncodedCommand(command)
        head = self._heads.get(len(keys)) or self._pack_head(len(keys))
        tail = self._tails.get(costs) or self._pack_tail(costs)
        middle = "".join([f"${len(key)}\r\n{key}\r\n" for key in keys])
        return EncodedCommand(command, False, f"{head}{middle}{tail}".encode())

    def read(self, now_us: int, figures: Sequence[Any]) -> Result | None:
        """Return the result for the figures of one request; None: its idempotency key was used for another request."""
        kind, at, left_us = Result, 0, 0
        if "idempotency" in self.fragments:
            now_us, at = figures[0], 1
            if now_us == -1:
                return None
            if now_us < 0:
                now_us, kind = -2 - now_us, RepeatedResult
        if "penalty" in self.fragments:
            left_us, at = figures[at], at + 1
        if not left_us:
            return kind(now_us, self._outcomes(figures, at))
        block = Block(abs(left_us), figures[-1].decode())
        return kind(now_us, self._outcomes(figures, at) if left_us > 0 else (), block)

    def _outcomes(self, figures: Sequence[int], at: int) -> tuple[Outcome, ...]:
        end = at + FIGURES * len(self.limits)
        return tuple([Outcome(*figures[index : index + FIGURES]) for index in range(at, end, FIGURES)])

    def _pack_head(self, keys: int) -> str:
        size = 4 + keys + len(self._common) + len(self.limits)
        head = self._heads[keys] = f"*{size}\r\n{_pack('EVALSHA', self._digest, keys)}"
        return head

    def _pack_tail(self, costs: tuple[int, ...]) -> str:
        if len(self._tails) >= MAX_COSTS:
            self._tails.clear()
        tail = self._tails[costs] = _pack("", *self._common, *costs)
        return tail


Fragments = tuple[tuple[str, ...], list[str], Sequence[script.Argument]]  # names, keys and arguments


class Encoded(NamedTuple):
    """A request and its template."""

    template: CommandTemplate
    request: EncodedRequest


class Encoder:
    """The templates of one store, and requests for them. All of its keys begin with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._templates: dict[tuple[Limits, bool, tuple[str, ...]], CommandTemplate] = {}

    def template(self, limits: Limits, *, peek: bool = False, fragments: tuple[str, ...] = ()) -> CommandTemplate:
        """Return the template of these requests: always the same object."""
        template = self._templates.get((limits, peek, fragments))
        if template is None:
            if len(self._templates) >= MAX_TEMPLATES:
                self._templates.clear()
            template = self._templates.setdefault(
                (limits, peek, fragments), CommandTemplate(limits, peek=peek, fragments=fragments)
            )
        return template

    def group(self, group: Group) -> Encoded:
        """Encode the checks of one request, with all of its extras."""
        checks, peek, idempotency, penalty = group
        extras = Extras(idempotency, penalty, *_check_extras(checks))
        fragments = self.fragments([check.rule for check in checks], peek, extras)
        return self._encode(checks, *fragments, peek=peek)

    def fragments(self, rules: Sequence[str], peek: bool, extras: Extras) -> Fragments:
        """Return the fragments of a request whose limits have these rules, with their keys and arguments."""
        idempotency, penalty, reservation, slot, arrived_us = extras
        names: list[str] = []
        keys: list[str] = []
        arguments: list[script.Argument] = []
        if slot and not peek:
            names.append("slot")
            arguments.append(slot)
        if reservation and not peek:
            names.append("reservation")
            arguments.append(reservation)
        if idempotency is not None and not peek:
            names.append("idempotency")
            keys.append(self.receipt_key(idempotency))
            arguments.append(idempotency.fingerprint)
        if penalty is not None:
            names.append("penalty")
            keys += self._client_keys(penalty.client)
            arguments += (_terms_text(penalty.terms), "", "", *rules)
        if arrived_us != NOT_WAITING and not peek:
            names.append("wait")
            arguments.append(arrived_us)
        return tuple(names), keys, arguments

    def undo(self, checks: tuple[Check, ...], charged: Sequence[tuple[int, int]]) -> Encoded:
        """Encode the undoing of checks, all of one reservation and slot or of none. The reply has their new figures.

        `charged` is the time of each charge and the reset that was returned; -1 and 0 if it was not charged.
        """
        return self._undo(checks, [], [time for times in charged for time in times], "undo")

    def undo_once(self, group: Group) -> Encoded:
        """Encode the undoing of a group's charge under its receipt, which also prevents later charges."""
        receipt = group.idempotency
        assert receipt is not None
        first_wait = 2 if group.penalty is None else 3
        arguments = [receipt.fingerprint, first_wait]
        return self._undo(group.checks, [self.receipt_key(receipt)], arguments, "undo_once")

    def violation(self, penalty: Penalty, check: Check) -> Encoded:
        """Encode the violation of a client by a refusal of `check` in another slot."""
        arguments = (_terms_text(penalty.terms), check.quota.window_us, check.rule)
        return self._encode((), ("penalty",), self._client_keys(penalty.client), arguments)

    def reset(self, checks: Sequence[Check], clients: Sequence[Client]) -> script.Command:
        """Return the command that deletes the state of `checks`, and all data of `clients`."""
        keys = [f"{self.prefix}:{check.key}" for check in checks]
        for client in clients:
            keys += self._client_keys(client)
        return ("DEL", *keys)

    def receipt_key(self, key: Idempotency) -> str:
        """Return the key of the answer to an idempotency key: in its own slot, or in the slot of its tag."""
        if key.tag:
            return f"{self.prefix}:idempotency:{escape(key.name)}:{{{key.tag}}}"
        return f"{self.prefix}:idempotency:{{{escape(key.name)}}}"

    def _undo(self, checks: tuple[Check, ...], keys: list[str], arguments: list[Any], fragment: str) -> Encoded:
        reservation, slot, _ = _check_extras(checks)
        names, own = [fragment], arguments
        if reservation:
            names, own = ["reservation", *names], [reservation, *own]
        if slot:
            names, own = ["slot", *names], [slot, *own]
        return self._encode(checks, tuple(names), keys, own, peek=True)

    def _encode(
        self,
        checks: tuple[Check, ...],
        fragments: tuple[str, ...],
        keys: list[str],
        arguments: Sequence[script.Argument],
        *,
        peek: bool = False,
    ) -> Encoded:
        limits = tuple([(check.quota, check.enforced) for check in checks])
        own = [f"{self.prefix}:{key(check.key_template, check.subject)}" for check in checks]
        request = EncodedRequest((*keys, *own), tuple([check.cost for check in checks]), tuple(arguments))
        return Encoded(self.template(limits, peek=peek, fragments=fragments), request)

    def _client_keys(self, client: Client) -> list[str]:
        return [f"{self.prefix}:{name}" for name in penalty_keys(*client)]


def _check_extras(checks: Sequence[Check]) -> tuple[int, str, int]:
    """Return reservation, slot and time of arrival of a request's checks, as a `Check` has them."""
    return (checks[0].reservation, checks[0].slot, checks[0].arrived_us) if checks else (0, "", NOT_WAITING)


@lru_cache(maxsize=16)
def _terms_text(terms: Terms) -> str:
    return " ".join(map(str, (terms.detection_us, terms.threshold, *terms.multipliers)))


def _pack(*arguments: script.Argument) -> str:
    """Pack arguments. All of them must be ASCII, as keys are."""
    return "".join([f"${len(text)}\r\n{text}\r\n" for text in map(str, arguments)])
