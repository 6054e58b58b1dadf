"""Many requests that are alike, on their way through a limiter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from headgate.core.alike import Answers, Pattern
from headgate.core.check import Check, Outcome, Result
from headgate.core.decision import Decision
from headgate.errors import StoreError
from headgate.limiter.engine import MAX_PROGRAMS, Engine
from headgate.limiter.prepared import PreparedCheck
from headgate.rules.plan import RulePlan
from headgate.rules.snapshot import Snapshot
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import AsyncAlikeStore, AsyncStore


class Likeness(NamedTuple):
    """What requests have in common that are alike, as long as `snapshot` is in force."""

    snapshot: Snapshot
    plan: RulePlan
    cost: int  # of a request
    pattern: Pattern
    ask: Any  # the store's `Alike`, or `AsyncAlike`
    most: int  # that can be asked at a time


class Concluded(NamedTuple):
    """The decisions on some requests that are alike.

    Most are as usual: allowed by every rule, none of which is in warning. Of these, the figures say everything.
    """

    checks: tuple[Check, ...]  # of each request; without subjects, and of a request of cost 1
    answers: Answers
    size: int  # requests
    unusual: dict[int, Decision]  # by place
    orders: Sequence[tuple[int, ...]]  # of each request that is as usual: its checks, the most restrictive first


class AlikeChecks:
    """Many requests that are alike, for an `AsyncLimiter`: its engine, its store, and whether nothing else is to be
    looked after before a check."""

    def __init__(self, engine: Engine, store: AsyncStore | MemoryStore, free: Callable[[], bool]) -> None:
        self._engine = engine
        self._store = store
        self._free = free
        self._snapshot: Snapshot | None = None
        self._known: dict[tuple[RulePlan, Pattern] | tuple[RulePlan, str, int], Likeness] = {}  # by that snapshot

    def likeness(self, facts: dict[str, str], fact: str, cost: int) -> Likeness | None:
        """What requests have in common that have these facts, and `fact`, which differs, and cost the same.

        None when they have to be looked at one by one; the same object for all that have the same in common.
        """
        planned = self._engine.plan_alike(facts, fact) if self._free() else None
        if planned is None:
            return None
        snapshot, plan = planned
        if self._snapshot is not snapshot or len(self._known) >= MAX_PROGRAMS:
            self._snapshot, self._known = snapshot, {}
        likeness = self._known.get((plan, fact, cost))
        return self._found(plan, facts, fact, cost) if likeness is None else likeness

    def _found(self, plan: RulePlan, facts: dict[str, str], fact: str, cost: int) -> Likeness | None:
        assert self._snapshot is not None
        pattern = self._engine.pattern(plan, facts, fact, cost)
        if pattern is None:
            return None
        likeness = self._known.get((plan, pattern))
        if likeness is None:
            ask = self._store.alike(pattern) if isinstance(self._store, AsyncAlikeStore) else None
            if ask is None:
                return None
            most = self._store.most_alike  # type: ignore[union-attr]
            likeness = self._known[plan, pattern] = Likeness(self._snapshot, plan, cost, pattern, ask, most)
        if all(own or not one.rule.facts for own, one in zip(pattern.own, plan.applied, strict=True)):
            self._known[plan, fact, cost] = likeness  # whatever the other facts say
        return likeness

    def holds(self, likeness: Likeness, facts: dict[str, str], fact: str) -> bool:
        """Whether requests can still be decided by what they have in common."""
        if likeness.snapshot is not self._engine.snapshot or not self._free() or self._engine.failing:
            return False
        return not likeness.snapshot.depends_on(fact, facts)

    async def check(self, likeness: Likeness, subjects: Sequence[str]) -> list[Concluded]:
        """Decide requests that are alike, in order, each by itself. A store that fails is no exception."""
        concluded, most = [], likeness.most
        if self._engine.pulse is not None:
            self._engine.pulse.attend()
        for start in range(0, len(subjects), most):
            some = subjects[start : start + most]
            try:
                answers = await likeness.ask(some)
            except StoreError as error:
                figures = (0, 0, 0) * len(likeness.plan.limits) * len(some)
                answers = Answers(0, figures, dict.fromkeys(range(len(some)), error))
            concluded.append(conclude(self._engine, likeness, some, answers))
        return concluded


def conclude(engine: Engine, likeness: Likeness, subjects: Sequence[str], answers: Answers) -> Concluded:
    """What the store's answers mean."""
    plan, figures = likeness.plan, answers.figures
    count = len(plan.limits)
    places = set(answers.faults)
    for at, (template, check, own) in enumerate(zip(plan.limits, *likeness.pattern, strict=True)):
        places.update(_unusual(engine, template, figures[3 * at :: 3 * count], figures[3 * at + 1 :: 3 * count]))
        if template.enforced:
            whose = subjects if own else [check.subject] * len(subjects)
            places.update(engine.states.remembered(template.space, whose))
    unusual = {}
    for place in sorted(places):
        told_of = figures[3 * count * place : 3 * count * (place + 1)]
        checks = likeness.pattern.of(subjects[place])
        own_subjects = tuple([check.subject for check in checks])
        asked = PreparedCheck(plan, own_subjects, plan.costs(likeness.cost))
        fault = answers.faults.get(place)
        outcomes = tuple(Outcome(*told_of[at : at + 3]) for at in range(0, 3 * count, 3))
        told = fault if fault is not None else [Result(answers.now_us, outcomes)]
        unusual[place] = engine.conclude([asked], told)[0]
    orders = repeat((0,), len(subjects)) if count == 1 else _orders(plan.limits, figures)
    return Concluded(plan.limits, answers, len(subjects), unusual, list(orders))


def _unusual(engine: Engine, template: Check, waits: Sequence[int], remaining: Sequence[int]) -> Sequence[int]:
    """Where a check is refused, or its limit may be in warning."""
    limit = template.quota.capacity
    least = engine.states.least(limit) if template.enforced else limit + 1
    if not any(waits) and limit - min(remaining) < least:  # nearly always
        return ()
    return [place for place, left in enumerate(remaining) if waits[place] or limit - left >= least]


def _orders(checks: Sequence[Check], figures: Sequence[int]) -> Sequence[tuple[int, ...]]:
    """As `restrictiveness` has it, of requests that are allowed."""
    count = len(checks)
    shadows = [not check.enforced for check in checks]
    columns = [
        list(
            zip(repeat(shadows[at]), figures[3 * at + 1 :: 3 * count], (-us for us in figures[3 * at + 2 :: 3 * count]))
        )
        for at in range(count)
    ]
    if count == 2:  # most of those that are more than one
        return [_FORWARD if first <= second else _BACKWARD for first, second in zip(*columns, strict=True)]
    return [tuple(sorted(range(count), key=row.__getitem__)) for row in zip(*columns, strict=True)]


_FORWARD, _BACKWARD = (0, 1), (1, 0)
