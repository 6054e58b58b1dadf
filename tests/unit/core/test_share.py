"""The shares of all nodes add up to the quota, and never to more."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import Quota
from headgate.core.quota import BUCKETS, WINDOWS
from headgate.core.share import ALONE, Standing, share
from tests.property.strategies import quotas


def shares(quota: Quota, nodes: int) -> list[Quota]:
    return [part for place in range(nodes) if (part := share(quota, Standing(nodes, place))) is not None]


def rate(quota: Quota) -> Fraction:
    return Fraction(quota.limit, quota.window_us)


def test_alone_means_the_whole_quota() -> None:
    quota = Quota(10, 60)
    assert share(quota, ALONE) == quota


@pytest.mark.parametrize("algorithm", WINDOWS)
def test_windows_are_divided_and_the_rest_goes_to_the_first(algorithm: str) -> None:
    assert [part.limit for part in shares(Quota(10, 60, algorithm=algorithm), 3)] == [4, 3, 3]  # type: ignore[arg-type]
    assert [part.limit for part in shares(Quota(2, 60, algorithm=algorithm), 3)] == [1, 1]  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_buckets_are_divided_and_filled_slower(algorithm: str) -> None:
    parts = shares(Quota(1, 60, burst=5, algorithm=algorithm), 3)  # type: ignore[arg-type]
    assert [(part.burst, part.limit, part.window) for part in parts] == [(2, 1, 180), (2, 1, 180), (1, 1, 180)]


@settings(deadline=None)
@given(quotas(), st.integers(2, 200))
def test_shares_never_add_up_to_more(quota: Quota, nodes: int) -> None:
    parts = shares(quota, nodes)
    assert sum(part.capacity for part in parts) <= quota.capacity
    assert sum(map(rate, parts)) <= rate(quota)
    assert {part.algorithm for part in parts} <= {quota.algorithm}


@settings(deadline=None)
@given(quotas(limit=st.integers(1, 10_000), window=st.integers(1_000, 10**9)), st.integers(2, 200))
def test_nothing_is_lost(quota: Quota, nodes: int) -> None:
    parts = shares(quota, nodes)
    if quota.algorithm in WINDOWS:
        assert sum(part.limit for part in parts) == quota.limit
    elif quota.burst >= nodes:
        assert sum(map(rate, parts)) == rate(quota)
