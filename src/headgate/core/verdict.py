"""Facts about a limit and its outcome: how restrictive it is, and how long it delays a request. Pure."""

from __future__ import annotations

from headgate.core.check import NEVER, Block, Check, Outcome


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
    return (not limit.enforced, float("-inf") if wait_us == NEVER else -wait_us, remaining, -reset_us)


def outcomes_with_block(limits: tuple[Check, ...], outcomes: tuple[Outcome, ...], block: Block) -> tuple[Outcome, ...]:
    """Return the outcomes of a refusal that started a block: the rule that started it waits until the block ends."""
    return tuple(
        outcome._replace(wait_us=max(outcome.wait_us, block.left_us))
        if limit.rule == block.rule and outcome.wait_us > 0
        else outcome
        for limit, outcome in zip(limits, outcomes, strict=True)
    )
