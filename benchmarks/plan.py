"""How much is measured: the whole of it in some twenty minutes, or quickly in some two."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Seconds are those of one contender's turn; a round gives a turn to each."""

    memory_seconds: float
    memory_rounds: int
    redis_seconds: float
    redis_rounds: int
    async_seconds: float
    async_rounds: int
    footprint_keys: int
    footprint_rounds: int
    lease_rounds: int
    web_seconds: int
    web_rounds: int
    brief: bool  # web: in memory only, and one way of each; rules: not from PostgreSQL


FULL = Plan(
    memory_seconds=0.1,
    memory_rounds=9,
    redis_seconds=0.3,
    redis_rounds=9,
    async_seconds=0.4,
    async_rounds=9,
    footprint_keys=1_000_000,
    footprint_rounds=9,
    lease_rounds=5,
    web_seconds=2,
    web_rounds=7,
    brief=False,
)
QUICK = Plan(
    memory_seconds=0.016,
    memory_rounds=5,
    redis_seconds=0.08,
    redis_rounds=4,
    async_seconds=0.12,
    async_rounds=3,
    footprint_keys=200_000,
    footprint_rounds=3,
    lease_rounds=2,
    web_seconds=1,
    web_rounds=2,
    brief=True,
)
