"""Programs: what a store does for a plan. One function decides all limits of a request, or charges none.

A store that compiles plans itself has `compile`. For any other, a program is made here of its `check`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headgate.core.check import Answer, Check, Extras, Group, RepeatedResult, Result, SharedResult
from headgate.core.decision import Decision
from headgate.core.decision_factory import decide
from headgate.core.plan import Plan
from headgate.core.reading import WarningStates
from headgate.errors import IdempotencyConflict, StoreError

GroupCheck = Callable[[Sequence[Group]], Sequence[Answer]]
AsyncCheck = Callable[[Sequence[Group]], Awaitable[Sequence[Answer]]]


Program = Callable[..., Any]
"""Decides requests of one plan: `program(subjects, costs, peek=False, extras=None)`.

`subjects` and `costs` are those of the plan's limits, in order. A `peek` charges nothing. With an `Idempotency` among
the `Extras`, a repetition is given the first decision; with a `Penalty`, a refusal counts against its client, and a
decision has the attribute `block` while that client is blocked. Returns a `Decision`, or something to await for one
where the store has to be waited for. With a reservation, buckets keep track of what it can still give back. With a
`slot`, limits of concurrency hold it from then on. Raises `StoreError` and `IdempotencyConflict`.

A program may have an attribute `many`: it takes a list of subjects and costs, decides those requests in order, each by
itself, and returns a decision or a `StoreError` for each, or something to await for these.
"""


def group_of(
    plan: Plan,
    subjects: tuple[str, ...],
    costs: tuple[int, ...],
    peek: bool = False,
    extras: Extras | None = None,
) -> Group:
    """Return a request as the group of checks that a store's `check` takes."""
    mark, slot = (0, "") if extras is None else (extras.reservation, extras.slot)
    checks = [
        Check(rule, key_template, subject, quota, cost, enforced, refusal, leased, mark, slot)
        for (rule, key_template, _, quota, _, enforced, refusal, leased, *_), subject, cost in zip(
            plan.limits, subjects, costs, strict=True
        )
    ]
    return (
        Group(tuple(checks), peek) if extras is None else Group(tuple(checks), peek, extras.idempotency, extras.penalty)
    )


def decision_of(
    answer: Answer, plan: Plan, states: WarningStates | None, subjects: tuple[str, ...], costs: tuple[int, ...]
) -> Decision:
    """Return what a store's answer to a group means. Raises it, if it is a fault or a conflict."""
    if isinstance(answer, StoreError | IdempotencyConflict):
        raise answer
    if isinstance(answer, SharedResult):  # this region's shares were asked
        plan = Plan(answer.applied_to(plan.limits))
    now_us, outcomes, block = answer
    if not outcomes and plan.limits:  # the client was blocked before
        decision = Decision.of(False, now_us, plan, subjects=subjects, costs=costs, states=states)
    else:
        decision = decide(plan, outcomes, now_us, costs=costs, subjects=subjects, states=states)
    if block is not None:
        decision.block = block
    if isinstance(answer, RepeatedResult):
        decision.settled = True
    return decision


def group_program(
    check: GroupCheck, plan: Plan, states: WarningStates | None = None, told: Plan | None = None
) -> Program:
    """Return the program of a plan for a store that takes groups. Decisions show the plan `told`, if there is one."""

    def decide_group(
        subjects: tuple[str, ...],
        costs: tuple[int, ...],
        peek: bool = False,
        extras: Extras | None = None,
    ) -> Decision:
        (answer,) = check((group_of(plan, subjects, costs, peek, extras),))
        return decision_of(answer, told or plan, states, subjects, costs)

    return decide_group


def async_group_program(
    check: AsyncCheck, plan: Plan, states: WarningStates | None = None, told: Plan | None = None
) -> Program:
    """Return the program of a plan for a store that takes groups, and is awaited."""

    async def decide_group(
        subjects: tuple[str, ...],
        costs: tuple[int, ...],
        peek: bool = False,
        extras: Extras | None = None,
    ) -> Decision:
        (answer,) = await check((group_of(plan, subjects, costs, peek, extras),))
        return decision_of(answer, told or plan, states, subjects, costs)

    return decide_group


def result_of(decision: Decision) -> Result:
    """Return what a program decided as the answer to a group."""
    kind = RepeatedResult if getattr(decision, "settled", False) else Result
    return kind(decision.at_us, decision.outcomes, getattr(decision, "block", None))
