"""Leases: eight processes hold slices of one limit, spend them in bursts, and one of them is killed."""

from __future__ import annotations

import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.chaos.case import Case, Figures
from tests.integration.leaser import SIZE, WINDOWS
from tests.integration.limiters import calm_window
from tests.integration.workers import Workers
from tests.servers import Server, default_binary

PROCESSES = 8
LIMIT = 20_000
USABLE = 95.0  # percent of a limit
CALLS = 0.05  # to Redis, for each check
LEASE_SECONDS = 1  # for which a slice can be spent, at most; and the window of the limit, while one is killed
ALGORITHMS = ("fixed_window", "sliding_window_counter", "token_bucket", "leaky_bucket", "gcra")
BUCKETS = ("token_bucket", "leaky_bucket", "gcra")


class Tally:
    """A file in which all processes count what they let in, by window, as it happens."""

    def __init__(self, directory: str) -> None:
        self.path = Path(directory, "tally")
        self.empty()

    def empty(self) -> None:
        self.path.write_bytes(bytes(SIZE * PROCESSES))

    def by_window(self) -> list[int]:
        numbers = struct.unpack(f"<{PROCESSES * WINDOWS}q", self.path.read_bytes())
        return [sum(numbers[window::WINDOWS]) for window in range(WINDOWS)]

    def total(self) -> int:
        return sum(self.by_window())


@contextmanager
def leasing() -> Iterator[tuple[Server, Workers, Tally]]:
    with tempfile.TemporaryDirectory(prefix="headgate-leases-") as directory, Server(default_binary()) as server:
        workers = Workers("tests.integration.leaser", PROCESSES)
        try:
            yield server, workers, Tally(directory)
        finally:
            workers.close()


def jobs(server: Server, tally: Tally, algorithm: str, window: int, **options: Any) -> list[dict[str, Any]]:
    """The same for every process: eight of them on few processors have to wait for one another, so they are patient."""
    shared = {
        "url": f"{server.url}?timeout=5",
        "rule": f"leased-{algorithm}-{window}",
        "algorithm": algorithm,
        "limit": LIMIT,
        "window": window,
        "first": int(time.time()) // window,
        "tally": str(tally.path),
        "tasks": 0,
    }
    return [shared | options | {"place": place} for place in range(PROCESSES)]


def script_calls(server: Server) -> int:
    with server.client() as client:
        stats: dict[str, dict[str, int]] = client.info("commandstats")
    return sum(stats[name]["calls"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)


def bursts(figures: Figures, quick: bool) -> None:
    """They try half as many again as the limit is, of which nothing comes back meanwhile."""
    shares: dict[str, tuple[float, float]] = {}
    over = checks = 0
    with leasing() as (server, workers, tally):
        for algorithm in ALGORITHMS:
            for tasks in (0, 16):
                tally.empty()
                each = LIMIT * 3 // 2 // PROCESSES // 5 // max(1, tasks)
                spent = {"bursts": 5, "pause": 0.2, "tasks": tasks, "checks_per_task": each}
                rule = f"leased-{algorithm}-{tasks}"
                before = script_calls(server)
                answers = workers.run(jobs(server, tally, algorithm, calm_window(), rule=rule, **spent))
                made = sum(answer["checks"] for answer in answers)
                admitted, calls = tally.total(), script_calls(server) - before - PROCESSES  # all have peeked
                name = f"{algorithm}, {'tasks' if tasks else 'threads'}"
                shares[name] = (100 * min(admitted, LIMIT) / LIMIT, calls / made)
                over, checks = over + max(0, admitted - LIMIT), checks + made
    figures.note("checks", f"{checks:,} in {len(shares)} runs")
    figures.exactly("admitted beyond a limit", over)
    worst = min(shares, key=lambda name: shares[name][0])
    figures.at_least(f"usable at least ({worst})", shares[worst][0], USABLE, "%")
    worst = max(shares, key=lambda name: shares[name][1])
    figures.at_most(f"calls per check at most ({worst})", shares[worst][1], CALLS)


def kill(figures: Figures, quick: bool) -> None:
    for algorithm in ("fixed_window", "gcra"):
        lost_for_good(figures, algorithm)
        back_in_time(figures, algorithm)


def lost_for_good(figures: Figures, algorithm: str) -> None:
    """Of a limit that does not come back, what the one held is lost, and nobody gains it."""
    with leasing() as (server, workers, tally):
        spent = {"bursts": 30, "pause": 0.1, "checks_per_task": LIMIT // 100}
        workers.start(jobs(server, tally, algorithm, calm_window(), **spent))
        while tally.total() < LIMIT // 4:
            time.sleep(0.005)
        workers.kill_first()
        admitted = tally.total()
    figures.exactly(f"{algorithm}: admitted beyond the limit", max(0, admitted - LIMIT))
    figures.at_most("… lost with the one", max(0, LIMIT - admitted), LIMIT // PROCESSES)


def back_in_time(figures: Figures, algorithm: str) -> None:
    """Of a limit per second, the whole is there again in the second that begins after the kill."""
    with leasing() as (server, workers, tally):
        with server.client() as client:
            first = client.time()[0]
            each = {"bursts": 60, "pause": 0.12, "checks_per_task": 400, "limit": LIMIT // 4, "first": first}
            workers.start(jobs(server, tally, algorithm, LEASE_SECONDS, **each))
            time.sleep(1.5)
            killed = client.time()[0]
        workers.kill_first()
        limit, admitted = LIMIT // 4, tally.by_window()
    over = max(beyond(admitted, limit, is_bucket=algorithm in BUCKETS))
    figures.exactly(f"{algorithm}, a second: beyond the limit", max(0, over))
    share = 100 * min(1.0, admitted[killed - first + 1] / limit)
    figures.at_least("… usable in the second after the kill", share, USABLE, "%")


def beyond(admitted: list[int], limit: int, *, is_bucket: bool) -> Iterator[int]:
    """By how many each window was over. A bucket is full at first, and what it had not let in it still has."""
    total = 0
    for number, count in enumerate(admitted):
        total += count
        yield total - limit * (number + 2) if is_bucket else count - limit


CASES = (
    Case("lease-kill", "one of 8 nodes that hold leases is killed", kill),
    Case("lease-bursts", "8 processes spend a leased limit in bursts", bursts),
)
