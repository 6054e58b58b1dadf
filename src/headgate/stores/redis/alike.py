"""Requests that are alike, on their way to one server: as one command, but for those that are known to be refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from headgate.core.alike import Answers, Pattern
from headgate.core.check import Group, Outcome, Result
from headgate.core.key import escaped, key
from headgate.errors import StoreError
from headgate.stores.redis import script
from headgate.stores.redis.aio_node import AsyncNode
from headgate.stores.redis.exhausted import Exhausted, Name

FIGURES: Final = 3  # of a check: wait, remaining and reset


class AlikeCalls:
    """An `AsyncAlike`. `now_us` is the time to send along, or None: the server's own."""

    def __init__(
        self, pattern: Pattern, node: AsyncNode, exhausted: Exhausted, now_us: Callable[[], int | None], prefix: str
    ) -> None:
        checks, owns = pattern
        self._prefix = prefix
        self._node = node
        self._exhausted = exhausted
        self._now_us = now_us
        self._terms = tuple((check.quota, check.cost, check.enforced) for check in checks)
        self._enforced = [at for at, check in enumerate(checks) if check.enforced]
        # Of each check: what is before the request's own subject in its key, and behind it; or the key.
        self._parts = [
            check.space.split("*", 1) if own else (key(check.space, check.subject), None)
            for check, own in zip(checks, owns, strict=True)
        ]
        self._plain = len(checks) == 1 and owns[0] and checks[0].enforced
        request = script.Request(prefix)
        request.add(Group(checks))
        self._digest = request.command(None)[1]
        self._quotas, self._arguments = request.quotas(), request.arguments

    async def __call__(self, subjects: Sequence[str]) -> Answers:
        exhausted, names = self._exhausted, self._names(subjects)
        known = self._known(names) if exhausted.known else {}
        asked = [name for place, name in enumerate(names) if place not in known] if known else names
        asked_us, epoch = exhausted.now_us(), exhausted.epoch
        if not asked:
            return self._merged(known, len(names), next(iter(known.values())).now_us, [])
        try:
            now_us, *figures = await self._node.join((), self._command(asked), size=len(asked))
        except StoreError:
            exhausted.clear()
            raise
        if any(figures[::FIGURES]):
            self._learn(asked, now_us, figures, asked_us, epoch)
        return self._merged(known, len(names), now_us, figures) if known else Answers(now_us, figures)

    def _names(self, subjects: Sequence[str]) -> Sequence[Name]:
        """What each request is known by: its key, or its keys."""
        if len(self._parts) == 1:
            ((before, after),) = self._parts
            if after is None:
                return [before] * len(subjects)
            return [f"{before}{subject}{after}" for subject in escaped(subjects)]
        return [
            tuple([before if after is None else f"{before}{subject}{after}" for before, after in self._parts])
            for subject in escaped(subjects)
        ]

    def _command(self, names: Sequence[Name]) -> script.Command:
        now_us = self._now_us()
        now: script.Argument = "" if now_us is None else now_us
        single = names if len(self._parts) == 1 else [key for name in names for key in name]
        keys = [f"{self._prefix}:{key}" for key in single]
        if self._plain:
            quota, cost, _ = self._terms[0]
            head, tail = script.frame(quota, len(keys))
            return (*head, *keys, now, *tail, cost)
        return ("EVALSHA", self._digest, len(keys), *keys, now, *self._quotas, *(self._arguments * len(names)))

    def _known(self, names: Sequence[Name]) -> dict[int, Result]:
        """By place: what is known to be refused."""
        found = {}
        for place, name in enumerate(names):
            if name in self._exhausted.known:
                told = self._exhausted.answer(name, self._terms)
                if told is not None:
                    found[place] = told
        return found

    def _learn(self, names: Sequence[Name], now_us: int, figures: list[int], asked_us: int, epoch: int) -> None:
        """Remember who was refused."""
        step = FIGURES * len(self._parts)
        for place, name in enumerate(names):
            own = figures[step * place : step * (place + 1)]
            if any(own[FIGURES * at] > 0 for at in self._enforced):
                outcomes = tuple(Outcome(*own[at : at + FIGURES]) for at in range(0, step, FIGURES))
                self._exhausted.put(name, self._terms, Result(now_us, outcomes), asked_us, epoch)

    def _merged(self, known: dict[int, Result], size: int, now_us: int, figures: list[int]) -> Answers:
        """All answers, in order, at one moment: what was known was told at another."""
        step = FIGURES * len(self._parts)
        merged: list[Any] = []
        at = 0
        for place in range(size):
            told = known.get(place)
            if told is None:
                merged += figures[at : at + step]
                at += step
                continue
            more_us = told.now_us - now_us
            for wait_us, remaining, reset_us in told.outcomes:
                merged += (wait_us and max(1, wait_us + more_us), remaining, reset_us and max(1, reset_us + more_us))
        return Answers(now_us, merged)
