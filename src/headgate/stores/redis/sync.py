"""The Redis store for threads: a server, the master that Sentinel names, or a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Condition
from time import monotonic, sleep
from typing import Any, Final, NamedTuple, TypeVar

from headgate.core.check import Answer, Charge, Check, Client, Extras, Group, Result, answered
from headgate.core.clock import Clock
from headgate.core.decision import Decision, Reading, States, decision_with
from headgate.core.fork import renew_in_children
from headgate.core.ledger import Counted, Page, Swap
from headgate.core.plan import Plan as LimitPlan
from headgate.core.reservation import Claim, Expired
from headgate.core.share import Standing
from headgate.errors import StoreError
from headgate.stores.observer import StoreObserver
from headgate.stores.process_clock import PROCESS
from headgate.stores.program import Program, decision_of, group_of, group_program
from headgate.stores.redis import script
from headgate.stores.redis.discovery import Discovery, Found
from headgate.stores.redis.exhausted import Exhausted
from headgate.stores.redis.faults import Address, fault, turn
from headgate.stores.redis.node import Node
from headgate.stores.redis.options import read_url
from headgate.stores.redis.parcel import Parcel
from headgate.stores.redis.plans import Plan, Plans, Step
from headgate.stores.redis.slots import slot_of_key
from headgate.stores.redis.template import FIGURES, CommandTemplate, keys_of, outcomes_of
from headgate.stores.redis.topology import MAX_TURNS, Topology
from headgate.stores.redis.trip import ThreadCall

T = TypeVar("T")

TURN: Final = 0.001  # seconds for which one of several servers is waited for before the others are looked at
CLOSING_SECONDS: Final = 0.005  # what undoes something is given so much at least


class _Errand(NamedTuple):
    """A step on its way to an answer."""

    place: int  # of the answer
    step: Step
    part: int | None = None  # of the answer, which is a list: the step is one group of several
    node: Node | None = None  # None: whoever serves its slot
    asking: bool = False
    turns: int = 0


class RedisStore:
    """Keeps state in Redis or Valkey. Threads share a few connections to each server.

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
        self._topology = Topology(self._make, self._drop)
        self._heard = Condition()  # something was, of who serves what
        self._discovery: Discovery | None = None
        self._only: Node | None = None  # the server, if it is always the same
        if self._target.topology == "single":
            self._only = Node(self._target.way, self._options, observer)
        else:
            self._discovery = Discovery(self._target, self._hear, self._topology.known)
            self._discovery.ask()
        renew_in_children(self)

    def check(self, groups: Sequence[Group]) -> list[Answer]:
        exhausted = self.exhausted
        if exhausted.known:
            answers = exhausted.answers(groups)
            if any(answers):
                asked = iter(self._decide([group for group, known in zip(groups, answers, strict=True) if not known]))
                return answered([known or next(asked) for known in answers])
        return answered(self._decide(groups))

    def _decide(self, groups: Sequence[Group]) -> list[Answer]:
        exhausted = self.exhausted
        answers: list[Answer] = []
        for run in self._plans.runs(groups):
            asked_us, epoch = exhausted.now_us(), exhausted.epoch
            decided = self._follow(self._plans.decide(run))
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
        grouped = group_program(self.check, plan, states, told)
        if not plan.limits or (self._slotted and len(plan.limits) > 1):
            return grouped
        decide = self._compile(plan, Reading(told or plan, states), Reading(told or plan, states, outcomes_of))

        def check(
            subjects: tuple[str, ...], costs: tuple[int, ...], peek: bool = False, extras: Extras | None = None
        ) -> Decision:
            if peek or extras is not None:
                decision: Decision = grouped(subjects, costs, peek, extras)
                return decision
            return decide(subjects, costs)

        return check

    def _compile(
        self, plan: LimitPlan, told: Reading, unread: Reading
    ) -> Callable[[tuple[str, ...], tuple[int, ...]], Decision]:
        """Return what decides requests that are charged, and no more. `unread` reads figures as they are replied."""
        template, keys_for, exhausted = CommandTemplate.of(plan), keys_of(plan), self.exhausted
        timeout, prefix = self._options.timeout, self._options.prefix
        ask = self._ask if self._only is None else self._only.ask
        remembers = not any(limit.leased for limit in plan.limits)
        enforced = [FIGURES * at + 1 for at, limit in enumerate(plan.limits) if limit.enforced]
        size = 1 + FIGURES * len(plan.limits)

        def decide(subjects: tuple[str, ...], costs: tuple[int, ...]) -> Decision:
            keys = keys_for(subjects)
            name = keys[0] if len(keys) == 1 else keys
            if name in exhausted.known:  # which none is that is leased
                known = exhausted.answer(name, template.terms_at(costs))
                if known is not None:
                    return decision_with(told, (known.now_us, subjects, costs, known.outcomes), False)
            epoch = exhausted.epoch
            sent_us = None if self._clock is None else self._clock.now_us()
            asked = monotonic()
            deadline = PROCESS.now(asked) + timeout
            try:
                reply = ask(template.parcel(keys, costs, sent_us, prefix), deadline)
                if reply is None:  # not as easy as that: somebody else is to be asked
                    run = (group_of(plan, subjects, costs),)
                    (answer,) = answered(self._follow(self._plans.decide(run), deadline))
                    return decision_of(answer, told.plan, told.states, subjects, costs)
                if reply.__class__ is not list or len(reply) != size:
                    raise _fault_of(reply, timeout)
            except StoreError:
                exhausted.clear()
                raise
            allowed = True
            for at in enforced:
                if reply[at]:
                    allowed = False
            decision = decision_with(unread, (reply[0], subjects, costs, reply[1:]), allowed)
            if not allowed and remembers:
                asked_us = round(asked * 1_000_000) if sent_us is None else sent_us
                result = Result(reply[0], outcomes_of(decision.verdict))
                exhausted.put(name, template.terms_at(costs), result, asked_us, epoch)
            return decision

        return decide

    def refund(self, charges: Sequence[Charge]) -> None:
        try:
            self._follow(self._plans.refund(charges))
        finally:  # a call that failed may have been executed
            self.exhausted.drop(charge.check for charge in charges)

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        try:
            self._follow(self._plans.reset(checks, clients))
        finally:
            self.exhausted.drop(checks)

    def hold(self, reservation_id: str, record: str, ttl_us: int) -> None:
        self._follow(self._plans.hold(reservation_id, record, ttl_us))

    def renew(self, reservation_id: str, record: str, ttl_us: int) -> bool:
        return self._follow(self._plans.renew(reservation_id, record, ttl_us))

    def claim(self, reservation_id: str) -> Claim | None:
        return self._follow(self._plans.claim(reservation_id))

    def expire(self) -> Expired:
        return self._follow(self._plans.expire())

    def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> list[int]:
        try:
            return self._follow(self._plans.adjust(refunds, surcharges))
        finally:
            self.exhausted.drop([*(charge.check for charge in refunds), *surcharges])

    def beat(self, name: str, node: str, ttl_us: int) -> Standing:
        return self._follow(self._plans.beat(name, node, ttl_us))

    def counts(self, checks: Sequence[Check]) -> list[Counted | None]:
        return self._follow(self._plans.counts(checks))

    def read(self, names: Sequence[str]) -> list[Page]:
        return self._follow(self._plans.read(names))

    def swap(self, swaps: Sequence[Swap]) -> list[bool]:
        return self._follow(self._plans.swap(swaps))

    def close(self) -> None:
        if self._discovery is not None:
            self._discovery.close()
            self._topology.forget()
        for node in self._nodes():
            node.close()

    def forked(self) -> None:
        """In a forked child: connections are the parent's."""
        self._heard = Condition()
        self._topology.forked()
        for node in self._nodes():
            node.forget()

    def _nodes(self) -> list[Node]:
        return self._topology.nodes if self._only is None else [self._only]

    def _make(self, address: Address) -> Node:
        return Node(self._target.way.to(address), self._options, self._observer)

    def _drop(self, node: Node) -> None:
        node.close()
        if self._observer is not None:
            self._observer.breaker(node.name, "gone")

    def _now_us(self) -> int | None:
        return None if self._clock is None else self._clock.now_us()

    def _hear(self, found: Found) -> bool:
        """Note what discovery has found, in its thread."""
        with self._heard:
            if isinstance(found, StoreError):
                self._topology.failed(found)
            else:
                self._topology.told(found)
            self._heard.notify_all()
        return True

    def _ask(self, parcel: Parcel, deadline: float) -> Any:
        """The reply to a check of one key, which may be an exception of redis-py. Raises `StoreError`.

        None: nothing was executed, and it may be tried elsewhere.
        """
        assert self._discovery is not None
        node = self._topology.serving(slot_of_key(str(parcel.command[3])) if self._slotted else 0)
        if node is None:
            return None
        try:
            reply = node.ask(parcel, deadline)
            if not isinstance(reply, Exception):
                return reply
            raise fault(reply, self._options.timeout) from reply
        except StoreError as error:
            if turn(error, node.host) is not None:
                return None
            self._discovery.ask()
            raise

    def _follow(self, plan: Plan[T], deadline: float | None = None) -> T:
        """Take the steps of a plan, and return what comes of it."""
        if deadline is None:
            deadline = PROCESS.read() + self._options.timeout
        try:
            steps = next(plan)
            while True:
                steps = plan.send(self._take_all(steps, deadline))
        except StopIteration as end:
            result: T = end.value
            return result

    def _take_all(self, steps: list[Step], deadline: float) -> list[Any]:
        """The answers to steps, which are taken at the same time."""
        answers: list[Any] = [None] * len(steps)
        errands = [_Errand(place, step) for place, step in enumerate(steps)]
        if any(step.closing for step in steps):
            deadline = max(deadline, PROCESS.read() + CLOSING_SECONDS)
        while errands:
            pause = max(errand.step.pause for errand in errands)
            if pause:
                sleep(max(0.0, min(pause, deadline - PROCESS.read())))
                errands = [errand._replace(step=errand.step._replace(pause=0.0)) for errand in errands]
            errands = self._round(errands, answers, deadline)
        return answers

    def _round(self, errands: list[_Errand], answers: list[Any], deadline: float) -> list[_Errand]:
        """One call to each server that is concerned. Those that have to go elsewhere."""
        by_node: dict[Node, list[_Errand]] = {}
        again: list[_Errand] = []
        for errand in errands:
            node = errand.node or self._only or self._serving(errand.step.slot, deadline)
            if node is None:
                answers[errand.place] = self._topology.unknown()
            else:
                by_node.setdefault(node, []).append(errand)
        under_way: list[tuple[Node, list[_Errand], ThreadCall]] = []
        for node, some in by_node.items():
            try:
                parcels = [Parcel(self._command(errand.step), errand.asking) for errand in some]
                groups = sum(len(errand.step.groups) for errand in some)
                under_way.append((node, some, node.leave(parcels, deadline, groups)))
            except StoreError as error:
                again += self._settle(node, some, [error] * len(some), answers, deadline)
        while under_way:
            node, some, call = under_way.pop(0)
            replies: list[Any] = call.replies
            try:
                # In turn for a moment each: while one server is waited for, others' connections are not held.
                there = node.wait(call, min(call.deadline, PROCESS.read() + TURN) if under_way else call.deadline)
            except StoreError as error:
                there, replies = True, [error] * len(some)
            if there:
                again += self._settle(node, some, replies, answers, deadline)
            else:
                under_way.append((node, some, call))
        return again

    def _command(self, step: Step) -> script.Command:
        return (
            step.command
            if step.command is not None
            else script.encode(step.groups, self._now_us(), self._options.prefix)
        )

    def _serving(self, slot: int, deadline: float) -> Node | None:
        """Who serves a slot. Waits for the first look."""
        node = self._topology.serving(slot)
        if node is None and self._discovery is not None:
            known = self._topology.generation
            if self._discovery.ask() or known == 0:
                self._wait(known, deadline)
            node = self._topology.serving(slot)
        return node

    def _wait(self, known: int, deadline: float) -> None:
        """Until something newer is heard."""
        with self._heard:
            self._heard.wait_for(lambda: self._topology.generation > known, max(0.0, deadline - PROCESS.read()))

    def _settle(
        self, node: Node, errands: list[_Errand], replies: list[Any], answers: list[Any], deadline: float
    ) -> list[_Errand]:
        """Note the answers of one server's. Those that have to go elsewhere."""
        again: list[_Errand] = []
        for errand, reply in zip(errands, replies, strict=True):
            step = errand.step
            answer: Any = reply
            if isinstance(reply, Exception):
                answer = reply if isinstance(reply, StoreError) else fault(reply, self._options.timeout)
                more = self._elsewhere(node, errand, answer, deadline)
                if more:
                    if len(more) > 1:
                        answers[errand.place] = [None] * len(more)
                    again += more
                    continue
            elif step.command is None:
                try:
                    answer = script.decode(step.groups, reply)
                except (LookupError, TypeError, ValueError):
                    answer = _fault_of(reply, self._options.timeout)
            if errand.part is None:
                answers[errand.place] = answer
            else:
                answers[errand.place][errand.part] = answer if isinstance(answer, StoreError) else answer[0]
        return again

    def _elsewhere(self, node: Node, errand: _Errand, error: StoreError, deadline: float) -> list[_Errand]:
        """A step that was not executed, on its way to another server; none: there is none, or it may have been."""
        if self._discovery is None:
            return []
        taken = turn(error, node.host)
        if taken is None:
            self._discovery.ask()
            return []
        if (errand.turns >= MAX_TURNS and not taken.pause) or PROCESS.read() >= deadline:
            return []
        again = errand._replace(node=None, asking=taken.asking, turns=errand.turns + 1)
        step = errand.step
        if taken.down:
            self._discovery.ask()
            now = PROCESS.read()
            if not self._topology.outage.is_recent(now) or now + taken.pause >= deadline:
                return []
            return [again._replace(step=step._replace(pause=taken.pause))]
        if taken.pause:
            again = again._replace(step=step._replace(pause=taken.pause), node=errand.node, asking=errand.asking)
            return list(_apart(again)) if len(step.groups) > 1 else [again]
        known = self._topology.generation
        soon = self._discovery.ask() if taken.look else False
        if taken.address is not None:
            return [again._replace(node=self._topology.turned(step.slot, taken))]
        if taken.wait and soon:
            self._wait(known, deadline)
        return [again] if self._topology.serving(step.slot) not in (node, None) else []


def _fault_of(reply: Any, timeout: float) -> StoreError:
    """What a reply means that is an error, or makes no sense."""
    return fault(reply if isinstance(reply, Exception) else ValueError(f"a reply of {reply!r:.100}"), timeout)


def _apart(errand: _Errand) -> Iterator[_Errand]:
    """Each group of a step by itself: they need not be where the others are."""
    for part, group in enumerate(errand.step.groups):
        yield errand._replace(step=errand.step._replace(groups=(group,)), part=part)
