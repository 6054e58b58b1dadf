"""One limit's part in a decision: its status, how restrictive it is, and how long it delays a request. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from headgate.core.check import NEVER, Block, Check, Outcome
from headgate.core.cost import REQUESTS
from headgate.core.quota import MICROSECONDS, Quota

Figures = Sequence[tuple[int, int, int]]  # wait, remaining and reset of each limit

_NEVER_FIRST: Final = float("-inf")


def delay_us(limit: Check, outcome: Outcome, cost: int) -> int:
    """Return the time until a request's turn in a leaky bucket."""
    quota = limit.quota
    if quota.algorithm != "leaky_bucket" or outcome.wait_us != 0:
        return 0
    # The bucket is empty in reset_us; this request's own share of it leaves last.
    return max(0, outcome.reset_us - cost * quota.window_us // quota.limit)


def hold_us(limit: Check, outcome: Outcome, cost: int) -> int:
    """Return how long this limit delays the request: 0 unless its rule delays requests and is enforced."""
    return delay_us(limit, outcome, cost) if limit.refusal.max_delay_us and limit.enforced else 0


def restrictiveness(pair: tuple[Check, Outcome]) -> tuple[bool, float, int, int]:
    """Return a sort key: enforced limits before shadows, then the longest wait, then the least remaining."""
    limit, (wait_us, remaining, reset_us) = pair
    return (not limit.enforced, _NEVER_FIRST if wait_us == NEVER else -wait_us, remaining, -reset_us)


def outcomes_with_block(limits: tuple[Check, ...], outcomes: tuple[Outcome, ...], block: Block) -> tuple[Outcome, ...]:
    """Return the outcomes of a refusal that started a block: the rule that started it waits until the block ends."""
    return tuple(
        outcome._replace(wait_us=max(outcome.wait_us, block.left_us))
        if limit.rule == block.rule and outcome.wait_us > 0
        else outcome
        for limit, outcome in zip(limits, outcomes, strict=True)
    )


def order_allowed(figures: Figures) -> tuple[int, ...]:
    """Return the indexes of limits that allow a request, the most restrictive first: the least remaining, then the
    latest reset, then the first."""
    ranks = sorted([(remaining, -reset, at) for at, (_, remaining, reset) in enumerate(figures)])
    return tuple([at for _, _, at in ranks])


@cache
def order_check(count: int) -> Callable[[Figures, tuple[int, ...]], bool]:
    """Return the function that says whether `order_allowed` puts this many limits in a given order.

    The order of the last decision is usually right, and verifying it takes less time than sorting. The function's code
    is generated: a few lines per limit, without a loop.
    """
    indexes = "".join([f"at{at}, " for at in range(count)])
    lines = [f"_, remaining{at}, reset{at} = figures[at{at}]" for at in range(count)]
    pairs = [
        f"(remaining{at} < remaining{at + 1} or (remaining{at} == remaining{at + 1} and "
        f"(reset{at} > reset{at + 1} or (reset{at} == reset{at + 1} and at{at} < at{at + 1}))))"
        for at in range(count - 1)
    ]
    body = [f"({indexes}) = order", *lines, f"return {' and '.join(pairs) or True}"]
    names: dict[str, Any] = {}
    exec("\n    ".join(["def is_ordered(figures, order):", *body]), names)
    made: Callable[[Figures, tuple[int, ...]], bool] = names["is_ordered"]
    return made


@cache
def low_check(count: int) -> Callable[[Figures, tuple[int, ...]], bool]:
    """Return the function that says whether any of this many limits has no more remaining than an amount of its own.

    Its code is generated, without a loop.
    """
    compared = " or ".join([f"figures[{at}][1] <= low[{at}]" for at in range(count)])
    made: Callable[[Figures, tuple[int, ...]], bool] = eval(f"lambda figures, low: {compared or False}")
    return made


def order_by_wait(figures: Sequence[tuple[int, int, int]], limits: Sequence[Check]) -> tuple[int, ...]:
    """Return the indexes of limits of which some may refuse, the most restrictive first: see `restrictiveness`."""
    ranks = sorted(
        [
            (not limit.enforced, _NEVER_FIRST if wait == NEVER else -wait, remaining, -reset, at)
            for at, (limit, (wait, remaining, reset)) in enumerate(zip(limits, figures, strict=True))
        ]
    )
    return tuple([rank[-1] for rank in ranks])


# The figures of a decision that its text and its dictionary show.
FIGURES = [
    "allowed",
    "limit",
    "remaining",
    "reset_at",
    "reset_after",
    "retry_after",
    "delay",
    "rule",
    "state",
    "reason",
]


class LimitStatus(NamedTuple):
    """One rule's part in a decision. The figures have the same meaning as in `Decision`."""

    rule: str
    quota: Quota
    enforced: bool
    allowed: bool
    limit: int
    remaining: int
    reset_after: float
    retry_after: float | None
    delay: float
    unit: str = REQUESTS  # what the limit counts


def status_of_limit(limit: Check, outcome: Outcome, cost: int) -> LimitStatus:
    wait_us, remaining, reset_us = outcome
    return LimitStatus(
        rule=limit.rule,
        quota=limit.quota,
        enforced=limit.enforced,
        allowed=wait_us == 0,
        limit=limit.quota.capacity,
        remaining=remaining,
        reset_after=reset_us / MICROSECONDS,
        retry_after=None if wait_us == NEVER else wait_us / MICROSECONDS,
        delay=delay_us(limit, outcome, cost) / MICROSECONDS,
        unit=limit.refusal.unit,
    )
