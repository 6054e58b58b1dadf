"""What penalties cost in memory: a blocked client's check beside an allowed one, with and without penalties.

`python -m benchmarks.penalties` prints nanoseconds per check; `--quick` takes a second.
"""

from __future__ import annotations

import sys
from statistics import median
from time import perf_counter_ns

from headgate import Limiter, Rule
from headgate.rules import Penalties, Snapshot

RULES = [
    Rule(id="second", quota="1000000000/second gcra"),
    Rule(id="upload", quota="1/hour fixed_window", endpoints=["/upload"]),
]


def run(quick: bool) -> dict[str, float]:
    """Nanoseconds per check: medians of rounds that take turns, so that a busy machine is busy for all of them."""
    checks, rounds = (2_000, 7) if quick else (20_000, 25)
    off = Limiter(Snapshot(RULES))
    on = Limiter(Snapshot(RULES, penalties=Penalties(enabled=True, violation_threshold=1, multipliers=[1_000])))
    while on.check(user="villain", endpoint="/upload").reason != "penalty":
        pass
    cases = {
        "allowed, penalties off": (off, "alice", "within_limit"),
        "allowed, penalties on": (on, "alice", "within_limit"),
        "blocked": (on, "villain", "penalty"),
    }
    for limiter, user, reason in cases.values():
        assert limiter.check(user=user, endpoint="/search").reason == reason
    times: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case, (limiter, user, _) in cases.items():
            start = perf_counter_ns()
            for _ in range(checks):
                limiter.check(user=user, endpoint="/search")
            times[case].append((perf_counter_ns() - start) / checks)
    return {case: median(each) for case, each in times.items()}


if __name__ == "__main__":
    figures = run("--quick" in sys.argv)
    for case, ns in figures.items():
        print(f"{case:24} {ns:8.0f} ns")
    ratio = figures["blocked"] / figures["allowed, penalties on"]
    print(f"{'blocked : allowed':24} {ratio:8.2f}   (at most 1.00)")
