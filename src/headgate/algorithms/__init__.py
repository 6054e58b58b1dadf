"""The seven algorithms, each as a pair of twins: a Python module and a Lua file of the same name.

A Python twin has three pure functions, over explicit state (None is a key never seen) and time in microseconds:

    admit(state, now, quota, cost) -> (wait, state)

        `wait` is 0 when `cost` fits, `NEVER` when it never can, else the exact time until it would. The state
        returned is the one to keep: charged when it fitted. Otherwise it says the same as the one given, and is
        another object only when that one was outdated or, by a clock that went back, from the future.

    figures(state, now, quota) -> (remaining, reset)

        What still fits, and the time until the whole capacity does: 0 when the state no longer matters.

    refund(state, now, quota, cost, charged_at, reset) -> state

        Undoes a charge of `cost` made at `charged_at`, after which the figures said `reset`. The result never has more
        room than if the charge had not been made. Charges made since then stay counted.

`concurrency` has more: `take`, `release` and `renew`, of slots by their ids.

All arithmetic is on whole numbers and exact: fractions of a token or of a microsecond are kept as remainders.
The Lua twins (see prelude.lua) have the same functions and give the same answers.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Protocol

from headgate.algorithms import (
    calendar_window,
    concurrency,
    fixed_window,
    gcra,
    leaky_bucket,
    sliding_window_counter,
    sliding_window_log,
    token_bucket,
)
from headgate.core.quota import Quota


class Algorithm(Protocol):
    """A Python twin."""

    def admit(self, state: Any, now: int, quota: Quota, cost: int) -> tuple[int, Any]: ...

    def figures(self, state: Any, now: int, quota: Quota) -> tuple[int, int]: ...

    def refund(self, state: Any, now: int, quota: Quota, cost: int, charged_at: int, reset: int) -> Any: ...


ALGORITHMS: dict[str, Algorithm] = {
    "fixed_window": fixed_window,
    "sliding_window_log": sliding_window_log,
    "sliding_window_counter": sliding_window_counter,
    "token_bucket": token_bucket,
    "leaky_bucket": leaky_bucket,
    "gcra": gcra,
    "concurrency": concurrency,
    "calendar_window": calendar_window,
}


def lua(name: str) -> str:
    """The Lua source of one twin, or of the `prelude` that they share."""
    return files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
