"""The servers that tests start themselves: what does not start leaves nothing behind, and ports are given once."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.servers import BUS, PORTS, Server, default_binary, free_port
from tests.topologies import Cluster

EPHEMERAL = 32_768  # from here on, the system gives ports to clients


def test_a_server_that_does_not_start_leaves_nothing_behind(tmp_path: Path) -> None:
    server = Server(default_binary(), ("--no-such-option", "yes"), disk=str(tmp_path))
    with pytest.raises(RuntimeError, match=f"did not start on port {server.port}"), server:
        pass
    assert not server.running
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_of_which_one_does_not_start_leaves_nobody_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.topologies.MEMORY", str(tmp_path / "none"))
    cluster = Cluster()
    cluster.masters[-1] = Server(default_binary(), ("--no-such-option", "yes"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(RuntimeError, match="did not start"), cluster:
        pass
    assert not any(server.running for server in cluster.servers)
    assert not list(tmp_path.glob("headgate-redis-*"))


def test_ports_are_given_once_and_so_are_those_of_a_clusters_bus() -> None:
    given = [free_port() for _ in range(50)]
    assert len(set(given)) == 50
    assert set(given) <= set(PORTS)
    assert max(PORTS) < min(PORTS) + BUS
    assert max(PORTS) + BUS < EPHEMERAL
