"""Facts about a limit and its outcome: how restrictive it is, and how long it delays a request. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headgate.core.check import NEVER, Block, Check, Outcome

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


def order_allowed(figures: Sequence[tuple[int, int, int]], guess: tuple[int, ...]) -> tuple[int, ...]:
    """Return the indexes of limits that allow a request, the most restrictive first: the least remaining, then the
    latest reset, then the first.

    `guess` is the order of another decision. It is usually right, and verifying it takes less time than sorting.
    """
    least = latest = last = -1
    for at in guess:
        _, remaining, reset = figures[at]
        if remaining <= least and (remaining < least or reset > latest or (reset == latest and at < last)):
            break
        least, latest, last = remaining, reset, at
    else:
        return guess
    ranks = sorted([(remaining, -reset, at) for at, (_, remaining, reset) in enumerate(figures)])
    return tuple([at for _, _, at in ranks])


def order_by_wait(figures: Sequence[tuple[int, int, int]], limits: Sequence[Check]) -> tuple[int, ...]:
    """Return the indexes of limits of which some may refuse, the most restrictive first: see `restrictiveness`."""
    ranks = sorted(
        [
            (not limit.enforced, _NEVER_FIRST if wait == NEVER else -wait, remaining, -reset, at)
            for at, (limit, (wait, remaining, reset)) in enumerate(zip(limits, figures, strict=True))
        ]
    )
    return tuple([rank[-1] for rank in ranks])
