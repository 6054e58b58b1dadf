"""What other regions have counted fades with time: until when it is known, whatever it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.check import Check
from headgate.core.key import key_template
from headgate.core.quota import Quota
from headgate.features.regions.counts import KnownCounts

WINDOW_US = 1_000


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_counter"])
@given(st.dictionaries(st.integers(3, 5), st.integers(1, 10**6)), st.integers(4_000, 5_999))
def test_what_others_have_counted_is_known_until_it_changes(
    algorithm: str, totals: dict[int, int], now_us: int
) -> None:
    quota = Quota(100, WINDOW_US / 1e6, algorithm=algorithm)  # type: ignore[arg-type]
    known = KnownCounts(Check("a", key_template("user", "a", algorithm), "alice", quota), 30)
    others, until_us = known.others(totals, now_us)
    assert until_us > now_us
    assert known.others(totals, until_us - 1)[0] == others
    assert until_us % WINDOW_US == 0 or known.others(totals, until_us)[0] < others
