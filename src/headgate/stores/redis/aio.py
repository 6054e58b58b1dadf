"""The Redis store for asyncio: a server, the master that Sentinel names, or a cluster.

Checks that are made in one tick of the event loop travel together to each server: see `aio_node`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar, cast

from headgate.core.alike import AsyncAlike, Pattern
from headgate.core.check import Answer, Charge, Check, Client, Extras, Group, Result, answered
from headgate.core.clock import Clock
from headgate.core.decision import Decision, Reading, States, decision_with
from headgate.core.ledger import Counted, Page, Swap
from headgate.core.plan import Plan as LimitPlan
from headgate.core.reservation import Claim, Expired
from headgate.core.share import Standing
from headgate.errors import StoreError, StoreUnavailable
from headgate.stores.observer import StoreObserver
from headgate.stores.program import Program, async_group_program, group_of
from headgate.stores.redis.aio_node import AsyncNode, Figures
from headgate.stores.redis.alike import AlikeCalls
from headgate.stores.redis.departures import Departures
from headgate.stores.redis.discovery import Discovery, Found
from headgate.stores.redis.exhausted import Exhausted
from headgate.stores.redis.faults import Address, turn
from headgate.stores.redis.options import read_url
from headgate.stores.redis.plans import Plan, Plans, Step
from headgate.stores.redis.slots import slot_of_key
from headgate.stores.redis.template import FIGURES, CommandTemplate, Templates, keys_of, outcomes_of
from headgate.stores.redis.topology import MAX_TURNS, Topology

T = TypeVar("T")

CLOSING_SECONDS: Final = 0.005  # what undoes something is given so much at least


class AsyncRedisStore:
    """Keeps state in Redis or Valkey, for the tasks of one event loop.

    `clock` is for tests: given one, its time is sent along instead of using the server's. `observer` is told of
    every call.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, observer: StoreObserver | None = None) -> None:
        self._target = read_url(url)
        self._options = self._target.options
        self._clock = clock
        self._observer = observer
        self._slotted = self._target.topology == "cluster"
        self._plans = Plans(self._options, self._now_us, slotted=self._slotted)
        remember_us = self._options.remember_us(own_time=clock is not None)
        self.exhausted = Exhausted(remember_us, clock, slotted=self._slotted)
        self._templates = Templates()
        self._departures = Departures(self._options.timeout, gathers=self._slotted)
        self._topology = Topology(self._make, self._drop)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening: dict[asyncio.Future[None], None] = {}  # those who wait to hear who serves what, in order
        self._tasks: set[asyncio.Task[Any]] = set()  # that nobody may cancel
        self._discovery: Discovery | None = None
        self._found: Found | None = None  # by discovery, in its thread
        self._is_telling = False  # the event loop of it
        self._closing = 0  # how many are
        self._only: AsyncNode | None = None  # the server, if it is always the same
        if self._target.topology == "single":
            self._only = AsyncNode(self._target.way, self._options, observer, self._now_us, self._departures)

    async def check(self, groups: Sequence[Group]) -> list[Answer]:
        exhausted = self.exhausted
        if exhausted.known:
            answers = exhausted.answers(groups)
            if any(answers):
                rest = [group for group, known in zip(groups, answers, strict=True) if not known]
                asked = iter(await self._decide(rest) if rest else [])
                return answered([known or next(asked) for known in answers])
        return answered(await self._decide(groups))

    async def _decide(self, groups: Sequence[Group]) -> list[Answer]:
        exhausted = self.exhausted
        answers: list[Answer] = []
        whole = self._only is not None and len(groups) <= self._options.max_batch
        for run in (groups,) if whole else self._plans.runs(groups):  # in turn: none may overtake the one before
            asked_us, epoch = exhausted.now_us(), exhausted.epoch
            if whole:
                assert self._only is not None
                try:
                    decided = cast("list[Answer]", await self._only.join(run))
                except StoreError as error:
                    decided = [error] * len(run)
            else:
                decided = await self._follow(self._plans.decide(run))
            exhausted.learn(run, decided, asked_us, epoch)
            answers += decided
            rest = self._plans.rest(decided, len(groups) - len(answers))
            if rest:
                return answers + rest
        return answers

    def compile(self, plan: LimitPlan, states: States | None = None, told: LimitPlan | None = None) -> Program:
        """Return the program of a plan: a command template, filled with keys and costs.

        What is more than limits that are charged, or spans slots of a cluster, is decided as a group.
        """
        grouped = async_group_program(self.check, plan, states, told)
        if not plan.limits or (self._slotted and len(plan.limits) > 1):
            return grouped
        decide = self._compile(plan, Reading(told or plan, states), Reading(told or plan, states, outcomes_of))

        def check(
            subjects: tuple[str, ...], costs: tuple[int, ...], peek: bool = False, extras: Extras | None = None
        ) -> Awaitable[Decision]:
            if peek or extras is not None:
                decision: Awaitable[Decision] = grouped(subjects, costs, peek, extras)
                return decision
            return decide(subjects, costs)

        return check

    def _compile(
        self, plan: LimitPlan, told: Reading, unread: Reading
    ) -> Callable[[tuple[str, ...], tuple[int, ...]], Awaitable[Decision]]:
        """Return what decides requests that are charged, and no more. `unread` reads figures as they are replied."""
        template, keys_for, exhausted = self._templates.of(plan), keys_of(plan), self.exhausted
        remembers = not any(limit.leased for limit in plan.limits)
        enforced = [FIGURES * at for at, limit in enumerate(plan.limits) if limit.enforced]
        only = self._only

        async def decide(subjects: tuple[str, ...], costs: tuple[int, ...]) -> Decision:
            keys = keys_for(subjects)
            name = keys[0] if len(keys) == 1 else keys
            if name in exhausted.known:
                known = exhausted.answer(name, template.terms_at(costs))
                if known is not None:
                    return decision_with(told, (known.now_us, subjects, costs, known.outcomes), False)
            asked_us, epoch = exhausted.now_us(), exhausted.epoch
            try:
                if only is not None:
                    now_us, figures = await only.check(template, keys, costs)
                else:
                    now_us, figures = await self._ask(plan, template, keys, subjects, costs)
            except StoreError:
                exhausted.clear()
                raise
            allowed = True
            for at in enforced:
                if figures[at]:
                    allowed = False
            decision = decision_with(unread, (now_us, subjects, costs, figures), allowed)
            if not allowed and remembers:
                result = Result(now_us, outcomes_of(decision.verdict))
                exhausted.put(name, template.terms_at(costs), result, asked_us, epoch)
            return decision

        return decide

    async def _ask(
        self,
        plan: LimitPlan,
        template: CommandTemplate,
        keys: tuple[str, ...],
        subjects: tuple[str, ...],
        costs: tuple[int, ...],
    ) -> Figures:
        """Ask whoever serves the keys of a request; somebody else, if they are turned away."""
        if asyncio.get_running_loop() is not self._loop:
            self._enter()
        slot = slot_of_key(keys[0]) if self._slotted else 0
        owners = self._topology.owners
        node = owners[slot] if owners else None
        deadline = 0.0
        try:
            if node is None:
                raise self._topology.unknown()
            answer = node.check(template, keys, costs, slot)
            deadline = self._departures.deadline  # that of this tick
            return await answer
        except StoreError as error:
            self.exhausted.clear()
            step = Step(slot, (group_of(plan, subjects, costs),))
            until = deadline or self._departures.now() + self._options.timeout
            result = await self._decide_elsewhere(node, step, error, until)
            return result.now_us, [figure for outcome in result.outcomes for figure in outcome]

    @property
    def most_alike(self) -> int:
        return self._options.max_batch

    def alike(self, pattern: Pattern) -> AsyncAlike | None:
        """The short way for requests that are alike. On a cluster, each is somewhere else: there is none."""
        if self._only is None:
            return None
        return AlikeCalls(pattern, self._only, self.exhausted, self._now_us, self._options.prefix)

    async def refund(self, charges: Sequence[Charge]) -> None:
        try:
            await self._follow(self._plans.refund(charges))
        finally:  # a call that failed may have been executed
            self.exhausted.drop(charge.check for charge in charges)

    async def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        try:
            await self._follow(self._plans.reset(checks, clients))
        finally:
            self.exhausted.drop(checks)

    async def hold(self, reservation_id: str, record: str, ttl_us: int) -> None:
        await self._follow(self._plans.hold(reservation_id, record, ttl_us))

    async def renew(self, reservation_id: str, record: str, ttl_us: int) -> bool:
        return await self._follow(self._plans.renew(reservation_id, record, ttl_us))

    async def claim(self, reservation_id: str) -> Claim | None:
        return await self._follow(self._plans.claim(reservation_id))

    async def expire(self) -> Expired:
        return await self._follow(self._plans.expire())

    async def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> list[int]:
        try:
            return await self._follow(self._plans.adjust(refunds, surcharges))
        finally:
            self.exhausted.drop([*(charge.check for charge in refunds), *surcharges])

    async def beat(self, name: str, node: str, ttl_us: int) -> Standing:
        return await self._follow(self._plans.beat(name, node, ttl_us))

    async def counts(self, checks: Sequence[Check]) -> list[Counted | None]:
        return await self._follow(self._plans.counts(checks))

    async def read(self, names: Sequence[str]) -> list[Page]:
        return await self._follow(self._plans.read(names))

    async def swap(self, swaps: Sequence[Swap]) -> list[bool]:
        return await self._follow(self._plans.swap(swaps))

    async def close(self) -> None:
        """Let what is under way end, and give back connections. Who comes meanwhile may be refused; who comes later
        opens others, in whatever event loop."""
        self._closing += 1
        try:
            if self._tasks:
                await asyncio.wait(self._tasks)
            if self._only is not None:
                await self._only.close()
            elif self._topology.nodes:
                await asyncio.wait([self._apart(node.close()) for node in self._topology.nodes])
        finally:
            self._closing -= 1
            if not self._closing:
                self._begin_anew()

    def _begin_anew(self) -> None:
        """After it was closed."""
        if self._only is not None:
            self._only.reopen()
            return
        for node in self._topology.nodes:
            if not node.is_closed:  # whoever was closing it was cancelled, or it has just been found
                self._apart(node.close())
        if self._discovery is not None:
            self._discovery.close()
        self._discovery = self._loop = None
        self._tell_listeners()

    def _make(self, address: Address) -> AsyncNode:
        way = self._target.way.to(address)
        return AsyncNode(way, self._options, self._observer, self._now_us, self._departures)

    def _drop(self, node: AsyncNode) -> None:
        self._apart(node.close())
        if self._observer is not None:
            self._observer.breaker(node.name, "gone")

    def _now_us(self) -> int | None:
        return None if self._clock is None else self._clock.now_us()

    def _apart(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Have something done to its end, even if whoever wants it is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Who serves what

    def _enter(self) -> Discovery:
        """Return the discovery of this event loop."""
        loop = asyncio.get_running_loop()
        if self._discovery is None or loop is not self._loop:
            if self._loop is not None and not self._loop.is_closed():
                raise RuntimeError("this store belongs to another event loop: make one for each loop")
            if self._discovery is not None:
                self._discovery.close()
            self._loop = loop
            self._listening.clear()
            self._found, self._is_telling = None, False
            self._departures = Departures(self._options.timeout, gathers=self._slotted)
            self._topology = Topology(self._make, self._drop)
            self._discovery = Discovery(self._target, self._hear, self._topology.known)
        return self._discovery

    def _hear(self, found: Found) -> bool:
        """Take what discovery has found, in its thread, to the event loop. Return whether there is one."""
        loop = self._loop
        if loop is None:  # the store was closed meanwhile
            return False
        self._found = found
        try:
            if not self._is_telling:  # else the event loop is about to know; unless nobody runs it
                self._is_telling = True
                loop.call_soon_threadsafe(self._heard)
        except RuntimeError:  # the event loop was
            assert loop.is_closed()
            return False
        return not loop.is_closed()

    def _heard(self) -> None:
        self._is_telling = False  # first: whatever is found from now on is told again
        found = self._found
        if found is None:  # the store was closed meanwhile
            return
        if isinstance(found, StoreError):
            self._topology.failed(found)
        else:
            self._topology.told(found)
        self._tell_listeners()

    def _tell_listeners(self) -> None:
        for listener in self._listening:
            if not listener.done():
                listener.set_result(None)
        self._listening.clear()

    async def _wait(self, known: int, deadline: float) -> None:
        """Until something newer is heard than what is known."""
        assert self._loop is not None
        if self._topology.generation > known:
            return
        listener: asyncio.Future[None] = self._loop.create_future()
        self._listening[listener] = None
        await asyncio.wait((listener,), timeout=max(0.0, deadline - self._departures.now()))
        self._listening.pop(listener, None)

    async def _serving(self, slot: int, deadline: float) -> AsyncNode:
        """Who serves a slot. Waits for the first look. Raises `StoreError` when nobody knows."""
        node = self._topology.serving(slot)
        if node is None:
            discovery, known = self._enter(), self._topology.generation
            if discovery.ask() or known == 0:
                await self._wait(known, deadline)
            node = self._topology.serving(slot)
            if node is None:
                raise self._topology.unknown()
        return node

    # Steps

    async def _decide_elsewhere(self, node: AsyncNode | None, step: Step, error: StoreError, deadline: float) -> Any:
        """What comes of a group that `node` has not decided."""
        if node is None:
            answer = await self._take(step, deadline)
        else:
            answer = await self._elsewhere(node, step, error, deadline, 1)
        if isinstance(answer, StoreError):
            raise answer
        if isinstance(answer[0], StoreError):
            raise answer[0]
        return answer[0]

    async def _follow(self, plan: Plan[T]) -> T:
        """Take the steps of a plan, and return what comes of it; even if the caller is cancelled meanwhile."""
        if self._only is None:
            if self._closing:
                raise StoreUnavailable("the store was closed", sent=False)
            self._enter()
            return await asyncio.shield(self._apart(self._followed(plan)))
        return await self._followed(plan)

    async def _followed(self, plan: Plan[T]) -> T:
        departures = self._departures
        deadline = departures.now() + self._options.timeout
        try:
            steps = next(plan)
            while True:
                until = deadline
                if any(step.closing for step in steps):
                    until = max(deadline, departures.now() + CLOSING_SECONDS)
                if len(steps) == 1:
                    answers = [await self._take(steps[0], until)]
                else:
                    answers = await asyncio.gather(*(self._take(step, until) for step in steps))
                steps = plan.send(answers)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _take(
        self,
        step: Step,
        deadline: float,
        node: AsyncNode | None = None,
        *,
        asking: bool = False,
        alone: bool = False,
        turns: int = 0,
    ) -> Any:
        """The answer to a step: what came of it, or the `StoreError`."""
        if step.pause:
            left = deadline - self._departures.now()
            await asyncio.sleep(max(0.0, min(step.pause, left)))
            step = step._replace(pause=0.0)
        try:
            node = node or self._only or await self._serving(step.slot, deadline)
            return await node.join(step.groups, step.command, deadline, step.slot, asking=asking, alone=alone)
        except StoreError as error:
            if self._only is not None or node is None:
                return error
            return await self._elsewhere(node, step, error, deadline, turns + 1, asking=asking)

    async def _elsewhere(
        self, node: AsyncNode, step: Step, error: StoreError, deadline: float, turns: int, *, asking: bool = False
    ) -> Any:
        """The answer to a step by another server, if it was not executed; else, or if there is none, the error."""
        if self._closing and node.is_closed:
            return error
        discovery = self._enter()
        taken = turn(error, node.host)
        if taken is None:
            discovery.ask()
            return error
        now = self._departures.now()
        if (turns > MAX_TURNS and not taken.pause) or now >= deadline:
            return error
        if taken.down:
            discovery.ask()
            if not self._topology.outage.is_recent(now) or now + taken.pause >= deadline:
                return error
            return await self._take(step._replace(pause=taken.pause), deadline, turns=turns)
        if taken.pause:
            steps = [step._replace(pause=taken.pause, groups=(group,)) for group in step.groups]
            if len(steps) <= 1:
                steps = [step._replace(pause=taken.pause)]
            parts = [self._take(one, deadline, node, asking=asking, alone=True, turns=turns) for one in steps]
            if len(parts) == 1:
                return await parts[0]
            answers = await asyncio.gather(*parts)  # each by itself: they need not be where the others are
            return [answer if isinstance(answer, StoreError) else answer[0] for answer in answers]
        known = self._topology.generation
        soon = discovery.ask() if taken.look else False
        if taken.address is not None:
            named = self._topology.turned(step.slot, taken)
            return await self._take(step, deadline, named, asking=taken.asking, turns=turns)
        if taken.wait and soon:
            await self._wait(known, deadline)
        if self._topology.serving(step.slot) in (node, None):
            return error
        return await self._take(step, deadline, turns=turns)
