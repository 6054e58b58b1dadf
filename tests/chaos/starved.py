"""A machine that has too much to do: Redis is well, and neither it nor its callers get to run when they want to."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.chaos.case import Case, Figures
from tests.integration.limiters import calm_window
from tests.integration.workers import Workers
from tests.servers import Server, default_binary

PROCESSES = 4
CALLERS = 64  # tasks or threads of each process
CHECKS = 20  # of each caller
LIMIT = 3_000  # of 5,120 checks
SHARE = 0.001  # of all checks that may be left to failure modes
BUSY = "while True: pass"


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Programs that take all the processors' time."""
    loops = [subprocess.Popen([sys.executable, "-S", "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()


def starve(figures: Figures, quick: bool, *, kind: str, loops: int) -> None:
    """All processes make their first call at the same moment, on one key."""
    del quick
    with Server(default_binary()) as server:
        workers = Workers("tests.chaos.hammer", PROCESSES)
        job = {
            "url": server.url,
            "kind": kind,
            "callers": CALLERS,
            "checks": CHECKS,
            "limit": LIMIT,
            "window": calm_window(),
        }
        try:
            workers.prepare([job] * PROCESSES)
            with busy_loops(loops):
                workers.go()
                answers = workers.finish()
        finally:
            workers.close()
    reasons = sum((Counter(answer["reasons"]) for answer in answers), Counter[str]())
    checks = PROCESSES * CALLERS * CHECKS
    figures.exactly("checks", reasons.total(), checks)
    figures.exactly("admitted", checks - reasons["over_limit"], LIMIT)
    figures.at_most("left to failure modes", reasons["fail_open"], 0 if not loops else int(SHARE * checks))
    figures.note("p99 of a check", f"{max(answer['p99_ms'] for answer in answers):.0f} ms")
    figures.note("slowest check", f"{max(answer['slowest_ms'] for answer in answers):.0f} ms")


def _case(kind: str, loops: int) -> Case:
    beside = f"{loops} busy loops beside it" if loops else "nothing beside it"
    fault = f"{PROCESSES} processes of {CALLERS} {kind}, {beside}"
    telling = kind == "threads" and not loops  # holds on a busy machine, too, and is quick
    return Case(f"starved-{kind}-{loops}", fault, partial(starve, kind=kind, loops=loops), quick=telling)


CASES = tuple(_case(kind, loops) for loops in (0, 8, 16) for kind in ("tasks", "threads"))
