"""The Redis store for threads: a server, the master that Sentinel names, or a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from threading import Condition
from time import monotonic, sleep
from typing import Any, Final, NamedTuple, TypeVar

from headgate.core.check import Answer, Extras, Group, require_any_answer
from headgate.core.clock import Clock
from headgate.core.decision import Decision
from headgate.core.fork import renew_in_children
from headgate.core.plan import Plan
from headgate.core.reading import WarningStates
from headgate.errors import StoreError
from headgate.stores.process_clock import PROCESS
from headgate.stores.program import Program, group_program
from headgate.stores.protocol import StoreObserver
from headgate.stores.redis import script
from headgate.stores.redis.denial_cache import DenialCache
from headgate.stores.redis.discovery import Discovery, Found
from headgate.stores.redis.encoding import CommandTemplate, EncodedRequest, Encoder
from headgate.stores.redis.faults import Address, fault, find_redirect
from headgate.stores.redis.in_flight import ThreadCall
from headgate.stores.redis.node import ServerNode
from headgate.stores.redis.operations import RedisOperations
from headgate.stores.redis.options import read_url
from headgate.stores.redis.program import PlanProgram, Requests
from headgate.stores.redis.script import EncodedCommand
from headgate.stores.redis.slot_planner import SlotPlanner
from headgate.stores.redis.steps import Figures, SlotStep, Steps, by_request, take_one, unwrap
from headgate.stores.redis.topology import MAX_REDIRECTS, Topology, slot_of_key

T = TypeVar("T")

TURN: Final = 0.001  # seconds to wait for one of several servers before checking the others
CLOSING_SECONDS: Final = 0.005  # the least time for a step that undoes something


class _PendingStep(NamedTuple):
    """A step that has no answer yet."""

    answer_index: int
    step: SlotStep
    part: int | None = None  # index in the answer, which is a list: the step is one group of several
    node: ServerNode | None = None  # None: the server of its slot
    asking: bool = False
    redirects: int = 0


class RedisStore(RedisOperations):
    """Keeps state in Redis or Valkey. Threads share a few connections to each server.

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
        self._topology = Topology(self._make, self._drop)
        self._heard = Condition()  # notified when the topology changes
        self._discovery: Discovery | None = None
        self._only: ServerNode | None = None  # the server, if there is only one
        if self._target.topology == "single":
            self._only = ServerNode(self._target.params, self._options, observer)
        else:
            self._discovery = Discovery(self._target, self._hear, self._topology.candidates)
            self._discovery.ask()
        renew_in_children(self)

    def check(self, groups: Sequence[Group]) -> list[Answer]:
        denials = self.denials
        if denials.known:
            answers = denials.answers(groups)
            if any(answers):
                decided = iter(self._decide([group for group, known in zip(groups, answers, strict=True) if not known]))
                return require_any_answer([known or next(decided) for known in answers])
        return require_any_answer(self._decide(groups))

    def _decide(self, groups: Sequence[Group]) -> list[Answer]:
        denials = self.denials
        answers: list[Answer] = []
        for run in self._planner.runs(groups):  # one after the other: none may overtake the one before
            sent_us, epoch = denials.now_us(), denials.epoch
            decided = self._run(self._planner.decide(run))
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
        by_slot = group_program(self.check, plan, states, shown)
        if not plan.limits:
            return by_slot
        program = PlanProgram(plan, self._encoder, self.denials, states, shown or plan)
        denials, template, keys_of = self.denials, program.template, program.keys
        slotted, several = self._slotted, len(plan.limits) > 1

        def check(
            subjects: tuple[str, ...], costs: tuple[int, ...], peek: bool = False, extras: Extras | None = None
        ) -> Decision:
            if slotted and (several or extras is not None):
                decision: Decision = by_slot(subjects, costs, peek, extras)
                return decision
            if peek or extras is not None:
                special, request = program.encode(subjects, costs, peek, extras)
                figures = self._ask(special, request, monotonic())
                return program.read(special, figures, subjects, costs, extras)
            keys = keys_of(subjects)
            if denials.known:
                known = program.known_denial(keys, subjects, costs)
                if known is not None:
                    return known
            epoch, began = denials.epoch, monotonic()
            now_us, replied = self._ask(template, EncodedRequest(keys, costs), began)
            sent_us = round(began * 1_000_000) if self._clock is None else now_us
            return program.decision(now_us, replied, keys, subjects, costs, sent_us, epoch)

        if not slotted:
            check.many = partial(self._check_many, program)  # type: ignore[attr-defined]
        return check

    def _check_many(self, program: PlanProgram, requests: Requests) -> list[Decision | StoreError | None]:
        """Decide requests of one plan in as few calls as possible. One server has all of their keys."""
        batch, size, denials = program.batch(requests), self._options.max_batch, self.denials
        for start in range(0, len(batch.sent), size):  # one after the other: none may overtake the one before
            step = SlotStep(0, program.template, batch.sent[start : start + size])
            sent_us, epoch = denials.now_us(), denials.epoch
            try:
                answer = self._run(take_one(step))
            except StoreError as error:
                denials.clear()
                program.put_decisions(batch, start, error, requests, sent_us, epoch)
                break
            program.put_decisions(batch, start, answer, requests, sent_us, epoch)
        return batch.decided

    def _ask(self, template: CommandTemplate, request: EncodedRequest, began: float) -> Figures:
        """Call the server that has a request's keys, and follow redirects. Raises `StoreError`."""
        only, timeout = self._only, self._options.timeout
        deadline = PROCESS.now(began) + timeout
        command = template.encode(request, None if self._clock is None else self._clock.now_us())
        try:
            reply = self._ask_owner(command, deadline) if only is None else only.ask(command, deadline)
            if reply is None:  # it was redirected
                step = SlotStep(slot_of_key(request.keys[0]) if self._slotted else 0, template, (request,))
                ((figures,),) = map(unwrap, self._take_all([step], deadline))
                return figures  # type: ignore[no-any-return]
            if reply.__class__ is not list or len(reply) != 1 + template.figures:
                raise _fault_of(reply, timeout)
        except StoreError:
            self.denials.clear()
            raise
        return reply[0], reply[1:]

    def close(self) -> None:
        if self._discovery is not None:
            self._discovery.close()
            self._topology.forget()
        for node in self._nodes():
            node.close()

    def reset_after_fork(self) -> None:
        """Reset in a forked child: the connections are the parent's."""
        self._heard = Condition()
        self._topology.reset_after_fork()
        for node in self._nodes():
            node.forget()

    def _nodes(self) -> list[ServerNode]:
        return self._topology.nodes if self._only is None else [self._only]

    def _make(self, address: Address) -> ServerNode:
        return ServerNode(self._target.params.to(address), self._options, self._observer)

    def _drop(self, node: ServerNode) -> None:
        node.close()
        if self._observer is not None:
            self._observer.breaker(node.name, "gone")

    def _now_us(self) -> int | None:
        return None if self._clock is None else self._clock.now_us()

    def _hear(self, found: Found) -> bool:
        """Record a result of discovery. Called in its thread."""
        with self._heard:
            if isinstance(found, StoreError):
                self._topology.note_failure(found)
            else:
                self._topology.set_owners(found)
            self._heard.notify_all()
        return True

    def _ask_owner(self, command: EncodedCommand, deadline: float) -> Any:
        """Return the reply of the server that has the first key, which may be an exception of redis-py.

        Returns None if nothing was executed and it may be retried elsewhere. Raises `StoreError`.
        """
        assert self._discovery is not None
        node = self._topology.serving(slot_of_key(str(command.command[3])) if self._slotted else 0)
        if node is None:
            return None
        try:
            reply = node.ask(command, deadline)
            if not isinstance(reply, Exception):
                return reply
            raise fault(reply, self._options.timeout) from reply
        except StoreError as error:
            if find_redirect(error, node.host) is not None:
                return None
            self._discovery.ask()
            raise

    def _slot_elsewhere(self, slot: int) -> int | None:
        return self._topology.following(slot)

    def _run(self, steps: Steps[T]) -> T:
        """Take steps, and return their result."""
        deadline = PROCESS.read() + self._options.timeout
        try:
            wanted = next(steps)
            while True:
                wanted = steps.send(self._take_all(wanted, deadline))
        except StopIteration as end:
            result: T = end.value
            return result

    def _take_all(self, steps: list[SlotStep], deadline: float) -> list[Any]:
        """Take steps at the same time, and return their answers."""
        answers: list[Any] = [None] * len(steps)
        pending = [_PendingStep(index, step) for index, step in enumerate(steps)]
        if any(step.closing for step in steps):
            deadline = max(deadline, PROCESS.read() + CLOSING_SECONDS)
        while pending:
            pause = max(one_step.step.pause for one_step in pending)
            if pause:
                sleep(max(0.0, min(pause, deadline - PROCESS.read())))
                pending = [one_step._replace(step=one_step.step._replace(pause=0.0)) for one_step in pending]
            pending = self._round(pending, answers, deadline)
        return answers

    def _round(self, pending: list[_PendingStep], answers: list[Any], deadline: float) -> list[_PendingStep]:
        """Make one call to each server involved. Return the steps that have to go to another server."""
        by_node: dict[ServerNode, list[_PendingStep]] = {}
        again: list[_PendingStep] = []
        for one_step in pending:
            node = one_step.node or self._only or self._serving(one_step.step.slot, deadline)
            if node is None:
                answers[one_step.answer_index] = self._topology.unknown_error()
            else:
                by_node.setdefault(node, []).append(one_step)
        under_way: list[tuple[ServerNode, list[_PendingStep], ThreadCall]] = []
        for node, some in by_node.items():
            try:
                commands = [EncodedCommand(self._command(one_step.step), one_step.asking) for one_step in some]
                requests = sum(len(one_step.step.requests) for one_step in some)
                under_way.append((node, some, node.submit(commands, deadline, requests)))
            except StoreError as error:
                again += self._settle(node, some, [error] * len(some), answers, deadline)
        while under_way:
            node, some, call = under_way.pop(0)
            replies: list[Any] = call.replies
            try:
                # In turn, briefly: while this thread waits for one server, it does not occupy the others' connections.
                there = node.wait(call, min(call.deadline, PROCESS.read() + TURN) if under_way else call.deadline)
            except StoreError as error:
                there, replies = True, [error] * len(some)
            if there:
                again += self._settle(node, some, replies, answers, deadline)
            else:
                under_way.append((node, some, call))
        return again

    def _command(self, step: SlotStep) -> script.Command:
        if step.template is not None:
            return step.template.command(step.requests, self._now_us())
        assert step.command is not None
        return step.command

    def _serving(self, slot: int, deadline: float) -> ServerNode | None:
        """Return the server of a slot. Waits for the first discovery."""
        node = self._topology.serving(slot)
        if node is None and self._discovery is not None:
            known = self._topology.generation
            if self._discovery.ask() or known == 0:
                self._wait(known, deadline)
            node = self._topology.serving(slot)
        return node

    def _wait(self, known: int, deadline: float) -> None:
        """Wait for a newer topology than generation `known`."""
        with self._heard:
            self._heard.wait_for(lambda: self._topology.generation > known, max(0.0, deadline - PROCESS.read()))

    def _settle(
        self, node: ServerNode, pending: list[_PendingStep], replies: list[Any], answers: list[Any], deadline: float
    ) -> list[_PendingStep]:
        """Record one server's answers. Return the steps that have to go to another server."""
        again: list[_PendingStep] = []
        for one_step, reply in zip(pending, replies, strict=True):
            step = one_step.step
            answer: Any = reply
            if isinstance(reply, Exception):
                answer = reply if isinstance(reply, StoreError) else fault(reply, self._options.timeout)
                more = self._elsewhere(node, one_step, answer, deadline)
                if more:
                    if len(more) > 1:
                        answers[one_step.answer_index] = [None] * len(more)
                    again += more
                    continue
            elif step.template is not None:
                try:
                    answer = by_request(step, reply[0], reply[1:])
                except (LookupError, TypeError, ValueError):
                    answer = _fault_of(reply, self._options.timeout)
            if one_step.part is None:
                answers[one_step.answer_index] = answer
            else:
                answers[one_step.answer_index][one_step.part] = answer if isinstance(answer, StoreError) else answer[0]
        return again

    def _elsewhere(
        self, node: ServerNode, one_step: _PendingStep, error: StoreError, deadline: float
    ) -> list[_PendingStep]:
        """Return a step for another server; empty if there is none, or if the step may have been executed."""
        if self._discovery is None:
            return []
        taken = find_redirect(error, node.host)
        if taken is None:
            self._discovery.ask()
            return []
        if (one_step.redirects >= MAX_REDIRECTS and not taken.pause) or PROCESS.read() >= deadline:
            return []
        again = one_step._replace(node=None, asking=taken.asking, redirects=one_step.redirects + 1)
        step = one_step.step
        if taken.down:
            self._discovery.ask()
            now = PROCESS.read()
            if not self._topology.outage.is_recent(now) or now + taken.pause >= deadline:
                return []
            return [again._replace(step=step._replace(pause=taken.pause))]
        if taken.pause:
            again = again._replace(step=step._replace(pause=taken.pause), node=one_step.node, asking=one_step.asking)
            return list(_apart(again)) if len(step.requests) > 1 else [again]
        known = self._topology.generation
        soon = self._discovery.ask() if taken.look else False
        if taken.address is not None:
            return [again._replace(node=self._topology.follow(step.slot, taken))]
        if taken.wait and soon:
            self._wait(known, deadline)
        return [again] if self._topology.serving(step.slot) not in (node, None) else []


def _fault_of(reply: Any, timeout: float) -> StoreError:
    """Return the error for a reply that is an error or is invalid."""
    return fault(reply if isinstance(reply, Exception) else ValueError(f"a reply of {reply!r:.100}"), timeout)


def _apart(one_step: _PendingStep) -> Iterator[_PendingStep]:
    """Yield each request of a step separately: they may be on different servers."""
    for part, request in enumerate(one_step.step.requests):
        yield one_step._replace(step=one_step.step._replace(requests=(request,)), part=part)
