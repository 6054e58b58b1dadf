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


@pytest.fixture(scope="module")
def whole_cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def sentinel_url(trio: SentinelTrio) -> str:
    """The URL of a master behind Sentinel."""
    return f"{trio.url}?{TIMEOUT}"


@pytest.fixture
def cluster_url(whole_cluster: Cluster) -> str:
    """The URL of an empty cluster."""
    whole_cluster.empty()
    return f"{whole_cluster.url}?{TIMEOUT}"
