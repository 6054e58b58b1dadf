"""Rules with `shards`, at work: a store in front of the store, which divides what is theirs. The rest passes by."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from secrets import randbits
from typing import Any, cast
from weakref import WeakSet

from headgate.core.check import Charge, Check, Client, Group, Result
from headgate.core.decision import Decision, States
from headgate.core.shards import Search
from headgate.errors import IdempotencyConflict, StoreUnavailable
from headgate.limiter.steps import run, run_async
from headgate.rules.holder import Holder
from headgate.stores.protocol import (
    AsyncBeatingStore,
    AsyncReservingStore,
    AsyncSingleStore,
    AsyncStore,
    BeatingStore,
    ReservingStore,
    SingleStore,
    Store,
)
from headgate.stores.sharding import Shards, decide, everywhere, home_of, surcharges

Answers = list[Result | IdempotencyConflict]


class _Sharding:
    """What both kinds have in common. It can what the store behind it can: no more, and no less."""

    # There if the store has them.
    single: Any
    hold: Any
    claim: Any
    expire: Any
    adjust: Any
    beat: Any

    def __init__(self) -> None:
        self.holder: Holder | None = None  # of the rules in force; there as soon as the limiter has it
        self.forked()
        _shardings.add(self)

    def forked(self) -> None:
        """Another process is another node."""
        self.start = randbits(16)

    @property
    def shards(self) -> Shards:
        return {} if self.holder is None else self.holder.current.sharded


class Sharding(_Sharding):
    """For threads."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        if isinstance(store, SingleStore):
            self.single = self._single
        if isinstance(store, ReservingStore):
            self.hold, self.claim, self.expire = store.hold, store.claim, store.expire
            self.adjust = self._adjust
        if isinstance(store, BeatingStore):
            self.beat = store.beat

    def check(self, groups: Sequence[Group]) -> Answers:
        shards = self.shards
        if not shards:
            return self.store.check(groups)
        answers: Answers = run(decide(groups, shards, self.start), self.store.check)
        return answers

    def refund(self, charges: Sequence[Charge]) -> None:
        self.store.refund(charges)  # each has the shard that was charged

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        self.store.reset(everywhere(checks, self.shards), clients)

    def close(self) -> None:
        self.store.close()

    def _adjust(self, refunds: Sequence[Charge], more: Sequence[Check] = ()) -> None:
        store = cast("ReservingStore", self.store)
        store.adjust(refunds, run(surcharges(more, self.shards), store.check))

    def _single(self, template: Check, states: States | None = None) -> Callable[[str, int], Decision]:
        store = cast("SingleStore", self.store)
        count = self.shards.get(template.rule, 1)
        if count == 1:
            return store.single(template, states)
        ways = [store.single(part) for part in Search(template, count, 0).parts]

        def check(subject: str, cost: int) -> Decision:
            search = Search(template._replace(subject=subject, cost=cost), count, home_of(subject, self.start))
            if cost != 1:
                (answer,) = self.check((Group((search.check,)),))
                return _decision(template, cast("Result", answer), cost, states, subject)
            away = None
            while True:
                try:
                    decision = ways[search.layout[0][0]](subject, cost)
                except StoreUnavailable as error:
                    away = _tried(search, error)
                    continue
                if decision.allowed or _is_last(search, decision, away):
                    return _concluded(template, search, decision, states)

        return check


class AsyncSharding(_Sharding):
    """For asyncio."""

    def __init__(self, store: AsyncStore) -> None:
        super().__init__()
        self.store = store
        if isinstance(store, AsyncSingleStore):
            self.single = self._single
        if isinstance(store, AsyncReservingStore):
            self.hold, self.claim, self.expire = store.hold, store.claim, store.expire
            self.adjust = self._adjust
        if isinstance(store, AsyncBeatingStore):
            self.beat = store.beat

    def check(self, groups: Sequence[Group]) -> Coroutine[Any, Any, Answers]:
        shards = self.shards
        if not shards:
            return self.store.check(groups)
        return run_async(decide(groups, shards, self.start), self.store.check)

    async def refund(self, charges: Sequence[Charge]) -> None:
        await self.store.refund(charges)

    async def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        await self.store.reset(everywhere(checks, self.shards), clients)

    async def close(self) -> None:
        await self.store.close()

    async def _adjust(self, refunds: Sequence[Charge], more: Sequence[Check] = ()) -> None:
        store = cast("AsyncReservingStore", self.store)
        await store.adjust(refunds, await run_async(surcharges(more, self.shards), store.check))

    def _single(self, template: Check, states: States | None = None) -> Callable[[str, int], Awaitable[Decision]]:
        store = cast("AsyncSingleStore", self.store)
        count = self.shards.get(template.rule, 1)
        if count == 1:
            return store.single(template, states)
        ways = [store.single(part) for part in Search(template, count, 0).parts]

        async def check(subject: str, cost: int) -> Decision:
            search = Search(template._replace(subject=subject, cost=cost), count, home_of(subject, self.start))
            if cost != 1:
                (answer,) = await self.check((Group((search.check,)),))
                return _decision(template, cast("Result", answer), cost, states, subject)
            away = None
            while True:
                try:
                    decision = await ways[search.layout[0][0]](subject, cost)
                except StoreUnavailable as error:
                    away = _tried(search, error)
                    continue
                if decision.allowed or _is_last(search, decision, away):
                    return _concluded(template, search, decision, states)

        return check


def _tried(search: Search, error: StoreUnavailable) -> StoreUnavailable:
    """A shard could not be asked: another may do, as long as nothing was sent. Raises the error if there is none."""
    if error.sent or not search.passed_over():
        raise error
    return error


def _is_last(search: Search, decision: Decision, away: StoreUnavailable | None) -> bool:
    """Whether a shard's refusal is final. Raises the error of one that could not be asked: it may have had room."""
    now_us, _, outcomes, *_ = decision.basis
    search.told(outcomes, now_us)
    if search.advance():
        return False
    if away is not None:
        raise away
    return True


def _concluded(template: Check, search: Search, decision: Decision, states: States | None) -> Decision:
    """A shard's decision as one on the whole."""
    now_us, _, outcomes, cost, *_ = decision.basis
    if decision.allowed:
        search.told(outcomes, now_us)
    whole = (search.outcome(charged=decision.allowed),)
    subject = search.check.subject
    return Decision.of(decision.allowed, now_us, (template,), whole, cost, states=states, subjects=subject)


def _decision(template: Check, result: Result, cost: int, states: States | None, subject: str) -> Decision:
    now_us, outcomes, _ = result
    allowed = outcomes[0].wait_us == 0
    return Decision.of(allowed, now_us, (template,), outcomes, cost, states=states, subjects=subject)


def _forked() -> None:
    for sharding in list(_shardings):
        sharding.forked()


_shardings: WeakSet[_Sharding] = WeakSet()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forked)
