"""Programs: functions of a store that each decide all limits of one plan's requests, or charge none of them.

A store that compiles plans itself has `compile`. For any other store, this module builds a program on its `check`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headgate.core.check import NOT_WAITING, Answer, Check, Extras, Group, RepeatedResult, Result, SharedResult
from headgate.core.decision import Decision
from headgate.core.decision_factory import decide
from headgate.core.plan import Plan
from headgate.core.reading import WarningStates
from headgate.errors import IdempotencyConflict, StoreError

GroupCheck = Callable[[Sequence[Group]], Sequence[Answer]]
AsyncCheck = Callable[[Sequence[Group]], Awaitable[Sequence[Answer]]]


Program = Callable[..., Any]
"""Decides requests of one plan: `program(subjects, costs, peek=False, extras=None)`.

`subjects` and `costs` are those of the plan's limits, in order. A `peek` charges nothing. With an `Idempotency` in the
`Extras`, a repetition gets the first decision. With a `Penalty`, a refusal counts against its client, and the decision
has the attribute `block` while that client is blocked. With a reservation, buckets track how much of it can still be
refunded. With a `slot`, concurrency limits hold it from then on; if the request waits for it (`arrived_us`) and lacks
nothing else, they keep its place in their queues. Returns a `Decision`, or an awaitable of one if the store has to be
waited for; then it must be called in a running event loop. Raises `StoreError` and `IdempotencyConflict`.

A program may have an attribute `many`: it takes a list of subjects and costs, decides those requests in order, each
separately, and returns a decision or a `StoreError` for each, or an awaitable of these.
"""


def group_of(
    plan: Plan,
    subjects: tuple[str, ...],
    costs: tuple[int, ...],
    peek: bool = False,
    extras: Extras | None = None,
) -> Group:
    """Return a request as the group of checks that a store's `check` takes."""
    reservation, slot, arrived_us = (0, "", NOT_WAITING) if extras is None else extras[2:]
    checks = [
        Check(rule, key_template, subject, quota, cost, enforced, refusal, leased, reservation, slot, arrived_us)
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
    """Turn a store's answer to a group into a decision. Raises the answer if it is a fault or a conflict."""
    if isinstance(answer, StoreError | IdempotencyConflict):
        raise answer
    if isinstance(answer, SharedResult):  # this region's shares were checked
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
    check: GroupCheck, plan: Plan, states: WarningStates | None = None, shown: Plan | None = None
) -> Program:
    """Return the program of a plan for a store that takes groups. Decisions show the plan `shown`, if it is set."""

    def decide_group(
        subjects: tuple[str, ...],
        costs: tuple[int, ...],
        peek: bool = False,
        extras: Extras | None = None,
    ) -> Decision:
        (answer,) = check((group_of(plan, subjects, costs, peek, extras),))
        return decision_of(answer, shown or plan, states, subjects, costs)

    return decide_group


def async_group_program(
    check: AsyncCheck, plan: Plan, states: WarningStates | None = None, shown: Plan | None = None
) -> Program:
    """Return the program of a plan for an async store that takes groups."""

    async def decide_group(
        subjects: tuple[str, ...],
        costs: tuple[int, ...],
        peek: bool = False,
        extras: Extras | None = None,
    ) -> Decision:
        (answer,) = await check((group_of(plan, subjects, costs, peek, extras),))
        return decision_of(answer, shown or plan, states, subjects, costs)

    return decide_group


def result_of(decision: Decision) -> Result:
    """Return the decision of a program as the answer to a group."""
    kind = RepeatedResult if getattr(decision, "settled", False) else Result
    return kind(decision.at_us, decision.outcomes, getattr(decision, "block", None))
