"""A group of checks for the stores of several regions, and how their answers are combined. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.core.check import Answer, Charge, Check, Group, Outcome, Result, SharedResult
from headgate.core.quota import Quota
from headgate.errors import StoreError
from headgate.features.regions.link import HERE, Steps, StoreCall


@dataclass(slots=True)
class RoutedGroup:
    """A group in progress."""

    group: Group
    here: Group | None = None  # the checks for our own store
    here_indexes: list[int] = field(default_factory=list)
    far: Group | None = None  # the checks for the central region's store
    far_indexes: list[int] = field(default_factory=list)
    known: dict[int, Outcome] = field(default_factory=dict)  # outcomes of checks that need no store
    quotas: dict[int, Quota] = field(default_factory=dict)  # the quotas to show to the caller
    answer: Answer | None = None
    decided: Result | None = None  # by our own store

    @property
    def waits(self) -> bool:
        """Whether to call the central region only if our own store allows the request."""
        return self.here is not None and self.far is not None and not self.group.peek

    def unasked_outcomes(self) -> dict[int, Outcome]:
        """Return allowing outcomes for the checks that the central region did not decide."""
        return {index: unasked_outcome(self.group.checks[index]) for index in self.far_indexes}


def each_answer(answer: Any, routes: Sequence[RoutedGroup]) -> Sequence[Any]:
    """Return an answer for each of several groups: an error is the answer to all."""
    return [answer] * len(routes) if isinstance(answer, StoreError) else answer


def call_all(asks: list[StoreCall]) -> Steps[list[Any]]:
    answers: list[Any] = (yield asks) if asks else []
    for ask, answer in zip(asks, answers, strict=True):
        if isinstance(answer, StoreError):
            raise name_region(answer, ask.region)
    return answers


def name_region(error: Any, region: str) -> Any:
    """Return an error with the region that it came from."""
    if isinstance(error, StoreError) and region != HERE and not str(error).startswith("region "):
        error.args = (f"region {region}: {error}",)
    return error


def unasked_outcome(check: Check) -> Outcome:
    """Return the outcome of an unevaluated check: allowed."""
    return Outcome(0, check.quota.capacity, 0)


def refuses(group: Group, result: Result) -> bool:
    return any(outcome.wait_us and check.enforced for check, outcome in zip(group.checks, result.outcomes, strict=True))


def charges_of(route: RoutedGroup) -> list[Charge]:
    """Return what was charged here. With an idempotency key, nothing: a repetition would undo the charge again."""
    if route.here is None or route.decided is None or route.group.idempotency is not None:
        return []
    at_us = route.decided.now_us
    return [
        Charge(check, getattr(outcome, "at_us", at_us), outcome.reset_us)
        for check, outcome in zip(route.here.checks, route.decided.outcomes, strict=True)
        if outcome.wait_us == 0 and check.cost
    ]


def outcome_given_back(check: Check, outcome: Outcome) -> Outcome:
    """Return approximately the outcome after a charge was undone."""
    if outcome.wait_us:
        return outcome
    return outcome._replace(remaining=min(outcome.remaining + check.cost, check.quota.capacity))


def with_block(answer: Result, decided: Result) -> Result:
    """Return an answer with the block that its refusal started, if any."""
    result = answer._replace(block=decided.block)
    return type(answer).of(result, answer.quotas) if isinstance(answer, SharedResult) else result


def violation_of(route: RoutedGroup) -> Group:
    """Return a check that is refused and charges nothing, to count the central region's refusal against the client."""
    assert route.far is not None
    assert isinstance(route.answer, Result)
    refusing = [
        route.group.checks[index]
        for index in route.far_indexes
        if route.answer.outcomes[index].wait_us and route.group.checks[index].enforced
    ]
    check = max(refusing, key=lambda one: one.quota.window_us)
    return Group((check._replace(cost=check.quota.capacity + 1),), penalty=route.group.penalty)
