"""The Redis store for asyncio: a server, the master that Sentinel names, or a cluster.

Checks that are made in one tick of the event loop go to each server together: see `aio_node`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from headgate.core.check import Answer, Extras, Group, require_any_answer
from headgate.core.clock import Clock
from headgate.core.decision import Decision
from headgate.core.plan import Plan
from headgate.core.reading import WarningStates
from headgate.errors import StoreError, StoreUnavailable
from headgate.stores.program import Program, async_group_program
from headgate.stores.protocol import StoreObserver
from headgate.stores.redis.aio_call import PlanCheck
from headgate.stores.redis.aio_discovery import AsyncDiscovery
from headgate.stores.redis.aio_node import AsyncNode
from headgate.stores.redis.batcher import NO_SLOT, Batcher, WaitingStep
from headgate.stores.redis.denial_cache import DenialCache
from headgate.stores.redis.encoding import CommandTemplate, EncodedRequest, Encoder
from headgate.stores.redis.faults import Address, find_redirect
from headgate.stores.redis.operations import RedisOperations
from headgate.stores.redis.options import read_url
from headgate.stores.redis.program import Costs, PlanProgram, Requests, Subjects
from headgate.stores.redis.slot_planner import SlotPlanner
from headgate.stores.redis.steps import Figures, SlotStep, Steps, by_request, take_one, unwrap
from headgate.stores.redis.topology import MAX_REDIRECTS, Topology, slot_of_key

T = TypeVar("T")

CLOSING_SECONDS: Final = 0.005  # the least time for a step that undoes something


class AsyncRedisStore(RedisOperations):
    """Keeps state in Redis or Valkey, for the tasks of one event loop.

    `clock` is for tests: if it is set, its time is sent instead of using the server's clock. `observer` receives every
    call.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, observer: StoreObserver | None = None) -> None:
        self._target = read_url(url)
        self._options = self._target.options
        self._clock = clock
        self._observer = observer
        self._slotted = self._target.topology == "cluster"
        remember_us, prefix = self._options.remember_us(own_time=clock is not None), self._options.prefix
        denials = DenialCache(remember_us, clock, slotted=self._slotted, prefix=prefix)
        encoder = Encoder(prefix)
        planner = SlotPlanner(self._options, encoder, self._now_us, slotted=self._slotted)
        super().__init__(encoder, planner, denials, self._now_us, slotted=self._slotted)
        self._batcher = Batcher(self._options.timeout, gathers=self._slotted)
        self._topology = Topology(self._make, self._drop)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()  # that must not be cancelled
        self._discovery: AsyncDiscovery | None = None
        self._closing = 0  # how many `close` calls are in progress
        self._only: AsyncNode | None = None  # the server, if there is only one
        if self._target.topology == "single":
            self._only = AsyncNode(self._target.params, self._options, observer, self._now_us, self._batcher)

    async def check(self, groups: Sequence[Group]) -> list[Answer]:
        denials = self.denials
        if denials.known:
            answers = denials.answers(groups)
            if any(answers):
                rest = [group for group, known in zip(groups, answers, strict=True) if not known]
                decided = iter(await self._decide(rest) if rest else [])
                return require_any_answer([known or next(decided) for known in answers])
        return require_any_answer(await self._decide(groups))

    async def _decide(self, groups: Sequence[Group]) -> list[Answer]:
        denials = self.denials
        answers: list[Answer] = []
        for run in self._planner.runs(groups):  # one after the other: none may overtake the one before
            sent_us, epoch = denials.now_us(), denials.epoch
            decided = await self._run(self._planner.decide(run))
            denials.learn(run, decided, sent_us, epoch)
            answers += decided
            rest = self._planner.rest(decided, len(groups) - len(answers))
            if rest:
                return answers + rest
        return answers

    def compile(self, plan: Plan, states: WarningStates | None = None, shown: Plan | None = None) -> Program:
        """Return the program of a plan: a command template, filled with keys and costs.

        On a cluster, a request with extras, or with limits in several slots, is decided slot by slot.
        """
        by_slot = async_group_program(self.check, plan, states, shown)
        if not plan.limits:
            return by_slot
        program = PlanProgram(plan, self._encoder, self.denials, states, shown or plan)
        denials, keys_of, only = self.denials, program.keys, self._only
        in_slots = self._slotted and len(plan.limits) > 1

        def check(
            subjects: tuple[str, ...], costs: tuple[int, ...], peek: bool = False, extras: Extras | None = None
        ) -> Awaitable[Decision]:
            if peek or extras is not None or in_slots:
                if self._slotted and (in_slots or extras is not None):
                    decision: Awaitable[Decision] = by_slot(subjects, costs, peek, extras)
                    return decision
                return self._check_special(program, subjects, costs, peek, extras)
            keys = keys_of(subjects)
            if denials.known:
                known = program.known_denial(keys, subjects, costs)
                if known is not None:
                    return _resolved(known)
            if only is None:
                return self._check_at_owner(program, keys, subjects, costs)
            try:
                return only.decide(PlanCheck(program, denials, keys, subjects, costs))
            except StoreError:
                denials.clear()
                raise

        if not self._slotted:
            check.many = partial(self._check_many, program)  # type: ignore[attr-defined]
        return check

    async def _check_special(
        self, program: PlanProgram, subjects: Subjects, costs: Costs, peek: bool, extras: Extras | None
    ) -> Decision:
        """Decide a request that is a peek or has extras."""
        template, request = program.encode(subjects, costs, peek, extras)
        figures = await self._ask(template, request)
        return program.read(template, figures, subjects, costs, extras)

    async def _check_at_owner(
        self, program: PlanProgram, keys: tuple[str, ...], subjects: Subjects, costs: Costs
    ) -> Decision:
        """Decide a request on the server that has its keys, where there are several servers."""
        sent_us, epoch = self.denials.now_us(), self.denials.epoch
        now_us, figures = await self._ask(program.template, EncodedRequest(keys, costs))
        return program.decision(now_us, figures, keys, subjects, costs, sent_us, epoch)

    async def _check_many(self, program: PlanProgram, requests: Requests) -> list[Decision | StoreError | None]:
        """Decide requests of one plan in as few calls as possible. One server has all of their keys."""
        batch, size, denials = program.batch(requests), self._options.max_batch, self.denials
        for start in range(0, len(batch.sent), size):  # one after the other: none may overtake the one before
            step = SlotStep(0, program.template, batch.sent[start : start + size])
            sent_us, epoch = denials.now_us(), denials.epoch
            try:
                answer = await self._run(take_one(step))
            except StoreError as error:
                denials.clear()
                program.put_decisions(batch, start, error, requests, sent_us, epoch)
                break
            program.put_decisions(batch, start, answer, requests, sent_us, epoch)
        return batch.decided

    async def _ask(self, template: CommandTemplate, request: EncodedRequest) -> Figures:
        """Call the server that has a request's keys, and follow redirects."""
        answer: asyncio.Future[Figures]
        only = self._only
        if only is not None:
            try:
                answer = only.take(WaitingStep(template, (request,)))
                return await answer
            except StoreError:
                self.denials.clear()
                raise
        if asyncio.get_running_loop() is not self._loop:
            self._enter()
        slot = slot_of_key(request.keys[0]) if self._slotted else 0
        owners = self._topology.owners
        node = owners[slot] if owners else None
        deadline = 0.0
        try:
            if node is None:
                raise self._topology.unknown_error()
            answer = node.take(WaitingStep(template, (request,), slot))
            deadline = self._batcher.deadline  # of this tick
            return await answer
        except StoreError as error:
            self.denials.clear()
            step = SlotStep(slot, template, (request,))
            until = deadline or self._batcher.now() + self._options.timeout
            return await self._decide_elsewhere(node, step, error, until)

    async def close(self) -> None:
        """Wait for calls in progress, and close connections.

        Calls in the meantime may be refused; later ones open new connections, in any event loop.
        """
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
        """Reset after a close."""
        if self._only is not None:
            self._only.reopen()
            return
        for node in self._topology.nodes:
            if not node.is_closed:  # its closing was cancelled, or it was just found
                self._apart(node.close())
        if self._discovery is not None:
            self._discovery.close()
        self._discovery = self._loop = None

    def _make(self, address: Address) -> AsyncNode:
        params = self._target.params.to(address)
        return AsyncNode(params, self._options, self._observer, self._now_us, self._batcher)

    def _drop(self, node: AsyncNode) -> None:
        self._apart(node.close())
        if self._observer is not None:
            self._observer.breaker(node.name, "gone")

    def _now_us(self) -> int | None:
        return None if self._clock is None else self._clock.now_us()

    def _apart(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine to its end, even if its caller is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Topology

    def _enter(self) -> AsyncDiscovery:
        """Return the discovery of this event loop."""
        loop = asyncio.get_running_loop()
        if self._discovery is None or loop is not self._loop:
            if self._loop is not None and not self._loop.is_closed():
                raise RuntimeError("this store belongs to another event loop: create one per loop")
            if self._discovery is not None:
                self._discovery.close()
            self._loop = loop
            self._batcher = Batcher(self._options.timeout, gathers=self._slotted)
            self._topology = Topology(self._make, self._drop)
            self._discovery = AsyncDiscovery(self._target, self._topology, loop)
        return self._discovery

    async def _serving(self, slot: int, deadline: float) -> AsyncNode:
        """Return the server of a slot, after the first discovery. Raises `StoreError` if it is unknown."""
        node = self._topology.serving(slot)
        if node is None:
            discovery, known = self._enter(), self._topology.generation
            if discovery.ask() or known == 0:
                await discovery.wait(known, deadline - self._batcher.now())
            node = self._topology.serving(slot)
            if node is None:
                raise self._topology.unknown_error()
        return node

    # Steps

    async def _decide_elsewhere(
        self, node: AsyncNode | None, step: SlotStep, error: StoreError, deadline: float
    ) -> Figures:
        """Decide a request that `node` has not decided."""
        if node is None:
            answer = await self._take(step, deadline)
        else:
            answer = await self._elsewhere(node, step, error, deadline, 1)
        (figures,) = unwrap(answer)
        decided: Figures = figures
        return decided

    def _slot_elsewhere(self, slot: int) -> int | None:
        return self._topology.following(slot)

    async def _run(self, steps: Steps[T]) -> T:
        """Take steps, and return their result. Completes even if the caller is cancelled."""
        if self._only is None:
            if self._closing:
                raise StoreUnavailable("the store was closed", sent=False)
            self._enter()
            return await asyncio.shield(self._apart(self._take_steps(steps)))
        return await self._take_steps(steps)

    async def _take_steps(self, plan: Steps[T]) -> T:
        batcher = self._batcher
        deadline = batcher.now() + self._options.timeout
        try:
            steps = next(plan)
            while True:
                until = deadline
                if any(step.closing for step in steps):
                    until = max(deadline, batcher.now() + CLOSING_SECONDS)
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
        step: SlotStep,
        deadline: float,
        node: AsyncNode | None = None,
        *,
        asking: bool = False,
        alone: bool = False,
        redirects: int = 0,
    ) -> Any:
        """Return the answer to a step: its result, or the `StoreError`."""
        if step.pause:
            left = deadline - self._batcher.now()
            await asyncio.sleep(max(0.0, min(step.pause, left)))
            step = step._replace(pause=0.0)
        try:
            node = node or self._only or await self._serving(step.slot, deadline)
            slot = NO_SLOT if self._only is not None else step.slot
            _, template, requests, command, *_ = step
            waiting = WaitingStep(template, requests, slot, command, asking=asking, alone=alone, ordered=step.ordered)
            answer = await node.take(waiting, deadline)
            return answer if template is None else by_request(step, *answer)
        except StoreError as error:
            if self._only is not None or node is None:
                return error
            return await self._elsewhere(node, step, error, deadline, redirects + 1, asking=asking)

    async def _elsewhere(
        self,
        node: AsyncNode,
        step: SlotStep,
        error: StoreError,
        deadline: float,
        redirects: int,
        *,
        asking: bool = False,
    ) -> Any:
        """Return another server's answer to a step that was not executed; the error if it was, or if there is none."""
        if self._closing and node.is_closed:
            return error
        discovery = self._enter()
        taken = find_redirect(error, node.host)
        if taken is None:
            discovery.ask()
            return error
        now = self._batcher.now()
        if (redirects > MAX_REDIRECTS and not taken.pause) or now >= deadline:
            return error
        if taken.down:
            discovery.ask()
            if not self._topology.outage.is_recent(now) or now + taken.pause >= deadline:
                return error
            return await self._take(step._replace(pause=taken.pause), deadline, redirects=redirects)
        if taken.pause:
            steps = [step._replace(pause=taken.pause, requests=(request,)) for request in step.requests]
            if len(steps) <= 1:
                steps = [step._replace(pause=taken.pause)]
            parts = [self._take(one, deadline, node, asking=asking, alone=True, redirects=redirects) for one in steps]
            if len(parts) == 1:
                return await parts[0]
            answers = await asyncio.gather(*parts)  # separately: they may be on different servers
            return [answer if isinstance(answer, StoreError) else answer[0] for answer in answers]
        known = self._topology.generation
        soon = discovery.ask() if taken.look else False
        if taken.address is not None:
            named = self._topology.follow(step.slot, taken)
            return await self._take(step, deadline, named, asking=taken.asking, redirects=redirects)
        if taken.wait and soon:
            await discovery.wait(known, deadline - self._batcher.now())
        if self._topology.serving(step.slot) in (node, None):
            return error
        return await self._take(step, deadline, redirects=redirects)


async def _resolved(decision: Decision) -> Decision:
    """Return a decision that is known already, for callers that await it."""
    return decision
