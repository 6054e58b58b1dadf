"""Fixtures for tests on real servers: limiters of both kinds, servers that a test may stop, a proxy in between."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.limiters import Open
from tests.integration.lossy import Lossy, behind_proxies
from tests.proxy import Proxy
from tests.servers import Server, default_binary
from tests.topologies import Cluster


@pytest.fixture(params=["Limiter", "AsyncLimiter"])
def open_limiter(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Makes a Limiter, or something like it on an AsyncLimiter; closed at the end."""
    opened = Open(request.param)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def lossy_cluster() -> Iterator[tuple[Cluster, list[Lossy]]]:
    """A cluster whose servers are reached through proxies."""
    with behind_proxies() as servers:
        yield servers


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that a test may stop, halt and kill, of the first kind at hand."""
    with Server(default_binary()) as server:
        yield server


@pytest.fixture
def proxy(own_server: Server) -> Iterator[Proxy]:
    """In front of `own_server`."""
    with Proxy(own_server.port) as proxy:
        yield proxy
