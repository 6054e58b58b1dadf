"""Leases of eight processes on a real server: never over, nearly all of the limit used, and few calls."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.leaser import SIZE, WINDOWS
from tests.integration.limiters import calm_window
from tests.integration.workers import Workers
from tests.servers import Server

PROCESSES = 8
LIMIT = 20_000
BURSTS = 5
LEASED = ("fixed_window", "sliding_window_counter", "token_bucket", "leaky_bucket", "gcra")
BURSTING = [  # by default each algorithm in threads or in asyncio, in turn
    pytest.param(
        algorithm,
        tasks,
        id=f"{algorithm}-{'asyncio' if tasks else 'threads'}",
        marks=() if number % 2 == bool(tasks) else pytest.mark.extended,
    )
    for number, algorithm in enumerate(LEASED)
    for tasks in (0, 16)
]


@pytest.fixture
def tally(tmp_path: Path) -> Path:
    path = tmp_path / "tally"
    path.write_bytes(bytes(SIZE * PROCESSES))
    return path


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    workers = Workers("tests.integration.leaser", PROCESSES)
    yield workers
    workers.close()


def counts(tally: Path) -> list[int]:
    """What all processes let in, by window."""
    numbers = struct.unpack(f"<{PROCESSES * WINDOWS}q", tally.read_bytes())
    return [sum(numbers[window::WINDOWS]) for window in range(WINDOWS)]


def jobs(server: Server, tally: Path, algorithm: str, window: int, **options: Any) -> list[dict[str, Any]]:
    shared = {
        "url": server.url + "?timeout=5",  # eight processes on few cores may have to wait for one another
        "rule": f"leased-{algorithm}",
        "algorithm": algorithm,
        "limit": LIMIT,
        "window": window,
        "first": int(time.time()) // window,
        "tally": str(tally),
    }
    return [shared | options | {"place": place} for place in range(PROCESSES)]


def script_calls(server: Server) -> int:
    """How often scripts were run."""
    with server.client() as client:
        stats: dict[str, dict[str, int]] = client.info("commandstats")
    return sum(stats[name]["calls"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)


@pytest.mark.parametrize(("algorithm", "tasks"), BURSTING)
def test_eight_processes_in_bursts(
    workers: Workers, own_server: Server, tally: Path, algorithm: str, tasks: int
) -> None:
    checks_per_task = LIMIT * 3 // 2 // PROCESSES // BURSTS // max(1, tasks)
    shared = {"bursts": BURSTS, "pause": 0.2, "tasks": tasks, "checks_per_task": checks_per_task}
    answers = workers.run(jobs(own_server, tally, algorithm, calm_window(), **shared))
    admitted, checks = sum(counts(tally)), sum(answer["checks"] for answer in answers)
    calls = script_calls(own_server) - PROCESSES  # all have peeked
    print(f"{algorithm}: {admitted} of {LIMIT} in {checks} checks, {calls / checks:.4f} calls per check")
    assert checks > LIMIT
    assert admitted <= LIMIT
    assert admitted >= 0.95 * LIMIT
    assert calls <= 0.05 * checks


@pytest.mark.extended
@pytest.mark.parametrize("algorithm", ["fixed_window", pytest.param("gcra", marks=pytest.mark.extended)])
def test_a_killed_process_loses_what_it_held_and_nobody_gains_it(
    own_server: Server, tally: Path, algorithm: str
) -> None:
    limit, window = 6_000, 1
    options = {"limit": limit, "bursts": 40, "pause": 0.24, "tasks": 0, "checks_per_task": 400}
    workers = Workers("tests.integration.leaser", PROCESSES)
    try:
        workers.start(jobs(own_server, tally, algorithm, window, **options))
        time.sleep(1.5)  # a moment at which it holds something
        answers = workers.kill_first()
    finally:
        workers.close()
    admitted = counts(tally)
    whole = [count for count in admitted if count][1:-1]
    print(f"{algorithm}: {[count for count in admitted if count]} of {limit} per window; one of {PROCESSES} was killed")
    assert len(answers) == PROCESSES - 1
    assert len(whole) >= 2
    # A bucket's burst of one window may follow on the end of the one before, and by a slice's life.
    assert max(admitted) <= (limit if algorithm != "gcra" else 3 * limit)
    assert sum(whole) <= limit * (len(whole) + (2 if algorithm == "gcra" else 0))
    assert max(whole) >= 0.95 * limit
