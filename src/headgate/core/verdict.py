"""What a limit and its outcome say together: how restrictive it is, and how long a request is held back. Pure."""

from __future__ import annotations

from headgate.core.check import NEVER, Block, Check, Outcome


def delay_us(limit: Check, outcome: Outcome, cost: int) -> int:
    """The time until a request's turn in a leaky bucket."""
    quota = limit.quota
    if quota.algorithm != "leaky_bucket" or outcome.wait_us != 0:
        return 0
    # It is empty reset_us from now; this request's own share of that is the last to leave.
    return max(0, outcome.reset_us - cost * quota.window_us // quota.limit)


def hold_us(limit: Check, outcome: Outcome, cost: int) -> int:
    """Return how long to hold the request back for this limit: 0 unless its rule delays requests and is enforced."""
    return delay_us(limit, outcome, cost) if limit.refusal.max_delay_us and limit.enforced else 0


def restrictiveness(pair: tuple[Check, Outcome]) -> tuple[bool, float, int, int]:
    """Sorts the enforced before the shadows, the longest wait first, then the least remaining."""
    limit, (wait_us, remaining, reset_us) = pair
    return (not limit.enforced, float("-inf") if wait_us == NEVER else -wait_us, remaining, -reset_us)


def delayed(limits: tuple[Check, ...], outcomes: tuple[Outcome, ...], block: Block) -> tuple[Outcome, ...]:
    """The outcomes of a refusal that began a block: the rule that began it has the client wait until its end."""
    return tuple(
        outcome._replace(wait_us=max(outcome.wait_us, block.left_us))
        if limit.rule == block.rule and outcome.wait_us > 0
        else outcome
        for limit, outcome in zip(limits, outcomes, strict=True)
    )
