"""Redis, one thread: a real server on the loopback interface, one check after the other.

Every turn begins with an empty database and one check that is not timed, for connection and script. All
contenders talk to it through redis-py with hiredis, except that we use its connections without its client.
The limit is 16,000 per hour, which nobody reaches in one turn.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.contenders import ALGORITHMS, Contender, peers_for
from benchmarks.measure import Series, Turn, interleave, rate_of, seconds_for
from benchmarks.plan import Plan
from benchmarks.report import Section, Target
from tests.servers import Server

LIMIT = 16_000
CHUNK = 100
SUBJECT = "user-1"


def run(plan: Plan, server: Server) -> Section:
    section = Section(
        "redis",
        "2. Redis, one thread",
        "headgate is",
        notes=[f"{LIMIT}/hour, not reached; an empty database for every turn; target: the fastest peer."],
    )
    with server.client() as client:
        for algorithm in ALGORITHMS:
            contenders = {peer.name: peer.redis(algorithm, LIMIT, server.url) for peer in peers_for(algorithm)}
            turns = {
                name: turn(name, contender, plan.redis_seconds, client.flushdb)
                for name, contender in contenders.items()
            }
            series = interleave(turns, plan.redis_rounds)
            section.compare(algorithm, series, {fastest(series): Target(1)})
            for contender in contenders.values():
                contender.close()
    return section


def turn(name: str, contender: Contender, seconds: float, empty: Callable[[], object]) -> Turn:
    """Checks per second."""

    def checks_per_second() -> float:
        empty()
        contender.check(SUBJECT)
        rate = rate_of(seconds, CHUNK, lambda: seconds_for(CHUNK, contender.check, SUBJECT))
        if not contender.allowed(contender.check(SUBJECT)):
            raise RuntimeError(f"{name}: it refused what it should have allowed")
        return rate

    return checks_per_second


def fastest(series: dict[str, Series]) -> str:
    """The name of the peer with the best median; empty if there is none. Headgate comes first and does not count."""
    _, *peers = series
    return max(peers, key=lambda name: series[name].median, default="")
