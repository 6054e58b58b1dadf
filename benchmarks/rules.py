"""Rules: does it matter how many there are, and how long does it take to load them?

A check is planned and decided in memory, with 10, 1,000 and 10,000 rules of which always two apply: one for
everybody, and the one of the endpoint, which has a sibling in its group that it goes before. `hot`: requests go to
nine endpoints, as most of a real service's do. `spread`: they go to all endpoints alike, which no service sees: it
shows what the processor pays for memory that it has not at hand. In both, every subject has been seen before, as a new
key costs the store the same however many rules there are. `unseen`: every path is a new one, so that no path that was
remembered helps.

`units`: three units in one check beside three rules of one unit.

`penalties`: the checks of a blocked client beside those of one that is allowed, under the same two rules.

`load` reads 10,000 rules with eight fields each, from the bytes of a TOML file, or from opening a connection to a
PostgreSQL of our own, to the snapshot in force.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.measure import Series, Turn, interleave, rate_of
from benchmarks.plan import Plan
from benchmarks.report import Row, Section, Target
from headgate import Limiter, Rule
from headgate.core.cost import Cost
from headgate.rules import Penalties, Snapshot
from headgate.rules.sources.file import load

COUNTS = (10, 1_000, 10_000)
CHUNK = 1_000
CHUNKS = 10
USERS = 1_000
LOADED = 10_000
AMPLE = "1_000_000_000/hour"
FEW, MANY = COUNTS[0], COUNTS[-1]

Requests = list[dict[str, str]]


def run(plan: Plan) -> Section:
    section = Section(
        "rules",
        "5. Rules: planning plus a check in memory",
        f"as with {FEW}",
        notes=[
            "two rules apply to each request; hot: nine endpoints, spread: all of them, unseen: a new path each time;",
            "units: three rules, compared to three that count requests;",
            "penalties: two rules again; blocked: compared to an allowed check;",
            f"load: {LOADED:,} rules from a TOML file" + ("." if plan.brief else " and from PostgreSQL, in seconds."),
        ],
    )
    limiters = {number: Limiter(rules(number)) for number in COUNTS}
    works: dict[str, Callable[[int], Callable[[], Requests]]] = {"hot": hot, "spread": spread, "unseen": unseen}
    for work, requests in works.items():
        turns = {
            f"{number:,} rules": turn(
                limiters[number], requests(number), plan.memory_seconds, 0 if work == "unseen" else CHUNKS
            )
            for number in COUNTS
        }
        series = interleave(turns, plan.memory_rounds)
        few = series[f"{FEW:,} rules"]
        for name, one in series.items():
            times = None if one is few else few.times(one)  # rates: how many times the time
            target = Target(1.3, at_least=False) if name == f"{MANY:,} rules" else None
            section.rows.append(Row(work, name, 1_000_000 / one.median, "µs/check", one.spread, times, target))
    series = interleave(units(plan.memory_seconds), plan.memory_rounds)
    one_unit = series["three rules of one unit"]
    for name, one in series.items():
        times = None if one is one_unit else one_unit.times(one)
        target = None if one is one_unit else Target(1.5, at_least=False)
        section.rows.append(Row("units", name, 1_000_000 / one.median, "µs/check", one.spread, times, target))
    series = interleave(penalised(plan.memory_seconds), plan.memory_rounds)
    allowed = series["allowed"]
    for name, one in series.items():
        times = None if one is allowed else allowed.times(one)
        target = Target(1, at_least=False) if name == "blocked" else None
        section.rows.append(Row("penalties", name, 1_000_000 / one.median, "µs/check", one.spread, times, target))
    rounds = max(2, plan.memory_rounds // 3)
    loads = {"TOML": load_seconds} if plan.brief else {"TOML": load_seconds, "PostgreSQL": database_seconds}
    for source, seconds_of in loads.items():
        loaded = Series(tuple(seconds_of(rounds)))
        target = Target(2, unit="s", at_least=False)
        name = f"{LOADED:,} rules, {source}"
        section.rows.append(Row("load", name, loaded.median, "s", loaded.spread, loaded.median, target))
    return section


def rules(number: int) -> list[Rule]:
    """One for everybody, and one for each endpoint, of every kind of pattern; the last is the alternative to them."""
    listed = [Rule(id="everybody", quota=AMPLE), Rule(id="otherwise", quota=AMPLE, group="endpoint")]
    for place in range(number - 2):
        listed.append(
            Rule(
                id=f"endpoint-{place}",
                quota=AMPLE,
                endpoints=[pattern(place)],
                methods=["GET"],
                tiers=["free"],
                group="endpoint",
            )
        )
    return listed


def pattern(place: int) -> str:
    kinds = (f"/api/v{place % 10}/things-{place}", f"/api/v{place % 10}/{{id}}/parts-{place}", f"/files-{place}/*")
    return kinds[place % 3]


def path(place: int, rest: object = "x") -> str:
    kinds = (f"/api/v{place % 10}/things-{place}", f"/api/v{place % 10}/{rest}/parts-{place}", f"/files-{place}/{rest}")
    return kinds[place % 3]


def hot(number: int) -> Callable[[], Requests]:
    return repeated(lambda chance: path(chance.randrange(min(9, number - 2))))


def spread(number: int) -> Callable[[], Requests]:
    return repeated(lambda chance: path(chance.randrange(number - 2)))


def unseen(number: int) -> Callable[[], Requests]:
    """Another path in each request, of those that a parameter or the rest leaves open."""
    serial, chance = count(), random.Random(number)
    places = [place for place in range(min(9, number - 2)) if place % 3]

    def requests() -> Requests:
        return [request(chance, path(chance.choice(places), next(serial))) for _ in range(CHUNK)]

    return requests


def repeated(a_path: Callable[[random.Random], str]) -> Callable[[], Requests]:
    """Chunks of the same requests, one after the other."""
    chance = random.Random(1)
    made = [[request(chance, a_path(chance)) for _ in range(CHUNK)] for _ in range(CHUNKS)]
    turns = count()
    return lambda: made[next(turns) % CHUNKS]


def request(chance: random.Random, endpoint: str) -> dict[str, str]:
    user = f"user-{chance.randrange(USERS)}"
    return {"user": user, "ip": "192.0.2.1", "endpoint": endpoint, "method": "GET", "tier": "free"}


def turn(limiter: Limiter, requests: Callable[[], Requests], seconds: float, before: int) -> Turn:
    """Checks per second, after so many chunks that are not timed."""

    def chunk() -> float:
        asked = requests()
        check = limiter.check
        start = perf_counter()
        for facts in asked:
            decision = check(**facts)  # type: ignore[arg-type]
        spent = perf_counter() - start
        if len(decision.limits) != 2:
            raise RuntimeError(f"{asked[-1]}: {len(decision.limits)} rules applied instead of two")
        return spent

    for _ in range(before):
        chunk()
    return lambda: rate_of(seconds, CHUNK, chunk)


def units(seconds: float) -> dict[str, Turn]:
    """Three rules that count requests, and three that count a unit each."""
    windows = {"requests": "minute", "tokens": "hour", "usd_micros": "day"}
    alike = Limiter([Rule(id=window, quota=f"1_000_000_000/{window}") for window in windows.values()])
    apart = Limiter([Rule(id=unit, quota=f"1_000_000_000/{window}", unit=unit) for unit, window in windows.items()])

    def turn(limiter: Limiter, cost: Cost) -> Turn:
        def chunk() -> float:
            check = limiter.check
            start = perf_counter()
            for _ in range(CHUNK):
                decision = check(user="alice", cost=cost)
            spent = perf_counter() - start
            if len(decision.limits) != len(windows):
                raise RuntimeError(f"{len(decision.limits)} limits instead of {len(windows)}")
            return spent

        return lambda: rate_of(seconds, CHUNK, chunk)

    return {
        "three rules of one unit": turn(alike, 1),
        "three units": turn(apart, {"requests": 1, "tokens": 2, "usd_micros": 3}),
    }


def penalised(seconds: float) -> dict[str, Turn]:
    """A limiter with penalties, and one client that it has blocked for longer than this takes."""
    listed = [Rule(id="everybody", quota=AMPLE), Rule(id="upload", quota=AMPLE, endpoints=["/upload"])]
    penalties = Penalties(enabled=True, violation_threshold=1, multipliers=[1])
    limiter = Limiter(Snapshot(listed, penalties=penalties))
    limiter.check(user="blocked", cost=2_000_000_000)

    def turn(user: str, reason: str) -> Turn:
        def chunk() -> float:
            check = limiter.check
            start = perf_counter()
            for _ in range(CHUNK):
                decision = check(user=user, endpoint="/upload")
            spent = perf_counter() - start
            if decision.reason != reason:
                raise RuntimeError(f"{user}: reason {decision.reason} instead of {reason}")
            return spent

        return lambda: rate_of(seconds, CHUNK, chunk)

    return {"allowed": turn("allowed", "within_limit"), "blocked": turn("blocked", "penalty")}


def load_seconds(rounds: int) -> list[float]:
    lines = []
    for place in range(LOADED):
        lines.append(
            f'[[rules]]\nid = "rule-{place}"\nname = "Rule {place}"\nendpoints = ["{pattern(place)}"]\n'
            f'methods = ["GET"]\ntiers = ["free"]\nlimit = 100\nwindow = "1h"\ngroup = "endpoint"\n\n'
        )
    with TemporaryDirectory() as directory:
        file = Path(directory, "rules.toml")
        file.write_text("".join(lines))
        taken = []
        for _ in range(rounds):
            start = perf_counter()
            snapshot = load(file)
            taken.append(perf_counter() - start)
            if len(snapshot.rules) != LOADED:
                raise RuntimeError(f"{len(snapshot.rules)} rules were loaded instead of {LOADED}")
    return taken


def database_seconds(rounds: int) -> list[float]:
    from headgate.db import Changes, migrate
    from headgate.rules.sources.database import DatabaseSource
    from tests.postgres import Postgres

    listed = [
        Rule(
            id=f"rule-{place}",
            name=f"Rule {place}",
            quota="100/hour",
            endpoints=[pattern(place)],
            methods=["GET"],
            tiers=["free"],
            group="endpoint",
        )
        for place in range(LOADED)
    ]
    taken = []
    with Postgres() as server:
        migrate(server.url)
        with Changes(server.url) as changes, changes.begin("benchmark") as change:
            change.apply(Snapshot(listed))
        for _ in range(rounds):
            start = perf_counter()
            source = DatabaseSource(server.url)
            taken.append(perf_counter() - start)
            loaded = len(source.holder.current.rules)
            source.close()
            if loaded != LOADED:
                raise RuntimeError(f"{loaded} rules were loaded instead of {LOADED}")
    return taken
