"""How many can pass around the turn of a window: the bounds that docs/explanation/algorithms.md tells."""

from __future__ import annotations

from types import ModuleType

import pytest

from headgate.algorithms import fixed_window, gcra, sliding_window_counter, sliding_window_log
from headgate.core.quota import Quota

WINDOW = 60_000_000
TURN = 1_700_000_040_000_000


def admitted(algorithm: ModuleType, limit: int, before: int, moments: list[int]) -> list[int]:
    """How many have passed by each of these moments after the turn, when `before` passed right before it and as many as
    can come at each."""
    quota = Quota(limit, 60, algorithm=algorithm.__name__.rpartition(".")[2])  # type: ignore[arg-type]
    state, passed, counts = None, 0, []
    for now, most in [(TURN - 1, before), *((TURN + moment, limit) for moment in moments)]:
        for _ in range(most):
            wait, state = algorithm.admit(state, now, quota, 1)
            passed += wait == 0
        counts.append(passed)
    return counts[1:]


@pytest.mark.parametrize("limit", range(1, 21))
def test_a_sliding_window_counter_lets_one_more_pass_at_the_turn_and_the_rest_bit_by_bit(limit: int) -> None:
    moments = sorted({0, 1, *(WINDOW * part // (4 * limit) + odd for part in range(1, 4 * limit) for odd in (0, 1))})
    most = [limit - (-limit * moment // WINDOW) for moment in moments]  # and the share of the time, rounded up
    assert admitted(sliding_window_counter, limit, limit, moments) == most
    assert most[1] == limit + 1
    assert most[-1] == 2 * limit
    for before in range(limit):
        for moment, bound in zip(moments, most, strict=True):  # who saves some for after the turn gets no more
            assert admitted(sliding_window_counter, limit, before, [moment])[0] <= bound


@pytest.mark.parametrize("limit", range(1, 21))
def test_what_others_let_pass_at_the_turn(limit: int) -> None:
    assert admitted(fixed_window, limit, limit, [1]) == [2 * limit]
    assert admitted(sliding_window_log, limit, limit, [1, WINDOW - 2, WINDOW - 1]) == [limit, limit, 2 * limit]
    assert admitted(gcra, limit, limit, [1, WINDOW // limit - 2]) == [limit, limit]
