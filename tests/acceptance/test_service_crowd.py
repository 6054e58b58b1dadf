"""The whole service among 2,000 connections that are idle or slow: who really asks is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import httpx

from headgate.service.protos import rate_limiter_pb2 as rl
from tests.crowd import crowded
from tests.service import Service, warm_service
from tests.waiting import until

STUCK = 60.0
LISTENS, NO_INODE = "0A", "0"  # in /proc/net/tcp: the state of a listener; what no process has accepted, or has closed


def memory_kb(service: Service) -> int:
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def connections(service: Service) -> int:
    """How many connections the service has accepted and not yet closed, at both ports."""
    ports = {int(address.rpartition(":")[2]) for address in (service.url, service.grpc_address)}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    at_ports = [row for row in rows if int(row[1].rpartition(":")[2], 16) in ports]
    return sum(row[3] != LISTENS and row[9] != NO_INODE for row in at_ports)


def test_a_crowd_is_cut_off_in_time_and_others_are_served(tmp_path: Path) -> None:
    with warm_service(tmp_path) as service:
        before_kb = memory_kb(service)
        http, ask = service.url.removeprefix("http://"), rl.CheckRequest(identifier="u", cost=0).SerializeToString()
        with crowded(http, service.grpc_address, idle=1_000, slow=500, silent=500) as crowd:
            until(lambda: connections(service) >= 2_000, "the whole crowd is connected")
            with (
                httpx.Client(base_url=service.url, timeout=STUCK) as client,
                grpc.insecure_channel(service.grpc_address) as channel,
            ):
                method: Any = channel.unary_unary("/headgate.v1.RateLimiter/CheckRateLimit")

                def cut_off() -> bool:
                    """Whether all have been who never finish what they begin to say. Meanwhile, others are served."""
                    assert client.post("/v1/check", json={"user": "u", "cost": 0}).status_code == 200
                    assert method(ask, timeout=STUCK)
                    told = crowd.tell()
                    return told["answered"]["HTTP/1.1 408"] >= 500 and told["cut_off"]["silent"] >= 250

                until(cut_off)
            assert crowd.tell()["cut_off"]["idle"] == 0
            assert memory_kb(service) < before_kb + 60_000
        until(lambda: connections(service) == 0, "the connections of the crowd are closed")
        assert service.stop() == 0
