"""One hot key on a cluster of three: which server is asked how often, with a rule that has shards and one that has not.

Calls are those of scripts, by INFO commandstats of each server. Eight processes check the key at the same time; then
they spend half as many again as a limit, for what is let in.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from benchmarks.leases import script_calls
from benchmarks.plan import Plan
from benchmarks.report import Row, Section, Target
from tests.integration.limiters import calm_window
from tests.integration.workers import Workers
from tests.topologies import Cluster

WHOLE, SHARDED = "headgate", "headgate, 16 shards"
SHARDS = {WHOLE: 1, SHARDED: 16}
PROCESSES = 8
TASKS = 16
LIMIT = 1_000_000_000  # not reached
SPENT = 8_000


def run(plan: Plan) -> Section:
    section = Section(
        "shards",
        "10. Shards: one hot key on a cluster of three",
        "with shards",
        notes=[
            f"{PROCESSES} processes of {TASKS} tasks on one key; calls: of scripts, by INFO commandstats;",
            f"spent: they try half as many again as a limit of {SPENT}.",
        ],
    )
    workers = Workers("tests.integration.hammer", PROCESSES)
    try:
        with Cluster() as cluster:
            for algorithm in ("fixed_window", "gcra"):
                for name, shards in SHARDS.items():
                    section.rows += asked(algorithm, name, shards, cluster, workers, 20 if plan.brief else 200)
                section.rows += spent(algorithm, cluster, workers)
    finally:
        workers.close()
    return section


def asked(
    algorithm: str, name: str, shards: int, cluster: Cluster, workers: Workers, checks_per_task: int
) -> list[Row]:
    """How many servers have keys, and how much of all calls the one has that is asked most."""
    counted, calls = hammered(algorithm, shards, LIMIT, cluster, workers, checks_per_task)
    decided(counted, {"within_limit"})
    keys = 0
    for server in cluster.masters:
        with server.client() as client:
            keys += client.dbsize() > 0
    hottest, work = 100 * max(calls) / sum(calls), f"{algorithm}, hot key"
    target, least = (Target(75, "%", at_least=False), Target(3, "servers")) if shards > 1 else (None, None)
    return [
        Row(f"{work}: servers with keys", name, keys, "servers", 0.0, keys if least else None, least),
        Row(f"{work}: calls of the hottest server", name, hottest, "%", 0.0, hottest if target else None, target),
        Row(f"{work}: calls", name, sum(calls) / sum(counted.values()), "a check"),
    ]


def spent(algorithm: str, cluster: Cluster, workers: Workers) -> list[Row]:
    """What all processes let in of one limit."""
    checks_per_task = SPENT * 3 // 2 // PROCESSES // TASKS
    counted, calls = hammered(algorithm, SHARDS[SHARDED], SPENT, cluster, workers, checks_per_task)
    decided(counted, {"within_limit", "over_limit"})
    admitted, work = counted["within_limit"], f"{algorithm}, spent"
    over, used = max(0, admitted - SPENT), 100 * min(admitted, SPENT) / SPENT
    return [
        Row(f"{work}: over-admission", SHARDED, over, "checks", 0.0, over, Target(0, "checks", at_least=False)),
        Row(f"{work}: usable", SHARDED, used, "%", 0.0, used, Target(95, "%")),
        Row(f"{work}: calls", SHARDED, sum(calls) / sum(counted.values()), "a check"),
    ]


def hammered(
    algorithm: str, shards: int, limit: int, cluster: Cluster, workers: Workers, checks_per_task: int
) -> tuple[Counter[str], list[int]]:
    """How often each reason was given, and how often each server was called."""
    cluster.empty()
    for server in cluster.masters:
        with server.client() as client:
            client.config_resetstat()
    rule = {"id": algorithm, "dimension": "user", "limit": limit, "window": calm_window(), "algorithm": algorithm}
    job: dict[str, Any] = {
        "url": cluster.url + "?timeout=5",
        "rules": [{**rule, "shards": shards}],
        "facts": {"user": "alice"},
        "tasks": TASKS,
        "checks_per_task": checks_per_task,
    }
    counted = sum(map(Counter, workers.run([job] * PROCESSES)), Counter[str]())
    calls = []
    for server in cluster.masters:
        with server.client() as client:
            calls.append(script_calls(client))
    return counted, calls


def decided(counted: Counter[str], reasons: set[str]) -> None:
    if set(counted) != reasons:
        raise RuntimeError(f"it did not decide as it should: {dict(counted)}")
