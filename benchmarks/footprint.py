"""How much memory a key takes, and whether a check gets slower when there are a million of them.

Runs in a process of its own (`python -m benchmarks.footprint QUOTA KEYS ROUNDS` prints JSON), whose
resident memory is looked at before and after. A key's subject is counted in, as are the tables that keys
stand in. `10000/month` is what keeps all keys in use to the end, and refuses nobody: of `100/minute`, which
is told as well, one check is forgotten after 0.6 seconds, and the store gives back the key while others
still come. The same look-ups in a bare dict show what the machine's own memory has to do with it. Full collections
by the garbage collector are timed while the keys are made, and three times after that; the longest counts. The service
keeps its keys out of them; an app that uses the library decides that itself.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.measure import Series, Turn, interleave
from benchmarks.plan import Plan
from benchmarks.report import Row, Section, Target
from headgate import AsyncLimiter, Limiter
from headgate.service.process import LOOK_SECONDS, freeze_new_keys
from headgate.stores.memory import MemoryStore

LASTING, PASSING = "10000/month gcra", "100/minute gcra"
MAX_KEYS = 2_000_000
FEW = 1_000
PICKS = 100_000
SECONDS = 240
BYTES = Target(250, "bytes", at_least=False)
TIMES = Target(1.5, at_least=False)
COLLECTION = Target(20, "ms", at_least=False)
BURST = 100  # checks between two looks of the event loop
SERVICE = -1  # as ROUNDS: measure full collections as in the service
OLDEST = 2  # the generation that a full collection collects


def run(plan: Plan) -> Section:
    keys = plan.footprint_keys
    told = in_own_process(LASTING, keys, plan.footprint_rounds)
    passing = in_own_process(PASSING, keys, 0)
    in_service = in_own_process(LASTING, keys, SERVICE)
    section = Section(
        "footprint",
        f"4. Memory, {keys:,} keys" + ("" if keys == 1_000_000 else " (quick: not a million)"),
        "figure",
        notes=[
            f"{LASTING}, one check for each of {keys:,} subjects; {told['held']:,} keys held at the end;",
            f"{PASSING}: {passing['held']:,} keys held at the end, {passing['growth'] / 2**20:.0f} MiB more",
            f"than before, against {told['growth'] / 2**20:.0f} MiB: what no longer matters is given back.",
        ],
    )
    per_key = told["growth"] / told["held"]
    section.rows.append(Row("memory per key, all included", "headgate", per_key, "bytes", 0.0, per_key, BYTES))
    for place, told_there, target in (("library", told, None), ("service", in_service, COLLECTION)):
        longest = told_there["collection_ms"]
        section.rows.append(Row("longest full collection", place, longest, "ms", 0.0, longest, target))
    for contender, work in (("headgate", "check of a random known subject"), ("a bare dict", "get of the same")):
        few, many = (Series(tuple(told[contender][size])) for size in ("few", "many"))
        target = TIMES if contender == "headgate" else None
        section.rows.append(Row(work, f"{contender}, {FEW:,} keys", few.median, "µs", few.spread))
        section.rows.append(
            Row(work, f"{contender}, {keys:,} keys", many.median, "µs", many.spread, many.times(few), target)
        )
    return section


def in_own_process(quota: str, keys: int, rounds: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.footprint", quota, str(keys), str(rounds)]
    root = Path(__file__).parent.parent
    told = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=SECONDS, check=False)
    if told.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{told.stderr}")
    facts: dict[str, Any] = json.loads(told.stdout)
    return facts


def resident() -> int:
    """Bytes of memory that this process holds."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def limiter_with(quota: str, keys: int) -> tuple[Limiter, MemoryStore]:
    store = MemoryStore(max_keys=MAX_KEYS)
    limiter = Limiter(quota, store=store)
    for number in range(keys):
        limiter.check(f"user-{number}")
    return limiter, store


@contextmanager
def full_collections() -> Iterator[list[float]]:
    """A list to which each full collection's milliseconds are added."""
    milliseconds: list[float] = []
    began = 0.0

    def note(phase: str, facts: dict[str, int]) -> None:
        nonlocal began
        if facts["generation"] == OLDEST and phase == "start":
            began = perf_counter()
        elif facts["generation"] == OLDEST:
            milliseconds.append((perf_counter() - began) * 1_000)

    gc.callbacks.append(note)
    try:
        yield milliseconds
    finally:
        gc.callbacks.remove(note)


async def longest_in_service(quota: str, keys: int) -> float:
    """The longest full collection, in milliseconds, of a process that does with its keys what the service does."""
    store = MemoryStore(max_keys=MAX_KEYS)
    limiter = AsyncLimiter(quota, store=store)
    freezing = asyncio.create_task(freeze_new_keys(store))
    with full_collections() as milliseconds:
        for number in range(keys):
            await limiter.check(f"user-{number}")
            if number % BURST == 0:
                await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(3 * LOOK_SECONDS)
            gc.collect()
    freezing.cancel()
    return max(milliseconds)


def random_picks(function: Callable[[str], object], keys: int) -> Turn:
    """Microseconds per call. Both sizes have as many picks, each a string of its own, made beforehand."""
    chosen = random.Random(keys)
    picks = [f"user-{chosen.randrange(keys)}" for _ in range(PICKS)]

    def microseconds() -> float:
        start = perf_counter()
        for subject in picks:
            function(subject)
        return (perf_counter() - start) / PICKS * 1e6

    return microseconds


def main(quota: str, keys: int, rounds: int) -> None:
    if rounds == SERVICE:
        json.dump({"collection_ms": asyncio.run(longest_in_service(quota, keys))}, sys.stdout)
        return
    limiter_with(quota, FEW)  # whatever is made only once
    before = resident()
    with full_collections() as milliseconds:
        many, store = limiter_with(quota, keys)
        for _ in range(3):
            gc.collect()
    facts: dict[str, Any] = {"growth": resident() - before, "held": len(store), "collection_ms": max(milliseconds)}
    if rounds:
        few, _ = limiter_with(quota, FEW)
        functions: dict[str, tuple[Callable[[str], object], Callable[[str], object]]] = {
            "headgate": (few.check, many.check),
            "a bare dict": (
                {f"user-{number}": number for number in range(FEW)}.get,
                {f"user-{number}": number for number in range(keys)}.get,
            ),
        }
        for name, (on_few, on_many) in functions.items():
            turns = {"few": random_picks(on_few, FEW), "many": random_picks(on_many, keys)}
            facts[name] = {size: series.values for size, series in interleave(turns, rounds).items()}
        if not (few.check("user-1").allowed and many.check("user-1").allowed):
            raise RuntimeError(f"{quota} was used up: it refused what it should have allowed")
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
