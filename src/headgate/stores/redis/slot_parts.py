"""The part of a group that one slot of a cluster decides, and its results. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headgate.core.check import NEVER, NOT_WAITING, Answer, Check, Group, Idempotency, Outcome, OutcomeAt, Result
from headgate.core.key import penalty_keys
from headgate.core.quota import CONCURRENCY
from headgate.errors import IdempotencyConflict, StoreError
from headgate.stores.redis.encoding import CommandTemplate
from headgate.stores.redis.steps import Figures


class SlotPart(NamedTuple):
    """The part of a group in one slot."""

    slot: int
    indexes: tuple[int, ...]  # indexes of its checks in the group
    group: Group


def read_answer(group: Group, template: CommandTemplate, answer: Figures | StoreError) -> Answer:
    """Return the answer to the only request of a group."""
    if isinstance(answer, StoreError):
        return answer
    result = template.read(*answer)
    if result is None:
        assert group.idempotency is not None
        return IdempotencyConflict.of(group.idempotency.key)
    return result


def is_refused(part: SlotPart, result: Result) -> bool:
    """Return whether an enforced limit of a part refuses the request."""
    return any(
        check.enforced and outcome.wait_us for check, outcome in zip(part.group.checks, result.outcomes, strict=True)
    )


def merge_outcomes(parts: Sequence[SlotPart], results: Sequence[Result]) -> tuple[Outcome, ...]:
    """Return the outcomes of parts in the order of the group. Each server reports its own time."""
    outcomes: dict[int, Outcome] = {}
    now_us = results[0].now_us
    for part, result in zip(parts, results, strict=True):
        for index, outcome in zip(part.indexes, result.outcomes, strict=True):
            outcomes[index] = outcome if result.now_us == now_us else OutcomeAt.of(outcome, result.now_us)
    return tuple(outcomes[index] for index in sorted(outcomes))


def charges_of_part(part: SlotPart, result: Result) -> list[tuple[int, int]]:
    """Return the time of each charge of a part, and the reset that was returned; -1 and 0 if it was not charged."""
    return [
        (result.now_us, outcome.reset_us) if outcome.wait_us == 0 and check.cost else (-1, 0)
        for check, outcome in zip(part.group.checks, result.outcomes, strict=True)
    ]


def result_of_part(
    part: SlotPart, template: CommandTemplate | None, answer: Figures | StoreError, known: Result | None
) -> Result:
    """Return the state of a part whose group was refused in another slot; `known` if the server did not report it."""
    if not isinstance(answer, StoreError):
        assert template is not None
        looked = template.read(*answer)
        assert looked is not None
        return looked
    if known is not None:  # perhaps it was not undone
        return known
    return Result(0, tuple(Outcome(0, check.quota.capacity, 0) for check in part.group.checks))


def with_waits_of(known: Result, looked: Result) -> Result:
    """Return the state of a part that was undone, with its first waits: later ones would count the request itself."""
    pairs = zip(looked.outcomes, known.outcomes, strict=True)
    return looked._replace(outcomes=tuple([now._replace(wait_us=then.wait_us) for now, then in pairs]))


def with_receipt(part: SlotPart, key: Idempotency | None) -> SlotPart:
    """Return a part whose answer is stored in its own slot."""
    assert key is not None
    group = part.group
    names = [check.key for check in group.checks]
    if not names and group.penalty is not None:
        names = list(penalty_keys(*group.penalty.client))
    tag = names[0][names[0].index("{") + 1 : names[0].index("}")] if names else ""
    return part._replace(group=group._replace(idempotency=key._replace(tag=tag)))


def waiting_checks(group: Group, now_us: int) -> list[Check]:
    """Return the checks of a group that wait for a slot, with the time at which the request came: `now_us` if now."""
    return [
        check._replace(arrived_us=check.arrived_us or now_us)
        for check in group.checks
        if check.arrived_us != NOT_WAITING and check.quota.algorithm == CONCURRENCY and check.enforced and check.cost
    ]


def lacks_more_than_slots(checks: Sequence[Check], outcomes: Sequence[Outcome]) -> bool:
    """Return whether waiting for a slot does not help: a rate refuses the request, or it never fits."""
    return any(
        check.enforced and outcome.wait_us and (check.quota.algorithm != CONCURRENCY or outcome.wait_us == NEVER)
        for check, outcome in zip(checks, outcomes, strict=True)
    )
