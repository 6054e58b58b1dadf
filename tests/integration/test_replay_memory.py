"""A replay needs memory for the subjects of a log, and not for its lines."""

from __future__ import annotations

import pytest

from benchmarks.replay import grown

LINES = 2_000_000
MAX_GROWN = 20.0  # MiB, from a tenth of the lines on; two million decisions would be hundreds


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_memory_does_not_grow_with_the_lines() -> None:
    requests, growth = grown(LINES)
    assert requests == LINES
    assert growth < MAX_GROWN
