"""What is remembered of refusals is what the oracle would say, and a check at the announced wait always goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.algorithms import ALGORITHMS
from headgate.core.check import Check, Group, Outcome, Result
from headgate.core.key import key_template
from headgate.stores.redis.denial_cache import DenialCache
from headgate.testing import FakeClock
from tests.property.strategies import SECOND, SIX, edge_step, examples, quotas, sequences, starts, steps
from tests.property.test_oracle import oracle_of

SPACE = key_template("user", "r", "gcra")


@pytest.mark.parametrize("algorithm", SIX)
@examples(150)
@given(data=st.data())
def test_it_says_what_the_oracle_says(algorithm: str, data: st.DataObject) -> None:
    tight = data.draw(st.booleans(), label="tight")
    if tight:
        quota = data.draw(quotas(algorithm, limit=st.integers(1, 7), window=st.integers(1_000, 1_013)), label="quota")
        taken = data.draw(sequences(edge_step(), 40), label="steps")
    else:
        quota, taken = data.draw(quotas(algorithm), label="quota"), data.draw(steps(), label="steps")
    clock, oracle, twin, state = FakeClock(), oracle_of(quota), ALGORITHMS[algorithm], None
    denials = DenialCache(data.draw(st.sampled_from([1_000, SECOND, 10**15]), label="remember"), clock)
    clock._now_us = data.draw(starts(), label="start")
    wait, remaining = 0, quota.capacity
    for step in taken:
        clock._now_us += step.move.us(quota, clock.now_us(), wait)
        now = clock.now_us()
        cost = step.cost.of(quota, remaining)
        group = Group((Check("r", SPACE, "alice", quota, cost),))
        (known,) = denials.answers([group])
        expected = oracle.check(now, cost)
        if known is None:
            wait, state = twin.admit(state, now, quota, cost)
            remaining, reset = twin.figures(state, now, quota)
            denials.learn([group], [Result(now, (Outcome(wait, remaining, reset),))], now, denials.epoch)
            continue
        (outcome,) = known.outcomes
        assert known.now_us == now
        assert outcome.wait_us == expected.wait != 0
        assert outcome.reset_us == expected.reset
        assert outcome.remaining <= expected.remaining
        assert cost > 1 or outcome == tuple(expected)
        wait = outcome.wait_us


@pytest.mark.parametrize("algorithm", SIX)
@examples(70)
@given(data=st.data())
def test_a_check_at_the_announced_wait_is_asked_however_slow_the_server(algorithm: str, data: st.DataObject) -> None:
    quota = data.draw(quotas(algorithm), label="quota")
    clock, twin = FakeClock(), ALGORITHMS[algorithm]
    denials = DenialCache(10**15, clock)
    there, back = data.draw(st.tuples(*[st.integers(0, 50_000)] * 2), label="on the way")
    _, state = twin.admit(None, clock.now_us() + there, quota, quota.capacity)
    asked, decided = clock.now_us(), clock.now_us() + there
    wait, _ = twin.admit(state, decided, quota, 1)
    group = Group((Check("r", SPACE, "alice", quota, 1),))
    clock._now_us = decided + back
    result = Result(decided, (Outcome(wait, *twin.figures(state, decided, quota)),))
    denials.learn([group], [result], asked, denials.epoch)
    clock._now_us += data.draw(st.integers(0, max(1, wait)), label="later")
    (known,) = denials.answers([group])
    if known is not None:
        assert twin.admit(state, clock.now_us(), quota, 1)[0] > 0, "it would have passed"
        announced = clock.now_us() + known.outcomes[0].wait_us
        assert twin.admit(state, announced, quota, 1)[0] == 0
        clock._now_us = announced
        assert denials.answers([group]) == [None]
