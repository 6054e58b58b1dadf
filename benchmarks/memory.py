"""In memory, one thread: every algorithm that a peer shares with us.

Three kinds of work. `allowed`: 16,000 per hour, and every chunk of 1,000 checks begins with an empty
limiter, so that no log ever holds more than 1,000 entries: in peers that keep one, each check gets slower
as it grows. 16,000 is a limit up to which our own log keeps every entry by itself. `refused`: 100 per hour,
all of it used up before the clock starts. `figures`: as `allowed`, and asking each time how much is left
and until when, which some work out when they are asked, some always, and some in a second call.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.contenders import ALGORITHMS, Contender, Peer, peers_for
from benchmarks.measure import Turn, interleave, rate_of, seconds_for
from benchmarks.plan import Plan
from benchmarks.report import Section, Target

AMPLE, SCARCE = 16_000, 100
CHUNK = 1_000
SUBJECT = "user-1"
TARGETS = {"limits": Target(3), "throttled-py": Target(3), "PyrateLimiter": Target(5)}


def run(plan: Plan) -> Section:
    section = Section(
        "memory",
        "1. In memory, one thread",
        "headgate is",
        notes=[
            f"allowed: {AMPLE}/hour, {CHUNK} checks per empty limiter; refused: {SCARCE}/hour, used up;",
            "figures: as allowed, and reading how much is left and until when (PyrateLimiter does not tell).",
        ],
    )
    for work, limit in (("allowed", AMPLE), ("refused", SCARCE), ("figures", AMPLE)):
        for algorithm in ALGORITHMS:
            turns = {
                peer.name: turn(peer, algorithm, limit, plan.memory_seconds, figures=work == "figures")
                for peer in peers_for(algorithm)
                if work != "figures" or peer.name != "PyrateLimiter"
            }
            series = interleave(turns, plan.memory_rounds)
            section.compare(f"{algorithm}, {work}", series, {} if work == "figures" else TARGETS)
    return section


def turn(peer: Peer, algorithm: str, limit: int, seconds: float, *, figures: bool) -> Turn:
    """Checks per second, over as many fresh limiters as fit into `seconds`."""

    def chunk() -> float:
        contender = peer.memory(algorithm, limit)
        for _ in range(limit + 1 if limit == SCARCE else 1):
            contender.check(SUBJECT)
        spent = seconds_for(CHUNK, called(contender, figures), SUBJECT)
        if contender.allowed(contender.check(SUBJECT)) is not (limit == AMPLE):
            raise RuntimeError(f"{peer.name}, {algorithm}, {limit}/hour: it did not decide as it should")
        contender.close()
        return spent

    return lambda: rate_of(seconds, CHUNK, chunk)


def called(contender: Contender, figures: bool) -> Callable[[str], object]:
    if not figures:
        return contender.check
    assert contender.figures is not None
    return contender.figures
