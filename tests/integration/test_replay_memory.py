"""A replay needs memory for the subjects of a log, and not for its lines."""

from __future__ import annotations

import pytest

from benchmarks.replay import grown

LINES = 500_000
MAX_GROWN = 10.0  # MiB, from a tenth of the lines on; the decisions of all lines would be a hundred


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_memory_does_not_grow_with_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)  # to measure coverage takes time and memory
    requests, growth = grown(LINES)
    assert requests == LINES
    assert growth < MAX_GROWN
