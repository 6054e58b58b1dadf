"""Leases against an oracle: several nodes on one store let in no more than it allows, and lose nothing."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limiter, Quota, Rule
from headgate.core.check import Check, Group, Result
from headgate.core.quota import BUCKETS
from headgate.features.leases.lease import LIFE_US
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.property.strategies import examples
from tests.remote import Remote, ShortRemote
from tests.simulation.world import ALGORITHMS, Admission, excess

START = 1_700_000_000.0


class Burst(NamedTuple):
    """Checks of one node, at equal distances, after a pause. Then it may end: well, or by a crash."""

    node: int
    pause: float
    checks: int
    gap: float
    cost: int
    ends: str


bursts = st.builds(
    Burst,
    node=st.integers(0, 2),
    pause=st.sampled_from([0.0, 0.01, 0.15, 0.4, 1.1]),
    checks=st.integers(1, 80),
    gap=st.sampled_from([0.0003, 0.001, 0.005]),
    cost=st.sampled_from([1, 1, 1, 3]),
    ends=st.sampled_from(["", "", "", "closes", "crashes"]),
)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@examples(60)
@given(
    limit=st.sampled_from([10, 60, 300, 2_000]),
    window=st.sampled_from([0.5, 1.0, 60.0]),
    burst=st.sampled_from([0.5, 1.0, 2.0]),
    kind=st.sampled_from([Remote, ShortRemote]),
    story=st.lists(bursts, min_size=1, max_size=8),
)
def test_nodes_let_in_no_more_than_the_limit_and_lose_nothing(
    algorithm: str, limit: int, window: float, burst: float, kind: type[Remote], story: list[Burst]
) -> None:
    quota = Quota(limit, window, burst=int(limit * burst), algorithm=algorithm)  # type: ignore[arg-type]
    clock = FakeClock(START)
    remote, oracle = kind(MemoryStore(clock=clock)), MemoryStore(clock=clock)
    rule = Rule(id="leased", quota=quota, sync="leased")
    check = Check(rule.id, rule.key_template, "alice", quota)
    nodes = [Limiter([rule], store=remote, clock=clock) for _ in range(3)]
    admitted: list[Admission] = []
    crashed = False
    for node, pause, checks, gap, cost, ends in story:
        clock.advance(pause)
        for _ in range(checks):
            clock.advance(gap)
            decision = nodes[node].check("alice", cost=cost)
            assert decision.remaining <= quota.capacity
            if decision.allowed:
                admitted.append(Admission(clock.now_us(), cost))
                oracle.adjust((), [check._replace(cost=cost)])  # by force: it is told what was let in
        if ends:
            crashed = crashed or ends == "crashes"
            if ends == "closes":
                nodes[node].close()
            nodes[node] = Limiter([rule], store=remote, clock=clock)
    assert excess(quota, admitted) <= 0
    for limiter in nodes:
        limiter.close()
    left, expected = remaining(remote.memory, check), remaining(oracle, check)
    if algorithm in BUCKETS:  # it was charged up to a second earlier than it was spent, and has filled up since
        assert left <= expected + LIFE_US * limit // quota.window_us + 1
    elif crashed:
        assert left <= expected
    else:
        assert left == expected


def remaining(store: MemoryStore, check: Check) -> int:
    (result,) = store.check([Group((check,), peek=True)])
    assert isinstance(result, Result)
    return result.outcomes[0].remaining
