"""The Python twins answer as their definitions say: compared with the oracle, on any quota, at any times."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.algorithms import ALGORITHMS
from headgate.core.check import NEVER
from headgate.core.quota import Quota
from tests.oracle import Answer, Oracle
from tests.property.strategies import SIX, Step, edge_step, examples, one_step, quotas, sequences, starts, steps


def oracle_of(quota: Quota) -> Oracle:
    return Oracle(quota.algorithm, quota.limit, quota.window_us, quota.burst)


def answer(wait: int, figures: tuple[int, int]) -> Answer:
    return Answer(None if wait == NEVER else wait, *figures)


@pytest.mark.parametrize("algorithm", SIX)
@examples(150)
@given(data=st.data())
def test_a_twin_answers_like_the_oracle(algorithm: str, data: st.DataObject) -> None:
    quota = data.draw(quotas(algorithm), label="quota")
    _compare(quota, data.draw(starts() | st.just(0), label="start"), data.draw(steps(), label="steps"))


@pytest.mark.parametrize("algorithm", SIX)
@examples(70)
@given(data=st.data())
def test_a_twin_answers_like_the_oracle_in_tight_quarters(algorithm: str, data: st.DataObject) -> None:
    """Few units and windows of a few microseconds more than the least: every rounding shows at once."""
    quota = data.draw(quotas(algorithm, limit=st.integers(1, 7), window=st.integers(1_000, 1_013)), label="quota")
    _compare(
        quota, data.draw(st.integers(0, 5_000), label="start"), data.draw(sequences(edge_step(), 40), label="steps")
    )


def _compare(quota: Quota, now: int, steps: list[Step]) -> None:
    twin, oracle = ALGORITHMS[quota.algorithm], oracle_of(quota)
    state: Any = None
    wait, remaining = 0, quota.capacity
    for step in steps:
        now += step.move.us(quota, now, wait)
        cost = step.cost.of(quota, remaining)
        wait, state = twin.admit(state, now, quota, cost)
        figures = twin.figures(state, now, quota)
        assert answer(wait, figures) == oracle.check(now, cost)
        remaining = figures[0]


@pytest.mark.parametrize("algorithm", SIX)
@examples(70)
@given(data=st.data())
def test_a_refund_makes_it_as_if_never_charged(algorithm: str, data: st.DataObject) -> None:
    quota = data.draw(quotas(algorithm), label="quota")
    now = data.draw(starts(), label="start")
    twin, oracle = ALGORITHMS[algorithm], oracle_of(quota)
    refunds = st.one_of(st.none(), st.none(), st.integers(0, 5))  # which charge, counted from the newest
    resets: list[int] = []  # as told after each charge of the oracle's history
    state: Any = None
    wait, remaining = 0, quota.capacity
    for step, back in data.draw(sequences(st.tuples(one_step(), refunds), 20), label="steps"):
        now += step.move.us(quota, now, wait)
        if back is not None and resets:
            place = len(resets) - 1 - back % len(resets)
            if oracle.refund_is_exact(now, place):
                charged_at, charged = oracle.history[place]
                oracle.refund(place)
                state = twin.refund(state, now, quota, charged, charged_at, resets.pop(place))
        else:
            cost = step.cost.of(quota, remaining)
            wait, state = twin.admit(state, now, quota, cost)
            figures = twin.figures(state, now, quota)
            assert answer(wait, figures) == oracle.check(now, cost)
            if wait == 0 and cost:
                resets.append(figures[1])
        figures = twin.figures(state, now, quota)
        assert answer(0, figures) == oracle.peek(now, 0)
        remaining = figures[0]
