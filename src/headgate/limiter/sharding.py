"""Rules with `shards`, at work: a store in front of the store, which divides what is theirs. The rest passes by."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import partial
from secrets import randbits
from typing import Any, Final

from headgate.core.check import Answer, Charge, Check, Client, Extras, Group
from headgate.core.deciding import decide as decide_all
from headgate.core.decision import Decision, States
from headgate.core.fork import renew_in_children
from headgate.core.plan import Plan
from headgate.core.shards import Search, checks_of
from headgate.errors import StoreUnavailable
from headgate.limiter.steps import run, run_async
from headgate.rules.holder import Holder
from headgate.stores.program import Program, async_group_program, group_program
from headgate.stores.protocol import (
    AsyncBeatingStore,
    AsyncCompilingStore,
    AsyncReservingStore,
    AsyncStore,
    BeatingStore,
    CompilingStore,
    ReservingStore,
    Store,
)
from headgate.stores.sharding import Shards, decide, everywhere, home_of, surcharges

Answers = Sequence[Answer]
ONE: Final = (1,)  # the costs of a request that any shard can hold by itself


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
    compile: Any
    hold: Any
    renew: Any
    claim: Any
    expire: Any
    adjust: Any
    beat: Any

    def __init__(self, store: Store, home: Home | None = None) -> None:
        self.store = store
        self.home = home = home or Home()
        self.compile = partial(_compile, store, home)
        if isinstance(store, ReservingStore):
            self.hold, self.renew, self.claim, self.expire = store.hold, store.renew, store.claim, store.expire
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


def _adjust(
    store: ReservingStore, home: Home, refunds: Sequence[Charge], more: Sequence[Check] = ()
) -> Sequence[int] | None:
    return store.adjust(refunds, run(surcharges(more, home.shards), store.check))


def _compile(store: Store, home: Home, plan: Plan, states: States | None = None) -> Program:
    """The program of a plan. One that has no shards is the store's own."""
    shards = home.shards
    counts = [shards.get(limit.rule, 1) for limit in plan.limits]
    if max(counts, default=1) == 1:
        if isinstance(store, CompilingStore):
            return store.compile(plan, states)
        return group_program(store.check, plan, states)
    grouped = group_program(partial(_check, store, home), plan, states)
    if len(counts) != 1 or plan.shadows:
        return grouped
    programs = [_compile(store, home, Plan((part,))) for part in _parts(plan, counts[0])]

    def check(
        subjects: tuple[str, ...],
        costs: tuple[int, ...],
        peek: bool = False,
        extras: Extras | None = None,
    ) -> Any:
        if costs != ONE or peek or extras is not None:
            return grouped(subjects, costs, peek, extras)
        search, away = _search(plan, subjects, counts[0], home), None
        while True:
            try:
                decision: Decision = programs[search.layout[0][0]](subjects, costs)
            except StoreUnavailable as error:
                away = _tried(search, error)
                continue
            if decision.allowed or _is_last(search, decision, away):
                return _concluded(plan, states, search, decision)

    return check


class AsyncSharding:
    """For asyncio."""

    compile: Any
    hold: Any
    renew: Any
    claim: Any
    expire: Any
    adjust: Any
    beat: Any

    def __init__(self, store: AsyncStore) -> None:
        self.store = store
        self.home = home = Home()
        self.compile = partial(_compile_async, store, home)
        if isinstance(store, AsyncReservingStore):
            self.hold, self.renew, self.claim, self.expire = store.hold, store.renew, store.claim, store.expire
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
) -> Sequence[int] | None:
    return await store.adjust(refunds, await run_async(surcharges(more, home.shards), store.check))


def _compile_async(store: AsyncStore, home: Home, plan: Plan, states: States | None = None) -> Program:
    """The program of a plan, awaited."""
    shards = home.shards
    counts = [shards.get(limit.rule, 1) for limit in plan.limits]
    if max(counts, default=1) == 1:
        if isinstance(store, AsyncCompilingStore):
            return store.compile(plan, states)
        return async_group_program(store.check, plan, states)
    grouped = async_group_program(partial(_check_async, store, home), plan, states)
    if len(counts) != 1 or plan.shadows:
        return grouped
    programs = [_compile_async(store, home, Plan((part,))) for part in _parts(plan, counts[0])]

    async def check(
        subjects: tuple[str, ...],
        costs: tuple[int, ...],
        peek: bool = False,
        extras: Extras | None = None,
    ) -> Any:
        if costs != ONE or peek or extras is not None:
            return await grouped(subjects, costs, peek, extras)
        search, away = _search(plan, subjects, counts[0], home), None
        while True:
            try:
                decision: Decision = await programs[search.layout[0][0]](subjects, costs)
            except StoreUnavailable as error:
                away = _tried(search, error)
                continue
            if decision.allowed or _is_last(search, decision, away):
                return _concluded(plan, states, search, decision)

    return check


def _parts(plan: Plan, shards: int) -> list[Check]:
    """The limits of a plan's only rule, by shard: under an id that has no shards."""
    return [part._replace(rule="") for part in checks_of(plan.limits[0], shards)]


def _search(plan: Plan, subjects: tuple[str, ...], shards: int, home: Home) -> Search:
    """A request of cost 1, which any shard can hold by itself."""
    (subject,) = subjects
    return Search(plan.limits[0]._replace(subject=subject, cost=1), shards, home_of(subject, home.start))


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


def _concluded(plan: Plan, states: States | None, search: Search, decision: Decision) -> Decision:
    """A shard's decision as one on the whole."""
    if decision.allowed:
        search.told(decision.outcomes, decision.at_us)
    whole = (search.outcome(charged=decision.allowed),)
    return decide_all(plan, whole, decision.at_us, costs=decision.costs, subjects=decision.subjects, states=states)
