"""Many requests that are alike, on their way through a limiter. Pure: the limiter does the I/O."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

from headgate.core.alike import Answers, Pattern
from headgate.core.check import Check, Group, Outcome, Result
from headgate.core.decision import Decision
from headgate.limiter.engine import Asked, Engine
from headgate.rules.plan import Plan
from headgate.rules.snapshot import Snapshot


class Likeness(NamedTuple):
    """What requests have in common that are alike, as long as `snapshot` is in force."""

    snapshot: Snapshot
    plan: Plan
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


def conclude(engine: Engine, likeness: Likeness, subjects: Sequence[str], answers: Answers) -> Concluded:
    """What the store's answers mean."""
    plan, figures = likeness.plan, answers.figures
    count = len(plan.templates)
    places = set(answers.faults)
    for at, (template, check, own) in enumerate(zip(plan.templates, *likeness.pattern, strict=True)):
        places.update(_unusual(engine, template, figures[3 * at :: 3 * count], figures[3 * at + 1 :: 3 * count]))
        if template.enforced:
            whose = subjects if own else [check.subject] * len(subjects)
            places.update(engine.states.remembered(template.space, whose))
    unusual = {}
    for place in sorted(places):
        told_of = figures[3 * count * place : 3 * count * (place + 1)]
        asked = Asked(plan, Group(likeness.pattern.of(subjects[place])), likeness.cost)
        fault = answers.faults.get(place)
        outcomes = tuple(Outcome(*told_of[at : at + 3]) for at in range(0, 3 * count, 3))
        told = fault if fault is not None else [Result(answers.now_us, outcomes)]
        unusual[place] = engine.conclude([asked], told)[0]
    orders = repeat((0,), len(subjects)) if count == 1 else _orders(plan.templates, figures)
    return Concluded(plan.templates, answers, len(subjects), unusual, list(orders))


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
