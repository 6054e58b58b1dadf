"""Fixtures: limiters of both kinds in memory, on a clock that a test moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.testing import FakeClock
from tests.integration.limiters import Open

START = 1_700_000_040.0  # when a minute begins


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture(params=["Limiter", "AsyncLimiter"])
def open_limiter(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Makes a Limiter, or something like it on an AsyncLimiter; closed at the end."""
    opened = Open(request.param)
    yield opened
    opened.close()
