"""Sharding: decide groups with rules that have shards, and yield what to send to the store for them.

It does no I/O. `decide` is a generator: it yields groups for the store, and receives its answers or its error.

A request first tries its home shard, which depends on the node and the subject. If that shard has no room, it tries the
others, one after the other, each time with all other checks of the group. The group is charged as a whole or not at
all, and refused only when every shard has refused it. A store that caches denials answers for full shards without a
call.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from headgate.core.check import Answer, Check, Group, Outcome, RepeatedResult, Result, require_any_answer
from headgate.core.key import join_facts
from headgate.errors import StoreError, StoreUnavailable
from headgate.features.shards.search import Shards, ShardSearch, checks_of_all_shards, home_of


def decide(groups: Sequence[Group], shards: Shards, start: int) -> Generator[list[Group], Sequence[Any], list[Any]]:
    """Decide groups. `start` is a number of this node that determines its home shards.

    Raises the store's error if no group was decided. Otherwise the error is the answer to each group that it concerns.
    """
    sharded_groups = [_ShardedGroup(group, shards, start) for group in groups]
    under_way = sharded_groups
    while under_way:
        asks = [sharded.ask() for sharded in under_way]
        try:
            answers = yield asks
        except StoreError as error:
            answers = [error] * len(under_way)
        for sharded, answer in zip(under_way, answers, strict=True):
            if not isinstance(answer, StoreError) or not sharded.skip_shard(answer):
                sharded.take_answer(answer)
        under_way = [sharded for sharded in under_way if sharded.answer is None]
    return require_any_answer([sharded.answer for sharded in sharded_groups if sharded.answer is not None])


def lay_out_surcharges(checks: Sequence[Check], shards: Shards) -> Generator[list[Group], Sequence[Any], list[Check]]:
    """Lay out checks that are charged even if they do not fit. Rules with shards are charged where there is room."""
    searches = [
        ShardSearch(check._replace(cost=0), shards[check.rule], 0) if check.rule in shards else None for check in checks
    ]
    active = [search for search in searches if search is not None]
    if not active:
        return list(checks)
    results = yield [Group(tuple(search.checks), peek=True) for search in active]
    for result in results:
        if isinstance(result, StoreError):
            raise result
    for search, result in zip(active, results, strict=True):
        search.record_answers(result.outcomes, result.now_us)
    found = []
    for check, known in zip(checks, searches, strict=True):
        found += [check] if known is None else known.surcharges(check.cost)
    return found


def checks_everywhere(checks: Sequence[Check], shards: Shards) -> list[Check]:
    """Return the checks of all shards, for a reset."""
    return [one for check in checks for one in checks_of_all_shards(check, shards.get(check.rule, 1))]


class _ShardedGroup:
    """A group that is being decided."""

    __slots__ = ("_error", "_group", "_kind", "_outcomes", "_round", "_searches", "_shadow", "answer", "refused")

    def __init__(self, group: Group, shards: Shards, start: int) -> None:
        self.answer: Answer | None = None
        self._error: StoreError | None = None  # of a shard that could not be reached
        self.refused = False
        self._group = group
        key = group.idempotency
        self._searches: dict[int, ShardSearch] = {}
        for index, check in enumerate(group.checks):
            if check.rule in shards:
                # A repeated request must find the shard of the first one, whichever node it comes from.
                home = home_of(check.subject, start) if key is None else home_of(key.key, 0)
                self._searches[index] = ShardSearch(check, shards[check.rule], home, look=group.peek)
        self._outcomes: dict[int, Outcome] = {}  # of the other checks
        self._round = 0
        self._shadow: ShardSearch | None = None  # checked separately, after everything else is decided
        self._kind: type[Result] = Result  # RepeatedResult as soon as a part of the answer is a repetition

    def ask(self) -> Group:
        group, key = self._group, self._group.idempotency
        if not self._searches:
            return group
        if key is not None and self._round:
            key = key._replace(scope=join_facts((key.scope, str(self._round))))
        if self._shadow is not None:
            # All or nothing: so it is enforced, in a separate group.
            checks = tuple(check._replace(enforced=check.cost > 0) for check in self._shadow.checks)
            return Group(checks, group.peek or self.refused, key)
        checks = ()
        for index, check in enumerate(group.checks):
            search = self._searches.get(index)
            checks += (check,) if search is None else tuple(search.checks)
        return Group(checks, group.peek, key, group.penalty)

    def skip_shard(self, error: StoreError) -> bool:
        """Continue after an error. Return whether another shard can be tried: not if the group was sent."""
        if not isinstance(error, StoreUnavailable) or error.sent:
            return False
        searches = [self._shadow] if self._shadow is not None else list(self._searches.values())
        if len(searches) != 1 or not searches[0].skip_part():
            return False
        self._error = error
        self._round += 1
        return True

    def take_answer(self, answer: Answer) -> None:
        """Record the store's answer to the last group. If that ends the search, set `answer`."""
        if not self._searches or not isinstance(answer, Result) or not answer.outcomes:
            self.answer = answer
            return
        self._round += 1
        if isinstance(answer, RepeatedResult):
            self._kind = RepeatedResult
        if self._shadow is not None:
            self._shadow.record_answers(answer.outcomes, answer.now_us)
            self._continue(answer)
            return
        outcomes_left = iter(answer.outcomes)
        self.refused = False
        for index, check in enumerate(self._group.checks):
            search = self._searches.get(index)
            if search is None:
                self._outcomes[index] = next(outcomes_left)
                wait_us = self._outcomes[index].wait_us
            else:
                search.record_answers([next(outcomes_left) for _ in search.layout], answer.now_us)
                wait_us = 0 if search.fits else 1
            self.refused = self.refused or (check.enforced and wait_us != 0)
        again = [search.advance() for search in self._searches.values() if search.check.enforced and not search.fits]
        if not any(again):
            self._continue(answer)

    def _continue(self, answer: Result) -> None:
        """Continue after all enforced checks are decided: first with shadows that had no room, then with the answer."""
        for search in self._searches.values():
            if not search.check.enforced and not search.fits and search.advance():
                self._shadow = search
                return
        if self._error is not None and self.refused:
            self.answer = self._error  # what is left on the failed server is unknown
            return
        charged = not self.refused and not self._group.peek
        outcomes = self._outcomes | {index: search.outcome(charged=charged) for index, search in self._searches.items()}
        self.answer = self._kind(answer.now_us, tuple(outcomes[index] for index in sorted(outcomes)), answer.block)
