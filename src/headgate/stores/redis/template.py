"""Command templates: all of a command that is the same for every request under the same quotas. Pure; no I/O.

Requests of one tick that have the same template travel as one command, whatever plan they are of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from headgate.core.check import Outcome
from headgate.core.key import escape
from headgate.core.plan import Plan
from headgate.core.quota import Quota
from headgate.stores.redis import script
from headgate.stores.redis.parcel import Parcel

MAX_TEMPLATES: Final = 4_096  # that are remembered
MAX_COSTS: Final = 256  # whose arguments one template remembers
FIGURES: Final = 3  # of a limit in a reply: wait, remaining and reset

Request = tuple[tuple[str, ...], tuple[int, ...]]  # keys without the store's prefix, and costs
Terms = tuple[tuple[Quota, bool], ...]  # of each limit: its quota, and whether it is enforced


class CommandTemplate:
    """Decides requests with limits under these quotas, each request by itself, all or nothing."""

    __slots__ = ("_arguments", "_digest", "_indexes", "_pack", "_plain", "_quotas", "size", "terms")

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.size = len(terms)
        self._plain = terms[0][0] if self.size == 1 and terms[0][1] else None  # the quota of one limit, enforced
        quotas = list(dict.fromkeys(quota for quota, _ in terms))
        self._indexes = [
            quotas.index(quota) + 1 if enforced else -(quotas.index(quota) + 1) for quota, enforced in terms
        ]
        self._digest = script.sha(tuple(sorted({quota.algorithm for quota in quotas})))
        self._pack = None if self._plain is None else script.packer(self._plain)
        self._arguments: dict[tuple[int, ...], list[script.Argument]] = {}  # of a request, by its costs
        self._quotas: list[script.Argument] = [len(quotas)]
        for quota in quotas:
            self._quotas += (quota.algorithm, *script.terms(quota))

    @classmethod
    def of(cls, plan: Plan) -> CommandTemplate:
        """Return the template of a plan."""
        return cls(tuple([(limit.quota, limit.enforced) for limit in plan.limits]))

    def terms_at(self, costs: tuple[int, ...]) -> tuple[tuple[Quota, int, bool], ...]:
        """Return the terms of a request, as `exhausted` compares them: quota, cost, and whether it is enforced."""
        return tuple([(quota, cost, enforced) for (quota, enforced), cost in zip(self.terms, costs, strict=True)])

    def command(self, requests: Sequence[Request], now_us: int | None, prefix: str) -> script.Command:
        """Return the command that decides requests, in order."""
        if self._plain is not None:
            firsts, each = [keys[0] for keys, _ in requests], [costs[0] for _, costs in requests]
            return script.encode_checks(self._plain, firsts, each, now_us, prefix)
        now: script.Argument = "" if now_us is None else now_us
        names: list[script.Argument] = []
        arguments: list[script.Argument] = []
        for keys, costs in requests:
            names += [f"{prefix}:{key}" for key in keys]
            arguments += self._arguments.get(costs) or self._arguments_at(costs)
        return ("EVALSHA", self._digest, len(names), *names, now, *self._quotas, *arguments)

    def parcel(self, keys: tuple[str, ...], costs: tuple[int, ...], now_us: int | None, prefix: str) -> Parcel:
        """Return the command that decides one request; packed, if all but its key is known."""
        command = self.command(((keys, costs),), now_us, prefix)
        if self._pack is None:
            return Parcel(command)
        return Parcel(command, False, self._pack(f"{prefix}:{keys[0]}", "" if now_us is None else now_us, costs[0]))

    def _arguments_at(self, costs: tuple[int, ...]) -> list[script.Argument]:
        """Return what the script is told of a request with these costs."""
        arguments: list[script.Argument] = [8 * self.size + script.CHARGE]
        for index, cost in zip(self._indexes, costs, strict=True):
            arguments += (index, cost)
        if len(self._arguments) >= MAX_COSTS:
            self._arguments.clear()
        self._arguments[costs] = arguments
        return arguments


class Templates:
    """The templates of one store, by quotas."""

    def __init__(self) -> None:
        self._known: dict[Terms, CommandTemplate] = {}

    def of(self, plan: Plan) -> CommandTemplate:
        """Return the template of a plan; plans under the same quotas share one."""
        terms = tuple([(limit.quota, limit.enforced) for limit in plan.limits])
        template = self._known.get(terms)
        if template is None:
            if len(self._known) >= MAX_TEMPLATES:
                self._known.clear()
            template = self._known[terms] = CommandTemplate(terms)
        return template


def keys_of(plan: Plan) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """Return the function from the subjects of a request to the keys of its limits."""
    halves = [tuple(limit.space.split("*", 1)) for limit in plan.limits]
    if len(halves) == 1:
        ((head, tail),) = halves
        return lambda subjects: (f"{head}{escape(subjects[0])}{tail}",)
    return lambda subjects: tuple(
        [f"{head}{escape(subject)}{tail}" for (head, tail), subject in zip(halves, subjects, strict=True)]
    )


def outcomes_of(verdict: tuple[int, tuple[str, ...], tuple[int, ...], Sequence[int]]) -> tuple[Outcome, ...]:
    """Read the outcomes from a verdict whose last part is the figures of a reply."""
    figures = verdict[3]
    return tuple([Outcome(*figures[at : at + FIGURES]) for at in range(0, len(figures), FIGURES)])
