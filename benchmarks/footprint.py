"""How much memory a key takes, and whether a check gets slower when there are a million of them.

Runs in a process of its own (`python -m benchmarks.footprint QUOTA KEYS ROUNDS` prints JSON), whose
resident memory is looked at before and after. A key's subject is counted in, as are the tables that keys
stand in. `10000/month` is what keeps all keys in use to the end, and refuses nobody: of `100/minute`, which
is told as well, one check is forgotten after 0.6 seconds, and the store gives back the key while others
still come. The same look-ups in a bare dict show what the machine's own memory has to do with it.
"""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.measure import Series, Turn, interleave
from benchmarks.plan import Plan
from benchmarks.report import Row, Section, Target
from headgate import Limiter
from headgate.stores.memory import MemoryStore

LASTING, PASSING = "10000/month gcra", "100/minute gcra"
MAX_KEYS = 2_000_000
FEW = 1_000
PICKS = 100_000
SECONDS = 240
BYTES = Target(250, "bytes", at_least=False)
TIMES = Target(1.5, at_least=False)


def run(plan: Plan) -> Section:
    keys = plan.footprint_keys
    told = in_own_process(LASTING, keys, plan.footprint_rounds)
    passing = in_own_process(PASSING, keys, 0)
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
    limiter_with(quota, FEW)  # whatever is made only once
    before = resident()
    many, store = limiter_with(quota, keys)
    facts: dict[str, Any] = {"growth": resident() - before, "held": len(store)}
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
