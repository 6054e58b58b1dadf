"""What a crowd of idle and slow connections costs those who really ask: response times with it and without.

    python -m benchmarks.crowd [--turns 5] [--seconds 4]

`headgate serve` in memory, and 2,000 connections in a process of their own: 1,000 that are kept and ask for nothing,
500 whose requests come by a byte a second, and 500 at the port of gRPC that never call. Ordinary clients send one check
after the other on connections of their own, below what the service can take, so that what is measured is the wait and
not the queue. Turns with the crowd and without it alternate.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from contextlib import nullcontext
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

from tests.crowd import crowded
from tests.service import Service, running_service

CLIENTS = 4
PAUSE = 0.005  # seconds between two checks of a client
SIZES = {"idle": 1_000, "slow": 500, "silent": 500}
TARGET = 2.0
BODY = b'{"user":"%s","cost":0}'
REQUEST = b"POST /v1/check HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"


async def ask(host: str, port: int, number: int, seconds: float, times: list[float]) -> None:
    """One client: a check, a pause, and so on."""
    body = BODY % b"user-%d" % number
    request = REQUEST % (len(body), body)
    reader, writer = await asyncio.open_connection(host, port)
    end = perf_counter() + seconds
    while perf_counter() < end:
        start = perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"unexpected answer: {head!r}")
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        times.append(perf_counter() - start)
        await asyncio.sleep(PAUSE)
    writer.close()


async def turn(service: Service, seconds: float) -> list[float]:
    """Response times, in ms."""
    host, port = service.url.removeprefix("http://").split(":")
    times: list[float] = []
    await asyncio.gather(*(ask(host, int(port), number, seconds, times) for number in range(CLIENTS)))
    return [1_000 * time for time in times]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    p50: dict[bool, list[float]] = {False: [], True: []}
    p99: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as directory, running_service(Path(directory)) as service:
        asyncio.run(turn(service, 1.0))  # warm
        http = service.url.removeprefix("http://")
        for _ in range(given.turns):
            for crowd in (False, True):
                with crowded(http, service.grpc_address, **SIZES) if crowd else nullcontext():
                    centiles = quantiles(asyncio.run(turn(service, given.seconds)), n=100)
                p50[crowd].append(centiles[49])
                p99[crowd].append(centiles[98])
    for crowd in (False, True):
        name = f"with {sum(SIZES.values()):,} connections besides" if crowd else "alone"
        print(f"{name:32} p50 {median(p50[crowd]):6.2f} ms   p99 {median(p99[crowd]):6.2f} ms")
    ratio = median(p99[True]) / median(p99[False])
    print(f"p99 is {ratio:.2f} times that (at most {TARGET:g}: {'met' if ratio <= TARGET else 'missed'})")


if __name__ == "__main__":
    main()
