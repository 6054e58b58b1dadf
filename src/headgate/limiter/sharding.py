"""Rules with `shards`, at work: a store in front of the store, which divides what is theirs. The rest passes by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from secrets import randbits
from typing import Any, cast

from headgate.core.check import Answer, Charge, Check, Client, Group, Result
from headgate.core.decision import Decision, Reading, States, single
from headgate.core.fork import renew_in_children
from headgate.core.plan import Plan
from headgate.core.shards import Search, checks_of
from headgate.errors import StoreUnavailable
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

Answers = Sequence[Answer]


class Home:
    """What a node knows of shards: which rules have any, and where it starts itself."""

    def __init__(self) -> None:
        self.holder: Holder | None = None  # of the rules in force; there as soon as the limiter has it
        self.forked()
        renew_in_children(self)

    def forked(self) -> None:
        """Another process is another node."""
        self.start = randbits(16)

    @property
    def shards(self) -> Shards:
        return {} if self.holder is None else self.holder.current.sharded


class Sharding:
    """For threads. It can what the store behind it can: no more, and no less."""

    # There if the store has them. None refers to this object, so that it is gone as soon as nobody uses it.
    single: Any
    hold: Any
    claim: Any
    expire: Any
    adjust: Any
    beat: Any

    def __init__(self, store: Store, home: Home | None = None) -> None:
        self.store = store
        self.home = home = home or Home()
        if isinstance(store, SingleStore):
            self.single = partial(_single, store, home)
        if isinstance(store, ReservingStore):
            self.hold, self.claim, self.expire = store.hold, store.claim, store.expire
            self.adjust = partial(_adjust, store, home)
        if isinstance(store, BeatingStore):
            self.beat = store.beat

    def check(self, groups: Sequence[Group]) -> Answers:
        return _check(self.store, self.home, groups)

    def refund(self, charges: Sequence[Charge]) -> None:
        self.store.refund(charges)  # each has the shard that was charged

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        self.store.reset(everywhere(checks, self.home.shards), clients)

    def close(self) -> None:
        self.store.close()


def _check(store: Store, home: Home, groups: Sequence[Group]) -> Answers:
    shards = home.shards
    if not shards:
        return store.check(groups)
    answers: Answers = run(decide(groups, shards, home.start), store.check)
    return answers


def _adjust(store: ReservingStore, home: Home, refunds: Sequence[Charge], more: Sequence[Check] = ()) -> None:
    store.adjust(refunds, run(surcharges(more, home.shards), store.check))


def _single(
    store: SingleStore, home: Home, template: Check, states: States | None = None
) -> Callable[[str, int], Decision]:
    count = home.shards.get(template.rule, 1)
    if count == 1:
        return store.single(template, states)
    ways = [store.single(part) for part in checks_of(template, count)]
    reading = Reading(Plan((template,)), states)

    def check(subject: str, cost: int) -> Decision:
        asked = template._replace(subject=subject, cost=cost)
        if cost != 1:
            (answer,) = _check(store, home, (Group((asked,)),))
            return _decision(reading, cast("Result", answer), cost, subject)
        search, away = Search(asked, count, home_of(subject, home.start)), None
        while True:
            try:
                decision = ways[search.layout[0][0]](subject, cost)
            except StoreUnavailable as error:
                away = _tried(search, error)
                continue
            if decision.allowed or _is_last(search, decision, away):
                return _concluded(reading, search, decision)

    return check


class AsyncSharding:
    """For asyncio."""

    single: Any
    hold: Any
    claim: Any
    expire: Any
    adjust: Any
    beat: Any

    def __init__(self, store: AsyncStore) -> None:
        self.store = store
        self.home = home = Home()
        if isinstance(store, AsyncSingleStore):
            self.single = partial(_single_async, store, home)
        if isinstance(store, AsyncReservingStore):
            self.hold, self.claim, self.expire = store.hold, store.claim, store.expire
            self.adjust = partial(_adjust_async, store, home)
        if isinstance(store, AsyncBeatingStore):
            self.beat = store.beat

    def check(self, groups: Sequence[Group]) -> Coroutine[Any, Any, Answers]:
        return _check_async(self.store, self.home, groups)

    async def refund(self, charges: Sequence[Charge]) -> None:
        await self.store.refund(charges)

    async def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        await self.store.reset(everywhere(checks, self.home.shards), clients)

    async def close(self) -> None:
        await self.store.close()


def _check_async(store: AsyncStore, home: Home, groups: Sequence[Group]) -> Coroutine[Any, Any, Answers]:
    shards = home.shards
    if not shards:
        return store.check(groups)
    return run_async(decide(groups, shards, home.start), store.check)


async def _adjust_async(
    store: AsyncReservingStore, home: Home, refunds: Sequence[Charge], more: Sequence[Check] = ()
) -> None:
    await store.adjust(refunds, await run_async(surcharges(more, home.shards), store.check))


def _single_async(
    store: AsyncSingleStore, home: Home, template: Check, states: States | None = None
) -> Callable[[str, int], Awaitable[Decision]]:
    count = home.shards.get(template.rule, 1)
    if count == 1:
        return store.single(template, states)
    ways = [store.single(part) for part in checks_of(template, count)]
    reading = Reading(Plan((template,)), states)

    async def check(subject: str, cost: int) -> Decision:
        asked = template._replace(subject=subject, cost=cost)
        if cost != 1:
            (answer,) = await _check_async(store, home, (Group((asked,)),))
            return _decision(reading, cast("Result", answer), cost, subject)
        search, away = Search(asked, count, home_of(subject, home.start)), None
        while True:
            try:
                decision = await ways[search.layout[0][0]](subject, cost)
            except StoreUnavailable as error:
                away = _tried(search, error)
                continue
            if decision.allowed or _is_last(search, decision, away):
                return _concluded(reading, search, decision)

    return check


def _tried(search: Search, error: StoreUnavailable) -> StoreUnavailable:
    """A shard could not be asked: another may do, as long as nothing was sent. Raises the error if there is none."""
    if error.sent or not search.passed_over():
        raise error
    return error


def _is_last(search: Search, decision: Decision, away: StoreUnavailable | None) -> bool:
    """Whether a shard's refusal is final. Raises the error of one that could not be asked: it may have had room."""
    search.told(decision.outcomes, decision.at_us)
    if search.advance():
        return False
    if away is not None:
        raise away
    return True


def _concluded(reading: Reading, search: Search, decision: Decision) -> Decision:
    """A shard's decision as one on the whole."""
    if decision.allowed:
        search.told(decision.outcomes, decision.at_us)
    whole = search.outcome(charged=decision.allowed)
    return single(reading, whole, decision.at_us, decision.costs[0], search.check.subject)


def _decision(reading: Reading, result: Result, cost: int, subject: str) -> Decision:
    now_us, (outcome,), _ = result
    return single(reading, outcome, now_us, cost, subject)
