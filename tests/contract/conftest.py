"""Several servers at once, for contracts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import TIMEOUT
from tests.topologies import Cluster, SentinelTrio


@pytest.fixture(scope="module")
def trio() -> Iterator[SentinelTrio]:
    with SentinelTrio() as trio:
        yield trio


@pytest.fixture
def sentinel_url(trio: SentinelTrio) -> str:
    """The URL of a master behind Sentinel."""
    return f"{trio.url}?{TIMEOUT}"


@pytest.fixture
def cluster_url(cluster: Cluster) -> str:
    """The URL of an empty cluster."""
    cluster.empty()
    return f"{cluster.url}?{TIMEOUT}"
