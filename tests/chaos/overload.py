"""A web application under a flood of requests, on a Redis that is asked for several times what it can do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.chaos import app
from tests.chaos.case import Case, Figures
from tests.integration.limiters import calm_window
from tests.servers import Server, default_binary
from tests.webserver import serving

SERVERS = 2
CONNECTIONS = 64  # to each server
REQUESTS = 20  # over each connection
LIMIT = 1_500  # of 2,560 requests
RIVALS = 48  # connections that keep Redis busy: each one alone would take all of its time
SHARE = 0.001  # of all requests that may be left to failure modes
BOUND_S = 120.0


@contextmanager
def flooded(port: int) -> Iterator[None]:
    """With others who ask more of a Redis than it can do."""
    flood = subprocess.Popen([sys.executable, "-m", "tests.chaos.flood", str(port), str(RIVALS)])
    try:
        yield
    finally:
        flood.kill()
        flood.wait()


async def ask(urls: list[str]) -> tuple[Counter[str], list[float]]:
    """Send all requests. Return how often each status and reason came, and how long each took."""
    seen: Counter[str] = Counter()
    times: list[float] = []

    async def connection(url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in range(REQUESTS):
            began = time.monotonic()
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
            await reader.readexactly(int(fields["content-length"]))
            times.append(time.monotonic() - began)
            seen[head.split(" ", 2)[1]] += 1
            seen[fields.get("x-reason", "refused")] += 1
        writer.close()

    async with asyncio.timeout(BOUND_S):
        await asyncio.gather(*(connection(url) for url in urls for _ in range(CONNECTIONS)))
    return seen, times


def overloaded(figures: Figures, quick: bool) -> None:
    del quick
    with Server(default_binary()) as server, ExitStack() as stack:
        env = {app.STORE: server.url, app.LIMIT: str(LIMIT), app.WINDOW: str(calm_window())}
        made = "tests.chaos.app:make"
        urls = [stack.enter_context(serving("uvicorn", made, "--factory", env=env)) for _ in range(SERVERS)]
        stack.enter_context(flooded(server.port))
        time.sleep(1)
        seen, times = asyncio.run(ask(urls))
    requests = SERVERS * CONNECTIONS * REQUESTS
    times.sort()
    figures.exactly("requests", seen["200"] + seen["429"], requests)
    figures.exactly("admitted", seen["200"], LIMIT)
    figures.at_most("left to failure modes", seen["fail_open"], int(SHARE * requests))
    figures.note("p99 of a request", f"{1_000 * times[int(0.99 * len(times))]:.0f} ms")
    figures.note("slowest request", f"{1_000 * times[-1]:.0f} ms")


CASES = (Case("overloaded", "ASGI on uvicorn × 2, Redis at several times its capacity", overloaded),)  # noqa: RUF001
